"""`bireme lint`: checks for authors of charts."""

from bireme.lint.files import file_findings
from bireme.lint.kubeconform import kubeconform
from bireme.lint.linter import Linter, find_charts, object_findings

__all__ = ["Linter", "file_findings", "find_charts", "kubeconform", "object_findings"]
