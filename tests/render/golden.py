"""Golden files: what the default and the full values of each chart render, so that diffs show what changes.

golden/<chart>/<ci file>.yaml holds the objects of a ci values file. `make golden` writes them and
workers.csv, which has what a worker gets on each instance type.

A new version of the runtime changes no golden file: the ConfigMaps that hold its modules are left out, and so
are the sources of the volumes that mount them and the digests of immutable parts with such a volume.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from bireme.core.manifests import Manifest
from bireme.core.paths import Paths
from bireme.helm import Renderer
from bireme.testing import charts
from bireme.testing.charts import RequestFor
from bireme.tools import Toolbox
from tests.render import workers
from tests.render.cases import CASES, ROOT, Case, request

FOLDER = Path(__file__).parent / "golden"
IMMUTABLE = "bireme/immutable"
RUNTIME = "RUNTIME"
DEFAULT_AND_FULL = {
    "dataset": ("s3", "mixed"),
    "efa-device-plugin": ("region", "neuron"),
    "efs": ("nfs", "csi"),
    "etcd": ("single", "secured"),
    "fsx": ("static", "efa"),
    "gpu-metrics": ("dcgm", "container-insights"),
    "mpi-training": ("allreduce", "mpijob"),
    "paddle": ("check", "dynamic"),
    "torch-elastic": ("allreduce", "full"),
}
"""The ci files of a chart that has them under other names, or no objects without values.

The JSON schema of CloudWatch's agent accepts the configuration in gpu-metrics/container-insights.yaml
(aws/amazon-cloudwatch-agent, schema.json at ab55b8d): tried by hand, as the Go proxy lacks the module.
"""

Object = dict[str, Any]


def golden_cases() -> list[Case]:
    """The cases whose objects are kept."""
    kept = {
        Case(chart, ci=f"{name}-values.yaml") for chart, each in DEFAULT_AND_FULL.items() for name in each
    }
    return [case for case in CASES if case in kept or case.ci in ("default-values.yaml", "full-values.yaml")]


def golden_file(case: Case) -> Path:
    """Where the objects of ``case`` are kept."""
    return FOLDER / case.chart / f"{(case.ci or '').removesuffix('-values.yaml')}.yaml"


def objects(renderer: Renderer, request_for: RequestFor, case: Case) -> dict[str, Object]:
    """The objects of ``case`` as they are kept."""
    found = renderer.render(request(case, request_for)).manifests
    return {item.identity: normalised(item) for item in found if not _holds_runtime(item)}


# --- normalising ---


def _holds_runtime(item: Manifest) -> bool:
    return item.kind == "ConfigMap" and any(
        key.startswith("bireme_runtime__") for key in item.get("data", {})
    )


def normalised(item: Manifest) -> Object:
    """``item`` without the parts that a new runtime changes, and with a digest in place of a CRD's schema."""
    content: Object = _without_runtime(item.thaw())
    annotations = content["metadata"].get("annotations", {})
    if IMMUTABLE in annotations:
        annotations[IMMUTABLE] = _digests(json.loads(annotations[IMMUTABLE]), content)
    if item.kind == "CustomResourceDefinition":
        for version in content["spec"]["versions"]:
            text = json.dumps(version["schema"], sort_keys=True)
            version["schema"] = hashlib.sha256(text.encode()).hexdigest()
    return content


def _without_runtime(content: Any) -> Any:
    if isinstance(content, list):
        return [_without_runtime(item) for item in content]
    if not isinstance(content, dict):
        return content
    if "projected" in content and "-runtime-" in str(content["projected"].get("sources")):
        return {"name": content["name"], "configMap": RUNTIME}
    return {key: _without_runtime(value) for key, value in content.items()}


def _digests(digests: Mapping[str, str], content: Object) -> dict[str, str]:
    """``digests`` without those of parts that contain a volume of the runtime."""
    has_runtime = RUNTIME in json.dumps(content["spec"])
    parts = {"volumes", "launcher"} if has_runtime else set()
    return {part: RUNTIME if part in parts else digest for part, digest in digests.items()}


# --- YAML ---


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
        """A long mapping has a line for each key, so that a diff shows the one that changes."""
        node = super().represent_mapping(tag, mapping, flow_style)
        if node.flow_style and sum(len(key.value + value.value) for key, value in node.value) > 300:
            node.flow_style = False
        return node


def _text(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _yaml(content: Any) -> str:
    return yaml.dump(content, Dumper=_Dumper, default_flow_style=None, width=110, allow_unicode=True)


def main() -> None:
    """Write every golden file and the table of workers, and delete files without a case."""
    paths = Paths.discover()
    renderer, request_for = Renderer(Toolbox(paths), paths), partial(charts.request_for, paths, ROOT)
    files = {golden_file(case): _yaml(objects(renderer, request_for, case)) for case in golden_cases()}
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for file in set(FOLDER.glob("*/*.yaml")) - files.keys():
        file.unlink()
    workers.write(renderer, request_for)


if __name__ == "__main__":
    main()
