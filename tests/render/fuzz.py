"""Every key of every schema, with texts and types that could leave their field.

What the schema refuses must be refused with a sentence. What it accepts is rendered by Helm: the value is in
its field and nowhere else, or a rule refuses it with a sentence. For that each render is held against those
of two harmless values: where these two differ is the field, and all else must be the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import jsonschema

from bireme.core.manifests import Manifest
from bireme.core.paths import Paths
from bireme.helm import ChartValues, Render, Renderer, RenderError, RenderRequest
from bireme.helm import values as value_files
from bireme.schemas.problems import explain, resolved

MARK = "zq9"
TEXTS: Sequence[Any] = (
    "zq9; x",
    "zq9 #",
    "!zq9",
    "&zq9",
    "*zq9",
    "zq9:",
    "- zq9",
    "zq9\n---\nkind: Evil",
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
    "off",
    "1:30",
    "0o17",
    ".inf",
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
# Two of each kind that a key may take; the first that its schema accepts are what others are held against.
HARMLESS: Sequence[tuple[Any, Any]] = (
    ("zq9h", "zq9k"),
    ("/zq9h", "/zq9k"),
    ("zq9.h/zq9h", "zq9.h/zq9k"),
    ("11", "12"),
    (11, 12),
)
# These switch something off, or say that something is not there.
ABSENT: Sequence[Any] = ("", "-", 0, -1)
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

# So many renders are in memory at a time, and so many keys have a value in one render.
BATCH, TOGETHER = 200, 8

Path_ = tuple[str | int, ...]


@dataclass(frozen=True)
class Trial:
    """One value at one key of a chart, or at several keys, on top of values with which it renders."""

    chart: str
    paths: tuple[Path_, ...]
    value: Any

    def __str__(self) -> str:
        keys = ",".join(".".join(map(str, path)) for path in self.paths)
        return f"{self.chart} {keys}={json.dumps(self.value)}"

    def with_value(self, value: Any) -> Trial:
        """Another value at the same keys."""
        return Trial(self.chart, self.paths, value)

    def parts(self, size: int) -> list[Trial]:
        """The same value at ``size`` keys at a time."""
        starts = range(0, len(self.paths), size)
        return [Trial(self.chart, self.paths[start : start + size], self.value) for start in starts]


class Fuzzer:
    """The trials of all charts, and what becomes of them."""

    def __init__(self, paths: Paths, renders: Renderer) -> None:
        self._renders = renders
        self._refused: dict[str, bool] = {}
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
        self._merged = {
            name: _without_nulls(
                value_files.merge(self._defaults[name], self._base[name]), self._defaults[name]
            )
            for name in self._charts
        }

    def trials(self) -> list[Trial]:
        """Every key of every schema with every text and type."""
        values = [*TEXTS, *LOOKALIKES, *TYPES]
        return [
            Trial(chart, (path,), value)
            for chart, schema in self._schemas.items()
            for path in sorted(set(_paths(schema, schema, self._merged[chart], ())), key=str)
            for value in values
            if path[0] not in FREE
        ]

    def refused_by_schema(self, trial: Trial) -> bool:
        """Whether the schema refuses it. Raises AssertionError if it has no sentence for that."""
        (path,) = trial.paths
        key = str(path[0])
        merged = self._merged[trial.chart]
        tried = _without_nulls(_with({key: merged.get(key)}, path, trial.value), self._defaults[trial.chart])
        values = {each: merged[each] for each in merged if each != key} | tried
        errors = list(self._validators[trial.chart, key].iter_errors(values))
        chart = ChartValues(trial.chart, values, self._schemas[trial.chart], ())
        sentences = [str(problem) for error in errors for problem in explain(error, chart)]
        assert all(sentences), f"{trial}: {sentences}"
        assert bool(sentences) == bool(errors), f"{trial}: refused without a sentence"
        return bool(errors)

    def all_faults(self, chart: str) -> Iterator[str]:
        """What is wrong with the outcome of any trial of ``chart``; standard error has the progress.

        A value is tried at several keys in one render, and at each alone where that is refused or wrong.
        """
        accepted = [
            each for each in self.trials() if each.chart == chart and not self.refused_by_schema(each)
        ]
        waiting, done = self._together(accepted), 0
        while waiting:
            batch, waiting = waiting[:BATCH], waiting[BATCH:]
            for trial, found in self._judged(batch):
                if found and len(trial.paths) > 1:
                    waiting = [*trial.parts(1), *waiting]
                else:
                    done += len(trial.paths)
                    yield from (f"{trial}: {fault}" for fault in found)
            print(f"{chart}: {done} of {len(accepted)} rendered", file=sys.stderr, flush=True)

    def faults(self, trials: Sequence[Trial]) -> Iterator[str]:
        """What is wrong with the outcomes of trials that the schema accepts."""
        for trial, found in self._judged(trials):
            yield from (f"{trial}: {fault}" for fault in found)

    def _together(self, trials: Sequence[Trial]) -> list[Trial]:
        """``trials`` with those of one value joined, where their keys take a harmless value together."""
        values: dict[Path_, list[Any]] = {}
        alone = []
        for trial in trials:
            if isinstance(trial.value, str) and self._harmless(trial):
                values.setdefault(trial.paths[0], []).append(trial.value)
            else:
                alone.append(trial)
        alike: dict[str, list[Path_]] = {}
        chart = trials[0].chart
        for path, taken in values.items():
            harmless = self._harmless(Trial(chart, (path,), taken[0]))[0].value
            alike.setdefault(json.dumps([taken, harmless]), []).append(path)
        joined = []
        for key, paths in alike.items():
            waiting = Trial(chart, tuple(paths), json.loads(key)[1]).parts(TOGETHER)
            while waiting:
                outcomes = self._outcomes(waiting)
                whole = [each for each in waiting if isinstance(outcomes[str(each)], Render)]
                joined += [each.with_value(value) for each in whole for value in values[paths[0]]]
                broken = [each for each in waiting if each not in whole]
                alone += [
                    each.with_value(value)
                    for each in broken
                    if len(each.paths) == 1
                    for value in values[paths[0]]
                ]
                waiting = [
                    half
                    for each in broken
                    if len(each.paths) > 1
                    for half in each.parts(len(each.paths) // 2)
                ]
        return [*joined, *alone]

    def _judged(self, trials: Sequence[Trial]) -> Iterator[tuple[Trial, list[str]]]:
        pairs = {str(trial): self._harmless(trial) for trial in trials}
        outcomes = self._outcomes([*trials, *(each for pair in pairs.values() for each in pair)])
        leaves = _Leaves()
        for trial in trials:
            outcome = outcomes[str(trial)]
            found = list(_faults(trial, outcome, leaves))
            if pairs[str(trial)] and isinstance(outcome, Render):
                one, other = pairs[str(trial)]
                twins = outcomes[str(one)], outcomes[str(other)]
                found += _misplaced(trial, outcome, (one, other), twins, leaves)
            yield trial, found

    def _outcomes(self, trials: Sequence[Trial]) -> dict[str, Render | RenderError]:
        asked = {str(each): each for each in trials}
        requests = [
            RenderRequest(
                self._charts[each.chart],
                reduce(
                    lambda values, path: _with(values, path, each.value), each.paths, self._base[each.chart]
                ),
            )
            for each in asked.values()
        ]
        return dict(zip(asked, self._renders.render_many(requests), strict=True))

    def _harmless(self, trial: Trial) -> tuple[Trial, ...]:
        """Two harmless values at the same keys, if these take such."""
        if not isinstance(trial.value, str | int | float) or isinstance(trial.value, bool):
            return ()
        if trial.value in ABSENT:
            return ()
        for pair in HARMLESS:
            if isinstance(pair[0], str) == isinstance(trial.value, str) and not any(
                self._refuses(trial.with_value(value)) for value in pair
            ):
                return trial.with_value(pair[0]), trial.with_value(pair[1])
        return ()

    def _refuses(self, harmless: Trial) -> bool:
        for part in harmless.parts(1):
            if str(part) not in self._refused:
                self._refused[str(part)] = self.refused_by_schema(part)
        return any(self._refused[str(part)] for part in harmless.parts(1))


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


def _with(values: Any, path: Path_, value: Any) -> Any:
    """``values`` with ``value`` at ``path``, in a copy of what is on the way. What is not there is made."""
    if not path:
        return value
    part, rest = path[0], path[1:]
    if isinstance(part, int):
        items = values if isinstance(values, list) else []
        return [_with(items[0] if items else None, rest, value), *items[1:]]
    known = values if isinstance(values, dict) else {}
    return {**known, part: _with(known.get(part), rest, value)}


def _without_nulls(values: Mapping[str, Any], defaults: Any) -> dict[str, Any]:
    """``values`` as Helm has them: a null takes a default away."""
    kept = {}
    for key, value in values.items():
        default = defaults.get(key) if isinstance(defaults, dict) else None
        if value is not None or default is None:
            kept[key] = _without_nulls(value, default) if isinstance(value, dict) else value
    return kept


def _faults(trial: Trial, outcome: Render | RenderError, leaves: _Leaves) -> Iterator[str]:
    if isinstance(outcome, RenderError):
        said = str(outcome)
        lines = said.splitlines()
        meant = "values don't meet" in outcome.raw or "execution error" in outcome.raw
        broken = any(words in said for words in BROKEN) and not outcome.by_rules
        if not lines or broken or not meant:
            yield f"refused by an accident: {said[:300]}"
        elif len(trial.paths) > 1 and not all(
            any(line.startswith(str(path[0])) for line in lines) for path in trial.paths
        ):
            yield "refused, but not at every key"
        return
    for manifest in outcome.manifests:
        if not manifest.metadata:
            yield f"{manifest.kind} has no metadata"
        for path, leaf in leaves.of(manifest).items():
            if path[-1:] and path[-1] in STRINGS and not isinstance(leaf, str):
                yield f"{manifest.kind} {'.'.join(map(str, path))} is {leaf!r}"
            for text in [leaf, *(part for part in path if isinstance(part, str))]:
                if (
                    isinstance(text, str)
                    and MARK in text
                    and isinstance(trial.value, str)
                    and not _whole(trial.value, text)
                ):
                    yield f"{manifest.kind} {'.'.join(map(str, path))} has a part of it: {text[:200]!r}"


def _misplaced(
    trial: Trial,
    render: Render,
    harmless: tuple[Trial, Trial],
    outcomes: tuple[Render | RenderError, Render | RenderError],
    leaves: _Leaves,
) -> Iterator[str]:
    """Where ``render`` differs from those of two harmless values though they agree, or lacks the value."""
    first, second = outcomes
    if isinstance(first, RenderError) or isinstance(second, RenderError):
        return
    texts = [_text(each.value) for each in (trial, *harmless)]
    forms = list(_forms(texts[0]))
    if not isinstance(trial.value, str):
        forms.append(f"{trial.value:g}")  # as Go writes a large number
    if len({len(each.manifests) for each in (render, first, second)}) > 1:
        yield f"{len(render.manifests)} objects, not {len(first.manifests)}"
        return
    for found, model, twin in zip(render.manifests, first.manifests, second.manifests, strict=True):
        if found is model and model is twin:
            continue
        places, expected, varied = (
            {_named(path, text): leaf for path, leaf in leaves.of(each).items()}
            for each, text in zip((found, model, twin), texts, strict=True)
        )
        for path in sorted(places.keys() ^ expected.keys(), key=str):
            had = "has no" if path in expected else "has a"
            yield f"{found.kind} {had} {'.'.join(map(str, path))}"
        for path in places.keys() & expected.keys():
            leaf, wanted = places[path], expected[path]
            where = f"{found.kind} {'.'.join(map(str, path))}"
            if wanted == varied.get(path, wanted):
                # A template may compute with a number, and so change other fields.
                changed = leaf != wanted or type(leaf) is not type(wanted)
                if changed and isinstance(trial.value, str):
                    yield f"{where} is {leaf!r:.100}, not {wanted!r:.100}"
            elif isinstance(leaf, str) != isinstance(wanted, str):
                yield f"{where} is {leaf!r:.100}, not of the type of {wanted!r:.100}"
            # A digest of the value may have the same letters, but not in the same place.
            elif (
                _text(wanted).replace(texts[1], texts[2]) == _text(varied[path])
                and not any(
                    _plain(_text(wanted)).replace(texts[1], form) == _plain(_text(leaf)) for form in forms
                )
                and not _in_proportion(trial.value, harmless[0].value, leaf, wanted)
            ):
                yield f"{where} is {leaf!r:.100}, with {texts[1]} it is {wanted!r:.100}"


def _in_proportion(value: Any, harmless: Any, leaf: Any, wanted: Any) -> bool:
    """Whether a template has multiplied the numbers by the same, such as seconds for milliseconds."""
    try:
        return float(leaf) * float(harmless) == float(wanted) * float(value)
    except (TypeError, ValueError):
        return False


_GO_ESCAPES = {"\\u003c": "<", "\\u003e": ">", "\\u0026": "&", "\\u2028": "\u2028"}


def _whole(value: str, text: str) -> bool:
    """Whether ``text`` has all of ``value``."""
    return any(form in _plain(text) for form in _forms(value))


def _forms(value: str) -> Sequence[str]:
    """``value`` as it is, as JSON of Go, or without space at its ends."""
    return (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], value.strip())


def _plain(text: str) -> str:
    for escape, character in _GO_ESCAPES.items():
        text = text.replace(escape, character)
    return text


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _named(path: Path_, text: str) -> Path_:
    """``path`` with a mark where a key is ``text``, or has it and no other reason to."""
    return tuple(
        part.replace(text, "<value>") if isinstance(part, str) and (MARK in text or part == text) else part
        for part in path
    )


_MANIFESTS_KEPT = 2_000


class _Leaves:
    """Texts, numbers, and maps and lists that have nothing, by their path; a manifest is read once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Manifest, dict[Path_, Any]]] = {}

    def of(self, manifest: Manifest) -> dict[Path_, Any]:
        if id(manifest) not in self._known:
            if len(self._known) == _MANIFESTS_KEPT:
                self._known.clear()
            self._known[id(manifest)] = manifest, dict(_leaves(manifest, ()))
        return self._known[id(manifest)][1]


def _leaves(value: Any, at: Path_) -> Iterator[tuple[Path_, Any]]:
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _leaves(below, (*at, key))
    elif isinstance(value, tuple) and value:
        for number, below in enumerate(value):
            yield from _leaves(below, (*at, number))
    else:
        yield at, value
