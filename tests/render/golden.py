"""Golden files: what every case of the matrix renders, so that the diff of a commit shows what it changes.

golden/<chart>/<ci file>.yaml holds the objects of a ci values file. A workload that is rendered for several
instance types has golden/<chart>/<workload>.yaml with the objects for one type, and
golden/<chart>/<workload>.instances.yaml with what each other type changes. `make golden` writes all of them.

A new version of the runtime changes no golden file: the ConfigMaps that hold its modules are left out, and so
are the sources of the volumes that mount them and the digests of immutable parts with such a volume.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bireme.core.manifests import Manifest
from bireme.core.paths import Paths
from bireme.helm import Renderer
from bireme.testing.pytest_plugin import Request
from bireme.tools import Toolbox
from tests.render.cases import CASES, ROOT, Case, request

FOLDER = Path(__file__).parent / "golden"
IMMUTABLE = "bireme/immutable"
BASE_INSTANCES = ("p4d.24xlarge", "p3.8xlarge", "p3dn.24xlarge")
"""Instance types whose objects are stored completely: the first one for which the workload renders."""
RUNTIME = "RUNTIME"
ABSENT = "(absent)"
NO_INSTANCE = "none"

Object = dict[str, Any]


class Golden:
    """Golden files, and what the charts render now."""

    def __init__(self, renderer: Renderer, request_for: Request) -> None:
        self._renderer = renderer
        self._request_for = request_for

    def kept(self, case: Case) -> Any:
        """The objects of ``case`` in its golden file, or their differences from those of the base case."""
        content = yaml.load(_file(case).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        return content if base(case) == case else content[case.instance or NO_INSTANCE]

    def rendered(self, case: Case) -> Any:
        """The same for what the chart renders now."""
        objects = self._objects(case)
        return objects if base(case) == case else differences(self._objects(base(case)), objects)

    def write(self, cases: Iterable[Case]) -> None:
        """Write the golden files of ``cases``, which must be all cases of their charts."""
        contents: dict[Path, Any] = {}
        for case in cases:
            if base(case) == case:
                contents[_file(case)] = self.rendered(case)
            else:
                contents.setdefault(_file(case), {})[case.instance or NO_INSTANCE] = self.rendered(case)
        for file, content in contents.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_yaml(content), encoding="utf-8")

    def _objects(self, case: Case) -> dict[str, Object]:
        found = self._renderer.render(request(case, self._request_for)).manifests
        return {item.identity: normalised(item) for item in found if not _holds_runtime(item)}


def base(case: Case) -> Case:
    """The case of the same workload whose objects are stored completely; others store the differences."""
    types = [each for each in BASE_INSTANCES if Case(case.chart, each, case.workload) in CASES]
    return Case(case.chart, types[0], case.workload) if types and not case.ci else case


def _file(case: Case) -> Path:
    name = (case.ci or "").removesuffix("-values.yaml") or case.workload or "defaults"
    if base(case) != case:
        name += ".instances"
    return FOLDER / case.chart / f"{name}.yaml"


def files() -> set[Path]:
    """Every golden file that there should be."""
    return {_file(case) for case in CASES}


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


# --- differences ---


def differences(old: Mapping[str, Object], new: Mapping[str, Object]) -> dict[str, Any]:
    """The fields in which ``new`` differs from ``old``: their values in ``new`` by path."""
    before, after = dict(_fields(old, "")), dict(_fields(new, ""))
    paths = sorted(before.keys() | after.keys())
    return {
        path: after.get(path, ABSENT) for path in paths if before.get(path, ABSENT) != after.get(path, ABSENT)
    }


def _fields(content: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every scalar below ``content`` with its path. List items have their name as index, if all have one."""
    if isinstance(content, dict) and content:
        for key, value in content.items():
            yield from _fields(value, f"{path}.{key}" if path else key)
    elif isinstance(content, list) and content:
        names = [item.get("name") if isinstance(item, dict) else None for item in content]
        if None in names or len(set(names)) < len(names):
            names = list(range(len(content)))
        else:
            yield f"{path}[]", " ".join(map(str, names))
        for name, item in zip(names, content, strict=True):
            yield from _fields(item, f"{path}[{name}]")
    else:
        yield path, content


# --- YAML ---


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _yaml(content: Any) -> str:
    return yaml.dump(content, Dumper=_Dumper, width=110, allow_unicode=True)


def main() -> None:
    """Write every golden file, and delete those without a case."""
    paths = Paths.discover()
    Golden(Renderer(Toolbox(paths), paths), Request(paths, ROOT)).write(CASES)
    for file in set(FOLDER.glob("*/*.yaml")) - files():
        file.unlink()


if __name__ == "__main__":
    main()
