"""Schemas of the charts' values, bundled from their sources.

schemas/<chart>.schema.json holds the rules of a chart's own keys. It extends a definition of
common.schema.json, which holds the rules of the keys that several charts have. The ``# --`` comments of
values.yaml are the descriptions. `bundled` joins all of it into charts/<chart>/values.schema.json, the one
file that Helm reads.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bireme.core.errors import BiremeError
from bireme.core.manifests import within
from bireme.core.paths import Paths

Schema = dict[str, Any]
KeyPath = tuple[str, ...]

BUNDLE = "values.schema.json"
_COMMON = "common.schema.json"
DEFS = "#/$defs/"
# Kubernetes' numbers have 32 bits. Without a bound, Helm makes another number of a larger one, such as 1e300.
_LARGEST = 2**31 - 1


# --- bundling ---


def bundled(paths: Paths) -> dict[Path, str]:
    """What every charts/<chart>/values.schema.json that has a source in schemas/ should hold.

    One document each: only the definitions it uses, no reference outside it, and the description of every
    key from its ``# --`` comment in values.yaml. Keys with a default are required, because a null removes
    the default, and templates would meet nothing. Raises BiremeError for a reference to nothing.
    """
    common = _read_json(paths.schemas / _COMMON).get("$defs", {})
    texts: dict[Path, str] = {}
    for source in sorted(paths.schemas.glob("*.schema.json")):
        chart = paths.charts / source.name.removesuffix(".schema.json")
        if source.name != _COMMON and (chart / "values.yaml").is_file():
            text = (chart / "values.yaml").read_text(encoding="utf-8")
            schema = _Bundler(source, common, text).bundle()
            texts[chart / BUNDLE] = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    return texts


def write(paths: Paths) -> list[Path]:
    """Bring every values.schema.json up to date; the files that changed."""
    texts, changed = bundled(paths), drift(paths)
    for file in changed:
        file.write_text(texts[file], encoding="utf-8")
    return changed


def drift(paths: Paths) -> list[Path]:
    """Every values.schema.json that no longer follows from its source and values.yaml."""
    found = bundled(paths).items()
    return [file for file, text in found if not file.exists() or file.read_text(encoding="utf-8") != text]


def _read_json(file: Path) -> Schema:
    try:
        content: Schema = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BiremeError(f"{file} does not exist") from error
    except ValueError as error:
        raise BiremeError(f"{file} is not valid JSON: {error}") from error
    return content


class _Bundler:
    """One chart's schema being put together from its source, the common definitions and the comments."""

    def __init__(self, source: Path, common: Mapping[str, Schema], values_yaml: str) -> None:
        self._source = source
        self._defaults = yaml.load(values_yaml, Loader=yaml.CSafeLoader)
        self._root = _read_json(source)
        own = self._root.get("$defs", {})
        twice = sorted(set(own) & set(common))
        if twice:
            raise BiremeError(
                f"{source}: $defs/{twice[0]} is in {_COMMON} too: give one of them another name"
            )
        self._defs: Mapping[str, Schema] = {**common, **own}
        self._descriptions = comments(values_yaml)

    def bundle(self) -> Schema:
        root = self._extended({key: value for key, value in self._root.items() if key != "$defs"})
        schema: Schema = self._described(root, ())
        used: dict[str, Schema] = {}
        waiting = sorted(_references(schema))
        while waiting:
            name = waiting.pop().removeprefix(DEFS)
            if name not in used:
                used[name] = self._local(copy.deepcopy(self._definition(name)))
                waiting += sorted(_references(used[name]))
        if used:
            schema["$defs"] = {name: used[name] for name in sorted(used)}
        return schema

    def _definition(self, name: str) -> Schema:
        if name not in self._defs:
            raise BiremeError(f"{self._source}: $ref to $defs/{name}, which neither it nor {_COMMON} defines")
        return self._defs[name]

    def _extended(self, schema: Schema, path: KeyPath = ()) -> Schema:
        """``schema`` with what it extends: its own properties win over those of the same name.

        The properties have the order of values.yaml; those without a description there come last.
        """
        if "extends" not in schema:
            return schema
        base = self._extended(self._definition(_target(schema["extends"])))
        own = {key: value for key, value in schema.items() if key != "extends"}
        properties = {**base.get("properties", {}), **own.get("properties", {})}
        depth = len(path)
        order = list(
            dict.fromkeys(each[depth] for each in self._descriptions if each[:depth] == path != each)
        )
        ordered = sorted(properties, key=lambda key: order.index(key) if key in order else len(order))
        rest = {
            key: value for key, value in {**base, **own}.items() if key not in {"properties", "description"}
        }
        return {**rest, "properties": {key: properties[key] for key in ordered}}

    def _described(self, schema: Schema, path: KeyPath) -> Schema:
        """``schema`` of the key at ``path`` with its description, and those of the keys below."""
        schema = self._extended(schema, path)
        if "$ref" in schema and any(
            key[: len(path)] == path and len(key) > len(path) for key in self._descriptions
        ):
            # Descriptions of the keys below have no place beside a reference.
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            return self._described({**self._definition(_target(schema["$ref"])), **rest}, path)
        schema = self._local(copy.deepcopy(schema))
        if path in self._descriptions:
            schema = {
                "description": self._descriptions[path],
                **{k: v for k, v in schema.items() if k != "description"},
            }
        if isinstance(schema.get("properties"), dict):
            schema["properties"] = {
                key: self._described(below, (*path, key)) if isinstance(below, dict) else below
                for key, below in schema["properties"].items()
            }
            defaults = within(self._defaults, *path)
            needed = [
                key
                for key, below in schema["properties"].items()
                if defaults.get(key) is not None and not self._may_be_null(below)
            ]
            if needed:
                schema["required"] = list(dict.fromkeys([*schema.get("required", []), *needed]))
        return schema

    def _may_be_null(self, schema: Schema) -> bool:
        if "$ref" in schema:
            schema = self._definition(_target(schema["$ref"]))
        return any("null" in _kinds(each) for each in (schema, *schema.get("oneOf", ())))

    def _local(self, schema: Any) -> Any:
        """``schema`` with every reference pointing into the bundle, and every integer bounded."""
        if isinstance(schema, list):
            return [self._local(item) for item in schema]
        if not isinstance(schema, dict):
            return schema
        bound = {"maximum": _LARGEST} if "integer" in _kinds(schema) and "maximum" not in schema else {}
        local = {
            key: f"{DEFS}{_target(value)}" if key == "$ref" and isinstance(value, str) else self._local(value)
            for key, value in schema.items()
        }
        return local | bound


def _kinds(schema: Schema) -> list[str]:
    """The types that ``schema`` names itself."""
    named = schema.get("type")
    return [named] if isinstance(named, str) else named if isinstance(named, list) else []


def _target(reference: str) -> str:
    name = reference.removeprefix(_COMMON)
    if not name.startswith(DEFS):
        raise BiremeError(f"$ref {reference!r} leads out of the bundle: refer to {_COMMON}{DEFS}<name>")
    return name.removeprefix(DEFS)


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _references(item)


_TYPE_HINT = re.compile(r"^\([\w/]+\)\s+")


def comments(values_yaml: str) -> dict[KeyPath, str]:
    """The ``# --`` comment of every key of a values.yaml, as helm-docs reads them.

    A comment belongs to the key right below it; its lines are joined, ``# @`` lines and a type hint in
    parentheses dropped.
    """
    lines = values_yaml.splitlines()
    found: dict[KeyPath, str] = {}
    for path, line in _keys(yaml.compose(values_yaml, Loader=yaml.CSafeLoader), ()):
        first = line
        while first and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        words = [text.strip().removeprefix("#").strip() for text in lines[first:line]]
        starts = [number for number, text in enumerate(words) if text.startswith("-- ")]
        if starts:
            text = " ".join(word for word in words[starts[-1] :] if word and not word.startswith("@"))
            found[path] = _TYPE_HINT.sub("", text.removeprefix("-- ").strip())
    return found


def _keys(node: yaml.Node | None, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*path, str(key.value))
            yield below, key.start_mark.line
            yield from _keys(value, below)
