"""`bireme lint`: checks for authors of charts."""

from bireme.lint.files import file_findings
from bireme.lint.findings import Finding
from bireme.lint.kubeconform import kubeconform
from bireme.lint.linter import Linter, find_charts, object_problems

__all__ = ["Finding", "Linter", "file_findings", "find_charts", "kubeconform", "object_problems"]
