"""What becomes of each field of other manifests: the rows of fields.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as defaulted
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, Literal

import yaml


@dataclass(frozen=True)
class Row:
    """What becomes of the fields that are like ``field``; fields.yaml says what the others mean."""

    field: str
    value: str = ""
    how: Literal["set", "map", "list", "name", "env", "whole", "plan", "seen"] = "set"
    why: str = ""
    lost: str = ""
    also: Mapping[str, Any] = defaulted(default_factory=dict)

    def name_in(self, key: str) -> str:
        """What * stands for in ``key``."""
        return key.removeprefix(self.field.rstrip("*"))


@cache
def _tables() -> Any:
    text = resources.files("bireme.adopt").joinpath("fields.yaml").read_text("utf-8")
    return yaml.load(text, yaml.CSafeLoader)


def table(name: str) -> Any:
    """One table of fields.yaml."""
    return _tables()[name]


@cache
def _rows(kind: str) -> Sequence[Row]:
    names = (kind,) if kind == "pods" else (kind, "all")
    return [Row(**each) for name in names for each in table("kinds")[name]]


def row_of(key: str, kind: str = "pods") -> Row | None:
    """The row of a part of a pod template, or with ``kind`` of a field of such a job outside its pods."""
    return next((row for row in _rows(kind) if fnmatchcase(key, row.field)), None)
