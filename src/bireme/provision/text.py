"""Configurations as YAML that people read: sentences on top, scripts as blocks, nothing by reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from bireme.helm.yaml import BlockDumper


def as_yaml(sentences: Iterable[str], documents: Iterable[Mapping[str, Any]]) -> str:
    """``documents`` as YAML below ``sentences`` as comments."""
    comments = "".join(f"# {sentence}\n" for sentence in sentences)
    return comments + yaml.dump_all(documents, Dumper=BlockDumper, sort_keys=False, width=110)
