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

from bireme.core.errors import BiremeError
from bireme.tools import Toolbox
from bireme.tools.store import make_once

_REVISION = 1  # raise it when what is written below changes, so that cached folders are not reused

_KEPT = ("required", "x-kubernetes-list-type", "x-kubernetes-list-map-keys")
_DEFINITIONS = "#/definitions/"

# swagger.json has the grammar of quantities only as text, in their description.
_QUANTITY_NAME = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_QUANTITY = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
_BASE64 = r"^[A-Za-z0-9+/=\r\n]*$"


def kubernetes_schemas(toolbox: Toolbox, version: str | None = None) -> Path:
    """The folder of schemas for a pinned Kubernetes ``version`` or the default one, made once and cached.

    There is one standalone file per kind, ``<kind>-<group>-<version>.json`` in lower case without the
    group's domain (``job-batch-v1.json``, ``pod-v1.json``); see ``schema_location``. Unknown keys are
    refused; ``x-kubernetes-list-map-keys`` is kept for checks of uniqueness. Raises BiremeError when the
    version is not pinned or its module cannot be downloaded.
    """
    version = toolbox.pin("kubectl", version).version
    folder = toolbox.paths.cache / "kubernetes-schemas" / f"{version}-{_REVISION}"

    def make(target: Path) -> None:
        swagger = toolbox.source("kubectl", version) / "api" / "openapi-spec" / "swagger.json"
        _write(json.loads(swagger.read_text())["definitions"], target)

    try:
        make_once(folder, make)
    except (OSError, ValueError, KeyError) as error:
        raise BiremeError(
            f"cannot derive JSON Schemas from the sources of Kubernetes {version}: {error!r}"
        ) from error
    return folder


def schema_location(folder: Path) -> str:
    """What kubeconform's ``-schema-location`` wants for a folder of ``kubernetes_schemas``."""
    return f"{folder}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"


def _write(definitions: Mapping[str, Any], folder: Path) -> None:
    strict = {name: _strict(schema) for name, schema in definitions.items()}
    strict[_QUANTITY_NAME] = {"type": ["number", "string"], "pattern": _QUANTITY}
    for name, schema in definitions.items():
        kinds = schema.get("x-kubernetes-group-version-kind", [])
        if len(kinds) != 1:  # several: an option of requests such as DeleteOptions, no object
            continue
        needed = {used: strict[used] for used in _closure(name, strict)}
        document = {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$ref": _DEFINITIONS + name,
            "definitions": needed,
        }
        (folder / _file_name(kinds[0])).write_text(
            json.dumps(document, separators=(",", ":"), sort_keys=True)
        )


def _file_name(kind: Mapping[str, str]) -> str:
    parts = [kind["kind"].lower(), kind["group"].split(".")[0], kind["version"]]
    return "-".join(part for part in parts if part) + ".json"


def _strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    """``schema`` without descriptions and other keys, with the types that the API server accepts."""
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}
    if schema.get("format") == "int-or-string":
        return {"type": ["integer", "string"]}
    kept: dict[str, Any] = {key: schema[key] for key in _KEPT if key in schema}
    if "type" in schema:
        kept["type"] = schema["type"]
    if schema.get("format") == "byte":
        kept["pattern"] = _BASE64
    if "properties" in schema:
        kept["properties"] = {key: _strict(value) for key, value in schema["properties"].items()}
        kept["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            kept[key] = _strict(schema[key])
    return kept


def _closure(name: str, definitions: Mapping[str, Any]) -> set[str]:
    """The definitions that the one called ``name`` needs, itself included."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += _references(definitions[current])
    return found


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].removeprefix(_DEFINITIONS)
        for value in schema.values():
            yield from _references(value)
