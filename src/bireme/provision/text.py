"""Configurations as YAML that people read: sentences on top, scripts as blocks, nothing by reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(sentences: Iterable[str], documents: Iterable[Mapping[str, Any]]) -> str:
    """``documents`` as YAML below ``sentences`` as comments."""
    comments = "".join(f"# {sentence}\n" for sentence in sentences)
    return comments + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=110)
