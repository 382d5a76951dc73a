"""Whether a chart's values.yaml, its ``# --`` comments and its schema say the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme.helm.values import GLOBAL, Chart, load_chart
from bireme.schemas.bundle import BUNDLE, KeyPath, comments
from bireme.schemas.problems import resolved, written


def undescribed(chart_dir: Path) -> list[str]:
    """Where a chart's values.yaml, its ``# --`` comments and its schema do not say the same, as sentences.

    Every key has a property and words, every property a key. Keys that Helm injects (``global``, ``enabled``)
    need none, and what stands under a dependency's name is that chart's to describe.
    """
    chart = load_chart(chart_dir)
    if chart.schema is None:
        return [f"{chart.name} has no {BUNDLE}"]
    said = comments((chart_dir / "values.yaml").read_text(encoding="utf-8"))
    foreign = {str(entry.get("alias") or entry.get("name")) for entry in chart.requirements}
    parity = _Parity(chart, said, foreign)
    return [
        *parity.of_keys(chart.values, chart.schema, ()),
        *parity.of_properties(chart.values, chart.schema, ()),
    ]


@dataclass(frozen=True)
class _Parity:
    chart: Chart
    said: Mapping[KeyPath, str]
    foreign: set[str]

    def of_keys(self, values: Mapping[str, Any], schema: Any, path: KeyPath) -> Iterator[str]:
        """Keys of values.yaml that lack a property or words."""
        properties = resolved(self.chart, schema).get("properties", {})
        for key, value in values.items():
            here = (*path, key)
            name = written(here)
            if key not in properties:
                yield f"{self.chart.name}: `{name}` of values.yaml has no property in its schema"
                continue
            below = properties[key]
            if here not in self.said and not self._is_described_below(value, below):
                yield f"{self.chart.name}: `{name}` of values.yaml has no `# --` comment"
            # Without properties it is open: its keys are Kubernetes' own, or the user's.
            is_open = not resolved(self.chart, below).get("properties")
            if isinstance(value, dict) and key not in self.foreign and not is_open:
                yield from self.of_keys(value, below, here)

    def of_properties(self, values: Mapping[str, Any], schema: Any, path: KeyPath) -> Iterator[str]:
        """Properties of the schema that values.yaml does not show."""
        for key, below in resolved(self.chart, schema).get("properties", {}).items():
            here = (*path, key)
            if key not in values:
                if len(here) > 1 or key not in {GLOBAL, "enabled", *self.foreign}:
                    name = written(here)
                    yield f"{self.chart.name}: property `{name}` of its schema is not in values.yaml"
            elif isinstance(values[key], dict) and values[key] and key not in self.foreign:
                yield from self.of_properties(values[key], below, here)

    def _is_described_below(self, value: Any, schema: Any) -> bool:
        if isinstance(value, dict) and value:
            return True  # a section: its keys are looked at one by one
        properties = resolved(self.chart, schema).get("properties", {})
        return bool(properties) and all(
            "description" in resolved(self.chart, each) for each in properties.values()
        )
