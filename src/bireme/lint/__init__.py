"""Checks for authors of charts."""

from bireme.lint.duplicates import duplicates
from bireme.lint.kubeconform import kubeconform
from bireme.lint.names import name_problems
from bireme.lint.parity import undescribed
from bireme.lint.patterns import foreign_patterns

__all__ = ["duplicates", "foreign_patterns", "kubeconform", "name_problems", "undescribed"]
