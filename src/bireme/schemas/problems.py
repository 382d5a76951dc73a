"""What a chart's schema refuses in given values, as sentences."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from bireme.core.errors import BiremeError
from bireme.core.manifests import within
from bireme.helm import ChartValues, Renderer, RenderError, RenderRequest
from bireme.schemas.bundle import BUNDLE, KeyPath
from bireme.schemas.moves import GONE, SINCE, moved


@dataclass(frozen=True)
class Problem:
    """One thing a schema refuses: ``path`` as users write it (``shm.size``; "" is the root)."""

    path: str
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def problems(renderer: Renderer, request: RenderRequest) -> list[Problem]:
    """What the schemas of a chart and its dependencies refuse in the values of ``request`` and the defaults.

    The chart's own rules in templates/validate.yaml are not checked: only a render applies them. Raises
    BiremeError when the chart cannot be read or its schema is not a JSON Schema.
    """
    return list(dict.fromkeys(_chart_problems(renderer.values(request), ())))


def refusals(renderer: Renderer, request: RenderRequest) -> list[str]:
    """All refusals of the values of ``request``: those of the schemas, then those of the rules.

    Rules are not asked about a key that a schema refuses: they would read a value of the wrong type. Raises
    BiremeError as `problems` does.
    """
    by_schema = problems(renderer, request)
    found = [str(problem) for problem in by_schema]
    try:
        renderer.render(replace(request, skips_schema=bool(found)))
    except RenderError as error:
        refused = [problem.path.partition("[")[0] for problem in by_schema]
        if not found or error.by_rules:
            lines = str(error).splitlines()
            found += [line for line in lines if not _is_about(line.partition(":")[0], refused)]
    return found


def _is_about(key: str, paths: Iterable[str]) -> bool:
    return any(f"{key}.".startswith(f"{path}.") or f"{path}.".startswith(f"{key}.") for path in paths)


def shortened(sentences: Sequence[str]) -> str:
    """``sentences``, one a line: at most ten, then how many more there are."""
    left = len(sentences) - _SHOWN
    lines = [*sentences[:_SHOWN], *([f"and {left:,} more"] if left > 0 else [])]
    return "\n".join(lines)


_SHOWN = 10


@cache
def _flaw(schema: str) -> str:
    """Why a JSON text is no JSON Schema, "" for one that is."""
    import jsonschema

    try:
        jsonschema.Draft202012Validator.check_schema(json.loads(schema))
    except jsonschema.SchemaError as broken:
        return broken.message
    return ""


def _chart_problems(chart: ChartValues, prefix: KeyPath) -> Iterator[Problem]:
    if chart.schema is not None:
        if flaw := _flaw(json.dumps(chart.schema)):
            raise BiremeError(f"{chart.name}/{BUNDLE} is not a JSON Schema: {flaw}")
        yield from violations(chart, prefix)
    for dependency in chart.dependencies:
        yield from _chart_problems(dependency, (*prefix, dependency.name))


def violations(chart: ChartValues, prefix: KeyPath = ()) -> Iterator[Problem]:
    """What the schema of ``chart`` refuses in its values, in the order of their places."""
    import jsonschema

    validator = jsonschema.Draft202012Validator(chart.schema or {})
    for error in sorted(
        validator.iter_errors(chart.values), key=lambda each: list(map(str, each.absolute_path))
    ):
        yield from explain(error, chart, prefix)


# jsonschema.ValidationError, whose type stubs lack the attributes that are read here.
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
# What to write for values that people know in another form.
_INSTEAD = {"image": ": --image takes it as one text", "imagePullSecrets": ": the name of a Secret"}


def explain(error: Error, chart: ChartValues, prefix: KeyPath = ()) -> Iterator[Problem]:
    """The sentences for one error of jsonschema in the values of ``chart``."""
    where = written([*prefix, *error.absolute_path])
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = list(error.schema.get("properties", {}))
        if not where and {"apiVersion", "kind"} <= error.instance.keys():
            kind = _given(error.instance["kind"])
            yield Problem("kind", f"this is a manifest of kind {kind}, not values of {chart.name}: {_PAGE}")
            return
        patterns = error.schema.get("patternProperties", {})
        for key in error.instance:
            if key not in known and not any(re.search(pattern, key) for pattern in patterns):
                yield _unknown(key, known, error, chart, prefix)
    elif error.validator == "required":
        for key in error.validator_value:
            if key not in error.instance:
                path = written([*prefix, *error.absolute_path, key])
                yield Problem(path, f"`{path}` is missing: {chart.name} needs it")
    elif error.validator in {"anyOf", "oneOf"} and error.context:
        yield from _alternatives(error, chart, prefix, where)
    else:
        wanted = _WANTED.get(str(error.validator), _any_other_rule)(error)
        # A pattern alone explains little.
        text = _at(chart, error.absolute_path).get("description") if error.validator == "pattern" else ""
        description = f" ({text})" if text else ""
        instead = _INSTEAD.get(where.partition("[")[0], "") if error.validator == "type" else ""
        is_key = "propertyNames" in error.absolute_schema_path
        what = f"a key of `{where}`" if is_key else f"`{where or chart.name}`"
        yield Problem(where, f"{what} is {_given(error.instance)}, it must {wanted}{description}{instead}")


def _alternatives(error: Error, chart: ChartValues, prefix: KeyPath, where: str) -> Iterator[Problem]:
    """The problems with the alternative that comes nearest, or one that lists alternatives of plain types."""
    if all(each.validator in {"type", "const", "enum"} and not each.relative_path for each in error.context):
        wanted = [_WANTED[str(each.validator)](each).removeprefix("be ") for each in error.context]
        yield Problem(where, f"`{where}` is {_given(error.instance)}, it must be {' or '.join(wanted)}")
        return
    branches: dict[Any, list[Error]] = {}
    for each in error.context:
        branches.setdefault(each.relative_schema_path[0], []).append(each)

    def distance(found: list[Error]) -> tuple[bool, int]:
        return any(each.validator == "type" and not each.relative_path for each in found), len(found)

    for each in min(branches.values(), key=distance):
        yield from explain(each, chart, prefix)


def _unknown(key: str, known: Iterable[str], error: Error, chart: ChartValues, prefix: KeyPath) -> Problem:
    parents = [*prefix, *error.absolute_path]
    path = written([*parents, key])
    if new := moved(chart.name, written([*error.absolute_path, key])):
        new = f"{written(prefix)}.{new}" if prefix else new
        sentence = f"`{path}` is `{new}` since {SINCE}: `bireme migrate {chart.name}` changes values files"
        return Problem(path, sentence)
    if instead := GONE.get(path.removeprefix("elastic.")):
        return Problem(path, f"`{path}` is gone {instead}")
    known = list(known)
    if meant := "" if parents else _meant(key, chart):
        hint = meant
    elif (
        near := difflib.get_close_matches(key, known, 1, 0.8)
        or (not error.absolute_path and _deeper(key, chart))
        or difflib.get_close_matches(key, known, 1, 0.6)
    ):
        hint = f": did you mean `{written([*parents, *near])}`?"
    else:
        hint = f": it takes {_listed(sorted(known))}" if known else ""
    return Problem(path, f"`{path}` is not a value of {chart.name}{hint}")


def _deeper(key: str, chart: ChartValues) -> KeyPath:
    """The one place nearest the root at which the chart's values have ``key``, empty for none or several."""
    level: list[tuple[KeyPath, Any]] = [((), chart.schema)]
    while level and len(level) < 5000:
        level = [
            ((*path, name), each)
            for path, schema in level
            for name, each in resolved(chart.schema, schema).get("properties", {}).items()
        ]
        found = [path for path, _ in level if path[-1] == key]
        if found:
            return found[0] if len(found) == 1 else ()
    return ()


_PAGE = "docs/coming-from.md says what its fields become"
_WORDS = Path(__file__).with_name("words.yaml")


def _meant(key: str, chart: ChartValues) -> str:
    """What words.yaml says of ``key`` for ``chart``: the first place that it has, or a sentence."""
    for ours, words in yaml.safe_load(_WORDS.read_text(encoding="utf-8")).items():
        if key in words:
            places = re.findall("`([^`]+)`", ours)
            there = [f": here it is `{place}`" for place in places if _at(chart, place.split("."))]
            return there[0] if there else "" if places else f": {ours}"
    return ""


def _at(chart: ChartValues, path: Iterable[str | int]) -> Mapping[str, Any]:
    """The schema of the key at ``path``, {} where the chart has none."""
    schema: Any = chart.schema
    for part in path:
        schema = resolved(chart.schema, schema).get("properties", {}).get(part)
    return resolved(chart.schema, schema)


def _listed(names: list[str]) -> str:
    shown = [f"`{name}`" for name in names]
    return ", ".join(shown) if len(shown) <= 12 else f"{', '.join(shown[:12])}, … (see its README)"


def written(path: Iterable[str | int]) -> str:
    """``path`` as users write it: ``shm.size``, ``sources[0].url``."""
    parts = (f"[{part}]" if isinstance(part, int) else "." + part.replace(".", r"\.") for part in path)
    return "".join(parts).removeprefix(".")


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


def resolved(root: Mapping[str, Any] | None, schema: Any) -> Mapping[str, Any]:
    """``schema`` with what it refers to in the document ``root``, {} for anything but a mapping."""
    if not isinstance(schema, dict):
        return {}
    reference = str(schema.get("$ref", ""))
    found = within(root, *reference[2:].split("/")) if reference.startswith("#/") else {}
    return {**found, **schema}


def _not(error: Error) -> str:
    refused = error.validator_value
    if isinstance(refused, dict) and "const" in refused:
        return f"be anything but {json.dumps(refused['const'])}"
    if isinstance(refused, dict) and "required" in refused:
        return "not have " + " together with ".join(f"`{key}`" for key in refused["required"])
    return f"not be like {json.dumps(refused)}"


_WANTED: Mapping[str, Callable[[Error], str]] = {
    "type": _types,
    "enum": lambda error: "be one of " + ", ".join(map(json.dumps, error.validator_value)),
    "const": lambda error: f"be {json.dumps(error.validator_value)}",
    "pattern": lambda error: f"match {error.validator_value}",
    "minimum": lambda error: f"be at least {error.validator_value}",
    "maximum": lambda error: f"be at most {error.validator_value}",
    "exclusiveMinimum": lambda error: f"be more than {error.validator_value}",
    "minLength": lambda error: (
        "not be empty" if error.validator_value == 1 else f"have at least {error.validator_value} characters"
    ),
    "maxLength": lambda error: f"have at most {error.validator_value} characters",
    "minItems": lambda error: f"have at least {error.validator_value} items",
    "maxItems": lambda error: f"have at most {error.validator_value} items",
    "uniqueItems": lambda error: "not hold the same item twice",
    "not": _not,
}


def _any_other_rule(error: Error) -> str:
    return f"follow the rule {error.validator} of its schema: {json.dumps(error.validator_value)}"
