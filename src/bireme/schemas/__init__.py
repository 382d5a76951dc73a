"""Schemas of the charts' values: bundled from their sources, and checked with sentences."""

from bireme.schemas.bundle import BUNDLE, KeyPath, bundled, comments, drift, write
from bireme.schemas.moves import MOVES, migrated
from bireme.schemas.problems import Problem, problems, refusals, resolved, shortened, written

__all__ = [
    "BUNDLE",
    "MOVES",
    "KeyPath",
    "Problem",
    "bundled",
    "comments",
    "drift",
    "migrated",
    "problems",
    "refusals",
    "resolved",
    "shortened",
    "write",
    "written",
]
