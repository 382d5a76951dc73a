"""Keys of a chart's values: what its values.yaml and its schema say about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bireme.core.errors import BiremeError, suggestion
from bireme.helm import values as value_files

_LIMITS = ("enum", "minimum", "maximum", "pattern")


def explanation(chart: Path, key: str) -> dict[str, Any]:
    """Text, type, limits, default and keys below of ``key``, e.g. ``shm.size``; "" stands for all.

    Raises BiremeError for a key that the chart does not have.
    """
    text = value_files.read_text(chart / "values.yaml", "values file")
    value_files.read_file(chart / "values.yaml")
    schema_file = chart / "values.schema.json"
    schema = json.loads(value_files.read_text(schema_file, "schema")) if schema_file.is_file() else {}
    node: yaml.Node | None = yaml.compose(text, yaml.CSafeLoader)
    below, line, seen = _resolved(schema, schema), 0, ""
    for part in filter(None, key.split(".")):
        keys = _keys(node)
        known = {*keys, *below.get("properties", {})}
        if part not in known:
            raise BiremeError(f"{chart.name} has no value {seen}{part}: {suggestion(part, known)}")
        line, node = keys.get(part, (0, None))
        below = _resolved(below.get("properties", {}).get(part, {}), schema)
        seen += f"{part}."
    types = below.get("type", "any")
    found = {
        "key": key,
        "text": _comment(text.splitlines(), line) or below.get("description", ""),
        "type": types if isinstance(types, str) else " or ".join(types),
        **{name: below[name] for name in _LIMITS if name in below},
        "keys": sorted({*_keys(node), *below.get("properties", {})}),
    }
    is_leaf = not isinstance(node, yaml.MappingNode) or not node.value
    default = yaml.safe_load(text[node.start_mark.index : node.end_mark.index]) if node and is_leaf else None
    return found | ({"default": default} if is_leaf else {})


def _keys(node: yaml.Node | None) -> dict[str, tuple[int, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(key.value): (key.start_mark.line, value) for key, value in node.value}


def _comment(lines: list[str], line: int) -> str:
    """The comment right above a line, without the mark and the type of helm-docs."""
    found: list[str] = []
    while line and lines[line - 1].lstrip().startswith("# "):
        line -= 1
        found.insert(0, lines[line].strip(" #").removeprefix("-- "))
    return " ".join(found)


def _resolved(part: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of a schema with what it refers to."""
    while isinstance(part, Mapping) and str(part.get("$ref", "")).startswith("#/"):
        target: Any = schema
        for name in part["$ref"][2:].split("/"):
            target = target.get(name, {})
        part = {**target, **{key: value for key, value in part.items() if key != "$ref"}}
    return part if isinstance(part, Mapping) else {}
