"""Schemas of the charts' values: bundled from their sources, and checked with sentences."""

from bireme.schemas.bundle import BUNDLE, bundled, drift, write
from bireme.schemas.problems import Problem, problems

__all__ = ["BUNDLE", "Problem", "bundled", "drift", "problems", "write"]
