"""Every key of every schema, with texts and types that could leave their field: python -m tests.render.fuzz.

What the schema refuses must be refused with a sentence. What it accepts is rendered by Helm: the value is in
its field and nowhere else, or a rule refuses it with a sentence.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema

from bireme.helm import ChartValues, Render, Renderer, RenderError, RenderRequest
from bireme.helm import values as value_files
from bireme.paths import Paths
from bireme.schemas import resolved
from bireme.schemas.problems import explain
from bireme.tools import Toolbox

MARK = "zq9"
TEXTS: Sequence[Any] = (
    "zq9; x",
    "zq9 #",
    "!zq9",
    "&zq9",
    "*zq9",
    "zq9:",
    "- zq9",
    "{zq9: b",
    "[zq9",
    "zq9\nkey: evil",
    "{{ .zq9 }}",
    "zq9'\"",
    "`zq9`",
    "%zq9",
    "\\zq9",
    "#zq9",
    "|zq9",
    ">zq9",
    "@zq9",
    "? zq9",
    "zq9\t",
    " zq9 ",
    "zq9\u2028é",
    "zq9\u0085b",
    "zq9\u009b",
    "zq9\x7f",
    "\x1bzq9",
    "\ufeffzq9",
    "/zq9: x",
    "/zq9 #",
    "zq9.zq9/zq9: x",
    "[bold]zq9[/]",
    "zq9,",
    "zq9}",
    "zq9 - x",
)
LOOKALIKES: Sequence[Any] = (
    "true",
    "010",
    "1e3",
    "null",
    "~",
    "",
    "0x1f",
    "2001-01-01",
    "<<",
    "-",
    "=",
    ".5",
    "0",
)
TYPES: Sequence[Any] = (
    None,
    True,
    0,
    -1,
    1.5,
    1e300,
    10**18,
    [],
    {},
    [[]],
    [{}],
    [None],
    {"a": None},
    {"a": []},
)
# Text of these is a template or YAML on purpose.
FREE = {"extraObjects"}
STRINGS = {
    "name",
    "namespace",
    "value",
    "image",
    "mountPath",
    "subPath",
    "claimName",
    "secretName",
    "key",
    "kind",
    "path",
    "apiVersion",
    "serviceAccountName",
    "priorityClassName",
    "schedulerName",
    "runtimeClassName",
    "storageClassName",
    "volumeName",
    "subdomain",
    "imagePullPolicy",
    "server",
    "workingDir",
    "volumeHandle",
    "driver",
}
BROKEN = (
    "nil pointer",
    "YAML parse error",
    "converting YAML",
    "can't evaluate",
    "wrong type",
    "reflect:",
    "goroutine",
    "error calling",
    "incompatible types",
    "invalid value; expected",
    "must be initialised",
)

Path_ = tuple[str | int, ...]


@dataclass(frozen=True)
class Trial:
    """One value at one key of a chart, on top of values with which it renders."""

    chart: str
    path: Path_
    value: Any

    def __str__(self) -> str:
        return f"{self.chart} {'.'.join(map(str, self.path))}={json.dumps(self.value)}"


class Fuzzer:
    """The trials of all charts, and what becomes of them."""

    def __init__(self, paths: Paths, renderer: Renderer) -> None:
        self._renderer = renderer
        self._charts = {
            file.parent.name: file.parent for file in sorted(paths.charts.glob("*/values.schema.json"))
        }
        self._schemas = {
            name: json.loads((folder / "values.schema.json").read_text())
            for name, folder in self._charts.items()
        }
        self._validators = {
            (name, key): jsonschema.Draft202012Validator(_about(schema, key))
            for name, schema in self._schemas.items()
            for key in schema["properties"]
        }
        self._defaults = {
            name: value_files.read_file(folder / "values.yaml") for name, folder in self._charts.items()
        }
        self._base = {name: value_files.read_file(_fullest(folder)) for name, folder in self._charts.items()}

    def trials(self) -> list[Trial]:
        """Every key of every schema with every text and type."""
        values = [*TEXTS, *LOOKALIKES, *TYPES]
        return [
            Trial(chart, path, value)
            for chart, schema in self._schemas.items()
            for path in sorted(set(_paths(schema, schema, self._merged(chart), ())), key=str)
            for value in values
            if path[0] not in FREE
        ]

    def _merged(self, chart: str) -> dict[str, Any]:
        return value_files.merge(self._defaults[chart], self._base[chart])

    def refused_by_schema(self, trial: Trial) -> bool:
        """Whether the schema refuses it. Raises AssertionError if it has no sentence for that."""
        key = str(trial.path[0])
        values = _without_nulls(
            _with(self._merged(trial.chart), trial.path, trial.value), self._defaults[trial.chart]
        )
        errors = list(self._validators[trial.chart, key].iter_errors(values))
        chart = ChartValues(trial.chart, values, self._schemas[trial.chart], ())
        sentences = [str(problem) for error in errors for problem in explain(error, chart)]
        assert all(sentences), f"{trial}: {sentences}"
        assert bool(sentences) == bool(errors), f"{trial}: refused without a sentence"
        return bool(errors)

    def faults(self, trials: Sequence[Trial]) -> Iterator[str]:
        """What is wrong with the outcomes of trials that the schema accepts."""
        requests = [
            RenderRequest(self._charts[each.chart], _with(self._base[each.chart], each.path, each.value))
            for each in trials
        ]
        for trial, outcome in zip(trials, self._renderer.render_many(requests), strict=True):
            for fault in _faults(trial, outcome):
                yield f"{trial}: {fault}"


def _fullest(chart: Path) -> Path:
    files = sorted((chart / "ci").glob("*-values.yaml"))
    return next(
        (file for file in files if file.stem.startswith("full")),
        max(files, key=lambda file: file.stat().st_size),
    )


def _about(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    """``schema`` without what it says of other keys, whose values a trial leaves as they are."""
    others = dict.fromkeys(schema["properties"], True)
    return {**schema, "properties": {**others, key: schema["properties"][key]}}


def _paths(root: Any, schema: Any, values: Any, at: Path_) -> Iterator[Path_]:
    """The keys of ``schema``, and those inside what ``values`` has in lists and maps."""
    found = resolved(root, schema)
    for key, below in found.get("properties", {}).items():
        yield (*at, key)
        yield from _paths(root, below, values.get(key) if isinstance(values, dict) else None, (*at, key))
    items = found.get("items")
    if isinstance(items, dict):
        yield (*at, 0)
        yield from _paths(root, items, values[0] if isinstance(values, list) and values else None, (*at, 0))
    extra = found.get("additionalProperties")
    if isinstance(extra, dict):
        names = list(values) if isinstance(values, dict) and values else ["zq"]
        yield (*at, names[0])
        yield from _paths(
            root, extra, values.get(names[0]) if isinstance(values, dict) else None, (*at, names[0])
        )


def _with(values: Mapping[str, Any], path: Path_, value: Any) -> dict[str, Any]:
    """``values`` with ``value`` at ``path``. Lists and maps on the way that are not there are made."""
    result = copy.deepcopy(dict(values))
    place: Any = result
    for part, following in pairwise(path):
        made: Any = [] if isinstance(following, int) else {}
        if isinstance(place, list):
            if not place:
                place.append(made)
            elif not isinstance(place[0], type(made)):
                place[0] = made
            place = place[0]
        else:
            if not isinstance(place.get(part), type(made)):
                place[part] = made
            place = place[part]
    if isinstance(place, list):
        place[:1] = [value]
    else:
        place[path[-1]] = value
    return result


def _without_nulls(values: Mapping[str, Any], defaults: Any) -> dict[str, Any]:
    """``values`` as Helm has them: a null takes a default away."""
    kept = {}
    for key, value in values.items():
        default = defaults.get(key) if isinstance(defaults, dict) else None
        if value is not None or default is None:
            kept[key] = _without_nulls(value, default) if isinstance(value, dict) else value
    return kept


def _faults(trial: Trial, outcome: Render | RenderError) -> Iterator[str]:
    if isinstance(outcome, RenderError):
        said = str(outcome)
        if not said.strip() or (any(words in said for words in BROKEN) and not outcome.by_rules):
            yield f"refused by an accident: {said[:300]}"
        elif "values don't meet" in outcome.raw:
            pass
        elif not outcome.by_rules and "execution error" not in outcome.raw:
            yield f"refused by an accident: {said[:300]}"
        return
    for manifest in outcome.manifests:
        content = manifest.thaw()
        if not isinstance(content.get("metadata"), dict):
            yield f"{manifest.kind} has no metadata"
        for path, leaf in _leaves(content, ()):
            key = path[-1]
            if key in STRINGS and not isinstance(leaf, str):
                yield f"{manifest.kind} {'.'.join(map(str, path))} is {leaf!r}"
            for text in [leaf, *(part for part in path if isinstance(part, str))]:
                if (
                    isinstance(text, str)
                    and MARK in text
                    and isinstance(trial.value, str)
                    and not _whole(trial.value, text)
                ):
                    yield f"{manifest.kind} {'.'.join(map(str, path))} has a part of it: {text[:200]!r}"


_GO_ESCAPES = {"\\u003c": "<", "\\u003e": ">", "\\u0026": "&", "\\u2028": "\u2028"}


def _whole(value: str, text: str) -> bool:
    """Whether ``text`` has all of ``value``: as it is, as JSON of Go, or without space at its ends."""
    for escape, character in _GO_ESCAPES.items():
        text = text.replace(escape, character)
    return any(
        form in text
        for form in (
            value,
            json.dumps(value)[1:-1],
            json.dumps(value, ensure_ascii=False)[1:-1],
            value.strip(),
        )
    )


def _leaves(value: Any, at: Path_) -> Iterator[tuple[Path_, Any]]:
    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from _leaves(below, (*at, key))
    elif isinstance(value, list) and value:
        for number, below in enumerate(value):
            yield from _leaves(below, (*at, number))
    elif not isinstance(value, dict | list):
        yield at, value


def main(charts: Sequence[str]) -> None:
    paths = Paths.discover()
    fuzzer = Fuzzer(paths, Renderer(Toolbox(paths), paths))
    trials = [each for each in fuzzer.trials() if not charts or each.chart in charts]
    random.Random(0).shuffle(trials)
    accepted = [each for each in trials if not fuzzer.refused_by_schema(each)]
    print(f"{len(trials)} trials, {len(accepted)} accepted by the schemas", flush=True)
    for start in range(0, len(accepted), 100):
        for fault in fuzzer.faults(accepted[start : start + 100]):
            print(fault, flush=True)
        print(f"{min(start + 100, len(accepted))} of {len(accepted)} rendered", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
