"""Schemas of the charts' values: bundled from their sources, and checked with sentences for people.

schemas/<chart>.schema.json holds the rules, the ``# --`` comments of the chart's values.yaml hold the words;
`bundled` joins them into the one standalone charts/<chart>/values.schema.json that Helm reads.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from bireme.errors import BiremeError
from bireme.paths import Paths
from bireme.values import GLOBAL, Chart, coalesce_chart, load_chart

Schema = dict[str, Any]
KeyPath = tuple[str, ...]

BUNDLE = "values.schema.json"
_COMMON = "common.schema.json"
_DEFS = "#/$defs/"


# --- bundling ---


def bundled(paths: Paths) -> dict[Path, str]:
    """What every charts/<chart>/values.schema.json that has a source in schemas/ should hold.

    One document each: only the definitions it uses, no reference outside it, and the description of every
    key from its ``# --`` comment in values.yaml. Raises BiremeError for a reference to nothing.
    """
    common = _read_json(paths.schemas / _COMMON).get("$defs", {})
    texts: dict[Path, str] = {}
    for source in sorted(paths.schemas.glob("*.schema.json")):
        chart = paths.charts / source.name.removesuffix(".schema.json")
        if source.name != _COMMON and (chart / "values.yaml").is_file():
            text = (chart / "values.yaml").read_text(encoding="utf-8")
            schema = _Bundler(source, common, comments(text)).bundle()
            texts[chart / BUNDLE] = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    return texts


def write(paths: Paths) -> list[Path]:
    """Bring every values.schema.json up to date; the files that changed."""
    stale = [(file, text) for file, text in bundled(paths).items() if _text(file) != text]
    for file, text in stale:
        file.write_text(text, encoding="utf-8")
    return [file for file, _ in stale]


def drift(paths: Paths) -> list[str]:
    """One sentence for each values.schema.json that its source or values.yaml has left behind."""
    return [
        f"{file.relative_to(paths.root)} does not follow from schemas/ and values.yaml: run `make schemas`"
        for file, text in bundled(paths).items()
        if _text(file) != text
    ]


def _text(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.exists() else None


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

    def __init__(self, source: Path, common: Mapping[str, Schema], said: Mapping[KeyPath, str]) -> None:
        self._source = source
        self._root = _read_json(source)
        own = self._root.get("$defs", {})
        twice = sorted(set(own) & set(common))
        if twice:
            raise BiremeError(
                f"{source}: $defs/{twice[0]} is in {_COMMON} too: give one of them another name"
            )
        self._defs: Mapping[str, Schema] = {**common, **own}
        self._said = said

    def bundle(self) -> Schema:
        root = {key: value for key, value in self._root.items() if key != "$defs"}
        schema: Schema = self._described(root, ())
        used: dict[str, Schema] = {}
        waiting = sorted(_references(schema))
        while waiting:
            name = waiting.pop().removeprefix(_DEFS)
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

    def _described(self, schema: Schema, path: KeyPath) -> Schema:
        """``schema`` of the key at ``path`` with its words, and those of the keys below."""
        if "$ref" in schema and any(key[: len(path)] == path and len(key) > len(path) for key in self._said):
            # Words for the keys below have no place beside a reference.
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            return self._described({**self._definition(_target(schema["$ref"])), **rest}, path)
        schema = self._local(copy.deepcopy(schema))
        if path in self._said:
            schema = {
                "description": self._said[path],
                **{k: v for k, v in schema.items() if k != "description"},
            }
        if isinstance(schema.get("properties"), dict):
            schema["properties"] = {
                key: self._described(below, (*path, key)) if isinstance(below, dict) else below
                for key, below in schema["properties"].items()
            }
        return schema

    def _local(self, schema: Any) -> Any:
        """``schema`` with every reference pointing into the bundle."""
        if isinstance(schema, list):
            return [self._local(item) for item in schema]
        if not isinstance(schema, dict):
            return schema
        return {
            key: f"{_DEFS}{_target(value)}"
            if key == "$ref" and isinstance(value, str)
            else self._local(value)
            for key, value in schema.items()
        }


def _target(reference: str) -> str:
    name = reference.removeprefix(_COMMON)
    if not name.startswith(_DEFS):
        raise BiremeError(f"$ref {reference!r} leads out of the bundle: refer to {_COMMON}{_DEFS}<name>")
    return name.removeprefix(_DEFS)


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
    said: dict[KeyPath, str] = {}
    for path, line in _keys(yaml.compose(values_yaml, Loader=yaml.CSafeLoader), ()):
        first = line
        while first and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        words = [text.strip().removeprefix("#").strip() for text in lines[first:line]]
        starts = [number for number, text in enumerate(words) if text.startswith("-- ")]
        if starts:
            text = " ".join(word for word in words[starts[-1] :] if word and not word.startswith("@"))
            said[path] = _TYPE_HINT.sub("", text.removeprefix("-- ").strip())
    return said


def _keys(node: yaml.Node | None, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*path, str(key.value))
            yield below, key.start_mark.line
            yield from _keys(value, below)


# --- what is wrong with given values ---


@dataclass(frozen=True)
class Problem:
    """One thing a schema refuses: ``path`` as users write it (``shm.size``; "" is the root)."""

    path: str
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def problems(chart_dir: Path, user_values: Mapping[str, Any], helm: str = "helm") -> list[Problem]:
    """What the schemas of a chart and its dependencies refuse in ``user_values`` over the defaults.

    The chart's own rules in templates/validate.yaml are not looked at: only a render knows them. ``helm`` as
    in `bireme.values.coalesce`. Raises BiremeError when the chart cannot be read or its schema is no schema.
    """
    chart, values = coalesce_chart(load_chart(chart_dir), user_values, helm)
    return list(dict.fromkeys(_chart_problems(chart, values, ())))


def _chart_problems(chart: Chart, values: Mapping[str, Any], prefix: KeyPath) -> Iterator[Problem]:
    if chart.schema is not None:
        try:
            jsonschema.Draft202012Validator.check_schema(chart.schema)
        except jsonschema.SchemaError as broken:
            raise BiremeError(f"{chart.name}/{BUNDLE} is not a JSON Schema: {broken.message}") from broken
        validator = jsonschema.Draft202012Validator(chart.schema)
        for error in sorted(validator.iter_errors(values), key=_place):
            yield from _explain(error, chart, prefix)
    for dependency in chart.dependencies:
        yield from _chart_problems(dependency, values[dependency.name], (*prefix, dependency.name))


# A jsonschema.ValidationError; its stubs leave what is looked at here open.
Error = Any
_TYPES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "null",
}


def _place(error: Error) -> list[str]:
    return [str(key) for key in error.absolute_path]


def _explain(error: Error, chart: Chart, prefix: KeyPath) -> Iterator[Problem]:
    where = _written([*prefix, *error.absolute_path])
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = list(error.schema.get("properties", {}))
        for key in error.instance:
            if key not in known and not _matches(key, error.schema.get("patternProperties", {})):
                yield _unknown(key, known, error, chart, prefix)
    elif error.validator == "required":
        for key in error.validator_value:
            if key not in error.instance:
                path = _written([*prefix, *error.absolute_path, key])
                yield Problem(path, f"`{path}` is missing: {chart.name} needs it")
    elif error.validator in {"anyOf", "oneOf"} and error.context:
        yield from _alternatives(error, chart, prefix, where)
    else:
        wanted = _WANTED.get(str(error.validator), _wanted_otherwise)(error)
        words = _words(chart, error.absolute_path) if error.validator == "pattern" else ""
        is_key = "propertyNames" in error.absolute_schema_path
        what = f"a key of `{where}`" if is_key else f"`{where or chart.name}`"
        yield Problem(where, f"{what} is {_given(error.instance)}, it must {wanted}{words}")


def _alternatives(error: Error, chart: Chart, prefix: KeyPath, where: str) -> Iterator[Problem]:
    """Of several shapes, the complaints of the nearest one; of plain types, all that were possible."""
    if all(each.validator in {"type", "const", "enum"} and not each.relative_path for each in error.context):
        wanted = [_WANTED[str(each.validator)](each).removeprefix("be ") for each in error.context]
        yield Problem(where, f"`{where}` is {_given(error.instance)}, it must be {' or '.join(wanted)}")
        return
    branches: dict[Any, list[Error]] = {}
    for each in error.context:
        branches.setdefault(each.relative_schema_path[0], []).append(each)
    nearest = min(
        branches.values(), key=lambda found: (any(_is_about_type(each) for each in found), len(found))
    )
    for each in nearest:
        yield from _explain(each, chart, prefix)


def _is_about_type(error: Error) -> bool:
    return error.validator == "type" and not error.relative_path


def _unknown(key: str, known: Iterable[str], error: Error, chart: Chart, prefix: KeyPath) -> Problem:
    parents = [*prefix, *error.absolute_path]
    path = _written([*parents, key])
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    hint = (
        f": did you mean `{_written([*parents, close[0]])}`?"
        if close
        else f": it takes {_listed(sorted(known))}"
    )
    return Problem(path, f"`{path}` is not a value of {chart.name}{hint if close or known else ''}")


def _listed(names: list[str]) -> str:
    shown = [f"`{name}`" for name in names]
    return ", ".join(shown) if len(shown) <= 12 else f"{', '.join(shown[:12])}, … (see its README)"


def _matches(key: str, patterns: Iterable[str]) -> bool:
    return any(re.search(pattern, key) for pattern in patterns)


def _written(path: Iterable[str | int]) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + part.replace(".", r"\.")
    return text


def _given(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _types(error: Error) -> str:
    wanted = error.validator_value
    return "be " + " or ".join(
        _TYPES.get(name, name) for name in ([wanted] if isinstance(wanted, str) else wanted)
    )


def _words(chart: Chart, path: Iterable[str | int]) -> str:
    """What the schema says the key at ``path`` is for: a pattern alone tells people little."""
    schema: Any = chart.schema
    for part in path:
        schema = _resolved(chart, schema).get("properties", {}).get(part)
    words = _resolved(chart, schema).get("description")
    return f" ({words})" if words else ""


def _resolved(chart: Chart, schema: Any) -> Mapping[str, Any]:
    """``schema`` with what it refers to."""
    if not isinstance(schema, dict):
        return {}
    if "$ref" in schema and chart.schema is not None:
        name = str(schema["$ref"]).removeprefix(_DEFS)
        return {**chart.schema.get("$defs", {}).get(name, {}), **schema}
    return schema


def _choice(error: Error) -> str:
    return "be one of " + ", ".join(json.dumps(value) for value in error.validator_value)


def _not(error: Error) -> str:
    refused = error.validator_value
    if isinstance(refused, dict) and "const" in refused:
        return f"be anything but {json.dumps(refused['const'])}"
    if isinstance(refused, dict) and "required" in refused:
        return "not have " + " together with ".join(f"`{key}`" for key in refused["required"])
    return f"not be like {json.dumps(refused)}"


def _says(text: str) -> Callable[[Error], str]:
    return lambda error: text.format(error.validator_value)


_WANTED: Mapping[str, Callable[[Error], str]] = {
    "type": _types,
    "enum": _choice,
    "const": lambda error: f"be {json.dumps(error.validator_value)}",
    "pattern": _says("match {}"),
    "minimum": _says("be at least {}"),
    "maximum": _says("be at most {}"),
    "exclusiveMinimum": _says("be more than {}"),
    "exclusiveMaximum": _says("be less than {}"),
    "multipleOf": _says("be a multiple of {}"),
    "minLength": lambda error: (
        "not be empty" if error.validator_value == 1 else f"have at least {error.validator_value} characters"
    ),
    "maxLength": _says("have at most {} characters"),
    "minItems": _says("have at least {} items"),
    "maxItems": _says("have at most {} items"),
    "uniqueItems": lambda error: "not hold the same item twice",
    "minProperties": _says("have at least {} keys"),
    "maxProperties": _says("have at most {} keys"),
    "dependentRequired": lambda error: (
        "have the keys that go together: "
        + "; ".join(f"{key} with {', '.join(others)}" for key, others in error.validator_value.items())
    ),
    "not": _not,
}


def _wanted_otherwise(error: Error) -> str:
    return f"follow the rule {error.validator} of its schema: {json.dumps(error.validator_value)}"


# --- parity of values.yaml and schema ---


def undescribed(chart_dir: Path) -> list[str]:
    """Where a chart's values.yaml, its ``# --`` comments and its schema do not say the same, as sentences.

    Every key has a property and words, every property a key. Keys that Helm injects (``global``, ``enabled``)
    need none, and what stands under a dependency's name is that chart's to describe.
    """
    chart = load_chart(chart_dir)
    if chart.schema is None:
        return [f"{chart.name} has no {BUNDLE}"]
    said = comments((chart_dir / "values.yaml").read_text(encoding="utf-8"))
    foreign = {str(entry.get("alias") or entry.get("name")) for entry in chart.requirements}
    parity = _Parity(chart, said, foreign)
    return [
        *parity.of_keys(chart.values, chart.schema, ()),
        *parity.of_properties(chart.values, chart.schema, ()),
    ]


@dataclass(frozen=True)
class _Parity:
    chart: Chart
    said: Mapping[KeyPath, str]
    foreign: set[str]

    def of_keys(self, values: Mapping[str, Any], schema: Any, path: KeyPath) -> Iterator[str]:
        """Keys of values.yaml that lack a property or words."""
        properties = _resolved(self.chart, schema).get("properties", {})
        for key, value in values.items():
            here = (*path, key)
            written = _written(here)
            if key not in properties:
                yield f"{self.chart.name}: `{written}` of values.yaml has no property in its schema"
                continue
            below = properties[key]
            if here not in self.said and not self._is_described_below(value, below):
                yield f"{self.chart.name}: `{written}` of values.yaml has no `# --` comment"
            # Without properties it is open: its keys are Kubernetes' own, or the user's.
            is_open = not _resolved(self.chart, below).get("properties")
            if isinstance(value, dict) and key not in self.foreign and not is_open:
                yield from self.of_keys(value, below, here)

    def of_properties(self, values: Mapping[str, Any], schema: Any, path: KeyPath) -> Iterator[str]:
        """Properties of the schema that values.yaml does not show."""
        for key, below in _resolved(self.chart, schema).get("properties", {}).items():
            here = (*path, key)
            if key not in values:
                if len(here) > 1 or key not in {GLOBAL, "enabled", *self.foreign}:
                    written = _written(here)
                    yield f"{self.chart.name}: property `{written}` of its schema is not in values.yaml"
            elif isinstance(values[key], dict) and values[key] and key not in self.foreign:
                yield from self.of_properties(values[key], below, here)

    def _is_described_below(self, value: Any, schema: Any) -> bool:
        if isinstance(value, dict) and value:
            return True  # a section: its keys are looked at one by one
        properties = _resolved(self.chart, schema).get("properties", {})
        return bool(properties) and all(
            "description" in _resolved(self.chart, each) for each in properties.values()
        )


# --- patterns ---

_TOKEN = re.compile(
    r"""\\(?:x\{[0-9A-Fa-f]+\}|x[0-9A-Fa-f]{2}|.)          # an escape
      | \[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]            # a character class
      | \(\?(?:P[<=>]|<[=!]?|[a-zA-Z-]*[:)]|.)             # a group with a meaning of its own
      | (?:[*+?]|\{\d*,?\d*\})\+                           # a quantifier that does not give back
      | \{\d+(?:,\d*)?\}                                   # a count
    """,
    re.VERBOSE,
)
_ESCAPES = re.compile(r"\\(?:[dDwWsSbBAnrtfv]|x[0-9A-Fa-f]{2}|[^\w\s])")
_GROUPS = re.compile(r"\(\?(?:P<|[ims-]*[:)])")
_MOST_REPEATS = 1000


def foreign_patterns(schema: Any) -> list[str]:
    """Patterns of a schema that RE2 (Helm) and Python do not both know, with the part that is foreign."""
    return [f"{pattern}: {part}" for pattern in _patterns(schema) for part in _foreign_parts(pattern)]


def _patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        if isinstance(schema.get("patternProperties"), dict):
            yield from schema["patternProperties"]
        for value in schema.values():
            yield from _patterns(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _patterns(item)


def _foreign_parts(pattern: str) -> Iterator[str]:
    try:
        with warnings.catch_warnings(action="ignore"):  # about POSIX classes, which are named below
            re.compile(pattern)
    except re.error as error:
        yield f"Python refuses it ({error.msg})"
        return
    for token in (found.group() for found in _TOKEN.finditer(pattern)):
        if token.startswith("\\") and not _ESCAPES.fullmatch(token):
            yield f"{token} is not in both"
        elif token.startswith("["):
            inner = re.findall(r"\\x[0-9A-Fa-f]{2}|\\.", token)
            yield from (f"{escape} is not in both" for escape in inner if not _ESCAPES.fullmatch(escape))
            if "[:" in token[1:]:
                yield f"{token}: Python has no POSIX classes"
        elif token.startswith("(?") and not _GROUPS.fullmatch(token):
            yield f"{token} is not in both"
        elif token[0] in "*+?{" and token.endswith("+"):
            yield f"{token} is possessive"
        elif token.startswith("{") and max(map(int, re.findall(r"\d+", token))) > _MOST_REPEATS:
            yield f"{token} repeats more than {_MOST_REPEATS} times"
