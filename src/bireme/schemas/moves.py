"""Values that moved or went from one release to another, and values files that follow them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from bireme.core.errors import BiremeError
from bireme.helm.yaml import refuse_bombs


@dataclass(frozen=True)
class Move:
    """A value that has another name since ``release``, beside the old one, and what its values became."""

    release: str
    parents: tuple[str, ...]
    old: str
    new: str
    values: Mapping[bool | int | str, str]

    @property
    def before(self) -> str:
        """The old name as users write it."""
        return ".".join((*self.parents, self.old))

    @property
    def after(self) -> str:
        """The new name as users write it."""
        return ".".join((*self.parents, self.new))


MOVES = (Move("0.2.0", ("kueue",), "elastic", "admission", {True: "elastic", False: "whole"}),)
GONE = {
    "autoscale.every": "since 0.3.0: remove it; charts/autoscaler looks every `everySeconds`",
    "autoscale.weight": "since 0.3.0: remove it; jobs of one priority share free places evenly",
    "autoscale.timeZone": "since 0.3.0: give each of `autoscale.schedules` its `timeZone`",
}
"""Values that no chart takes any more: since when, and what to do."""


def moved(name: str) -> Move | None:
    """The move of the value with this old name, for example ``kueue.elastic``; None if it never moved."""
    return next((each for each in MOVES if each.before == name), None)


def migrated(text: str, name: str) -> tuple[str, tuple[str, ...]]:
    """A values file as today's charts take it, and a sentence for each value that moved.

    Only the names and values that moved change; comments and order stay. ``name`` is the file's, for
    messages. Raises BiremeError for text that is not a mapping in YAML, and for a value that cannot follow or
    is gone.
    """
    refuse_bombs(text, name)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise BiremeError(f"{name} is no YAML: {' '.join(str(error).split())}") from error
    if root is None:
        return text, ()
    if not isinstance(root, yaml.MappingNode):
        raise BiremeError(f"{name} is not a values file: it must be a mapping of keys to values")
    for before, instead in GONE.items():
        for key, _ in _found(root, before):
            raise BiremeError(f"{name}, line {key.start_mark.line + 1}: {before} is gone {instead}")
    edits: list[tuple[int, int, str]] = []
    said = []
    for move in MOVES:
        for key, value in _found(root, move.before):
            if _found(root, move.after):
                raise BiremeError(f"{name} has both {move.before} and {move.after}: remove {move.before}")
            edits += [
                (key.start_mark.index, key.end_mark.index, move.new),
                (value.start_mark.index, value.end_mark.index, _value(move, key, value, name)),
            ]
            line = key.start_mark.line + 1
            said.append(f"{name}, line {line}: {move.before} is {move.after} since {move.release}")
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text, tuple(said)


def _found(root: yaml.MappingNode, path: str) -> list[tuple[yaml.Node, yaml.Node]]:
    """The key and the value at ``path``, if the file has it."""
    *parents, last = path.split(".")
    parent: Any = root
    for part in parents:
        parent = next((value for key, value in parent.value if key.value == part), None)
        if not isinstance(parent, yaml.MappingNode):
            return []
    return [(key, value) for key, value in parent.value if key.value == last][-1:]


def _value(move: Move, key: yaml.Node, value: yaml.Node, name: str) -> str:
    place = f"{name}, line {key.start_mark.line + 1}: {move.before}"
    if value.start_mark.index < key.end_mark.index:
        # An alias: the node is that of its anchor, which others may use as well.
        raise BiremeError(f"{place} refers to a YAML anchor: write its value there")
    given = yaml.SafeLoader("").construct_object(value, deep=True)
    if not isinstance(given, bool | int | str) or given not in move.values:
        known = " or ".join(json.dumps(each) for each in move.values)
        raise BiremeError(
            f"{place} is {json.dumps(given, default=str)}, and only {known} can become {move.after}"
        )
    return move.values[given]
