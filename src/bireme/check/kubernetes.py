"""Strict JSON Schemas of Kubernetes' own kinds, offline, for kubeconform.

They are derived from api/openapi-spec/swagger.json of the pinned ``k8s.io/kubernetes`` module. They are
stricter than the API server in one point: they refuse ``null`` where a value belongs, because a rendered key
without a value is a mistake in a chart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bireme.core.findings import Finding
from bireme.core.manifests import Manifest
from bireme.tools import Toolbox
from bireme.tools.store import make_once

_REVISION = 3  # raise it when what is written below changes, so that cached folders are not reused

_DEFINITIONS = "definitions.json"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
# swagger.json has the grammars of quantities and labels only as text, in their descriptions.
_QUANTITY_NAME = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_QUANTITY = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
_LABEL = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
# The schema of 1.32 requires what the API server fills in.
_DEFAULTED = {"io.k8s.api.batch.v1.PodFailurePolicyOnPodConditionsPattern": "status"}
# Groups of Kubernetes with more than one dot before k8s.io, and those of its past.
_LONG_GROUPS = ("rbac.authorization.k8s.io", "flowcontrol.apiserver.k8s.io", "internal.apiserver.k8s.io")
_GONE_GROUPS = ("extensions",)
_BASE64 = r"^[A-Za-z0-9+/=\r\n]*$"


def kubernetes_schemas(toolbox: Toolbox, version: str | None = None) -> str:
    """kubeconform's ``-schema-location`` for a pinned Kubernetes ``version`` or the default one.

    The schemas are made once and cached. Unknown keys are refused. Raises BiremeError when the version is not
    pinned or its module cannot be downloaded.
    """
    version = toolbox.pin("kubectl", version).version
    folder = toolbox.paths.cache / "kubernetes-schemas" / f"{version}-{_REVISION}"

    def make(target: Path) -> None:
        swagger = toolbox.source("kubectl", version) / "api" / "openapi-spec" / "swagger.json"
        _write(json.loads(swagger.read_text())["definitions"], target)

    make_once(folder, make)
    return f"{folder}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"


def unserved(item: Manifest, folder: Path) -> Iterator[Finding]:
    """That Kubernetes, whose schemas lie in ``folder``, does not serve a kind of its own in this version."""
    group, _, version = item.api_version.rpartition("/")
    short, kind = group.partition(".")[0], item.kind.lower()
    is_own = "." not in group or group in (f"{short}.k8s.io", *_LONG_GROUPS)
    is_known = not short or short in _GONE_GROUPS or any(folder.glob(f"*-{short}-v*.json"))
    if (
        version
        and is_own
        and is_known
        and not (folder / f"{'-'.join(filter(None, (kind, short, version)))}.json").is_file()
    ):
        others = sorted(each.stem.removeprefix(f"{kind}-") for each in folder.glob(f"{kind}-*v*.json"))
        advice = f"Kubernetes has it in {', '.join(others).replace('-', '/')}" if others else ""
        yield Finding(
            "kubernetes", f"{item.api_version} {item.kind} is not served", advice, path=item.identity
        )


def _write(definitions: Mapping[str, Any], folder: Path) -> None:
    strict = {name: _strict(schema) for name, schema in definitions.items()}
    strict[_QUANTITY_NAME] = {"type": ["number", "string"], "pattern": _QUANTITY}
    for name, key in _DEFAULTED.items():
        strict[name]["required"] = [each for each in strict[name]["required"] if each != key]
    label = {"type": "string", "pattern": _LABEL, "maxLength": 63}
    strict[_META]["properties"]["labels"]["additionalProperties"] = label
    (folder / _DEFINITIONS).write_text(json.dumps({"definitions": strict}, separators=(",", ":")))
    for name, schema in definitions.items():
        kinds = schema.get("x-kubernetes-group-version-kind", [])
        if len(kinds) == 1:  # several: an option of requests such as DeleteOptions, no object
            parts = [kinds[0]["kind"].lower(), kinds[0]["group"].split(".")[0], kinds[0]["version"]]
            file = folder / f"{'-'.join(filter(None, parts))}.json"
            file.write_text(json.dumps({"$ref": f"{_DEFINITIONS}#/definitions/{name}"}))


def _strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    """``schema`` without descriptions and other keys, with the types that the API server accepts."""
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}
    if schema.get("format") == "int-or-string":
        return {"type": ["integer", "string"]}
    kept: dict[str, Any] = {key: schema[key] for key in ("required", "type") if key in schema}
    if schema.get("format") == "byte":
        kept["pattern"] = _BASE64
    if "properties" in schema:
        kept["properties"] = {key: _strict(value) for key, value in schema["properties"].items()}
        kept["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            kept[key] = _strict(schema[key])
    return kept
