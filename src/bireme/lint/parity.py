"""Whether a chart's values.yaml, its ``# --`` comments and its schema describe the same keys."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme.errors import BiremeError
from bireme.helm.values import read_file, read_text
from bireme.helm.yaml import parse_yaml
from bireme.schemas.bundle import BUNDLE, KeyPath, comments
from bireme.schemas.problems import resolved, written

# Keys that Helm itself reads or adds: a schema may list them, values.yaml need not.
_OF_HELM = ("enabled", "global")


def undescribed(chart_dir: Path) -> list[str]:
    """Where a chart's values.yaml, its ``# --`` comments and its schema differ, as sentences.

    Every key has a property and a description, every property a key. Keys that Helm adds need none, and what
    stands under a dependency's name is for that chart to describe. Raises BiremeError for a broken chart.
    """
    metadata = read_file(chart_dir / "Chart.yaml")
    name = str(metadata.get("name", ""))
    if not (chart_dir / BUNDLE).is_file():
        return [f"{name} has no {BUNDLE}"]
    try:
        schema = json.loads(read_text(chart_dir / BUNDLE, "chart file"))
    except ValueError as error:
        raise BiremeError(f"{chart_dir / BUNDLE} is not valid JSON: {error}") from error
    file = chart_dir / "values.yaml"
    text = read_text(file, "chart file") if file.is_file() else ""
    values = parse_yaml(text, str(file))
    entries = metadata.get("dependencies") or []
    dependencies = [str(entry.get("alias") or entry.get("name")) for entry in entries]
    parity = _Parity(name, schema, comments(text), dependencies)
    return [*parity.of_keys(values, schema, ()), *parity.of_properties(values, schema, ())]


@dataclass(frozen=True)
class _Parity:
    chart: str
    root: Mapping[str, Any]
    descriptions: Mapping[KeyPath, str]
    dependencies: Collection[str]

    def of_keys(self, values: Mapping[str, Any], schema: Any, path: KeyPath) -> Iterator[str]:
        """Keys of values.yaml that lack a property or a description."""
        properties = resolved(self.root, schema).get("properties", {})
        for key, value in values.items():
            here = (*path, key)
            name = written(here)
            if key not in properties:
                yield f"{self.chart}: `{name}` of values.yaml has no property in its schema"
                continue
            below = properties[key]
            if here not in self.descriptions and not self._is_described_below(value, below):
                yield f"{self.chart}: `{name}` of values.yaml has no `# --` comment"
            # A mapping without properties is open: its keys are those of Kubernetes, or the user's.
            is_open = not resolved(self.root, below).get("properties")
            if isinstance(value, dict) and key not in self.dependencies and not is_open:
                yield from self.of_keys(value, below, here)

    def of_properties(self, values: Mapping[str, Any], schema: Any, path: KeyPath) -> Iterator[str]:
        """Properties of the schema that values.yaml does not have."""
        for key, below in resolved(self.root, schema).get("properties", {}).items():
            here = (*path, key)
            if key not in values:
                if path or key not in (*_OF_HELM, *self.dependencies):
                    yield f"{self.chart}: property `{written(here)}` of its schema is not in values.yaml"
            elif isinstance(values[key], dict) and values[key] and key not in self.dependencies:
                yield from self.of_properties(values[key], below, here)

    def _is_described_below(self, value: Any, schema: Any) -> bool:
        if isinstance(value, dict) and value:
            return True  # a section: its keys are checked one by one
        properties = resolved(self.root, schema).get("properties", {})
        return bool(properties) and all(
            "description" in resolved(self.root, each) for each in properties.values()
        )
