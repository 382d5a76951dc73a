"""`bireme audit`: what is wrong with manifests of training jobs that others wrote."""

from bireme.audit.documents import read, read_variables
from bireme.audit.rules import Auditor, list_of_rules, load_rules

__all__ = ["Auditor", "list_of_rules", "load_rules", "read", "read_variables"]
