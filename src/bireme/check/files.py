"""How the files of a chart fit together, as far as that can be checked without a render."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from bireme.check.parity import Parity
from bireme.core.findings import Finding
from bireme.core.paths import Paths
from bireme.helm.values import read_file, read_text
from bireme.helm.yaml import parse_yaml
from bireme.schemas.bundle import BUNDLE, comments, drift


def values_files(chart: Path) -> list[str]:
    """The sets of values that a chart is checked with: "" for the defaults, and its ci/*-values.yaml."""
    return ["", *(f"ci/{file.name}" for file in sorted(chart.glob("ci/*-values.yaml")))]


def dependencies(chart: Path) -> set[str]:
    """The keys of values.yaml that hold the values of other charts."""
    entries = read_file(chart / "Chart.yaml").get("dependencies") or []
    return {str(entry.get("alias") or entry.get("name")) for entry in entries}


def file_findings(chart: Path, project: Paths) -> list[Finding]:
    """Where values.yaml and the schema of ``chart`` differ, and what is wrong with the schema.

    A chart without a schema has no such findings. Whether the schema follows from its source is checked for
    the charts of ``project``. Raises BiremeError for a file that cannot be read.
    """
    bundle, values_file = chart / BUNDLE, chart / "values.yaml"
    if not bundle.is_file():
        return []
    try:
        schema = json.loads(read_text(bundle, "chart file"))
    except ValueError as error:
        return [Finding("schema", f"it is not valid JSON: {error}", file=str(bundle))]
    text = read_text(values_file, "chart file") if values_file.is_file() else ""
    values = parse_yaml(text, str(values_file))
    found = Parity(schema, comments(text), dependencies(chart)).findings(values)
    is_of_project = chart.resolve().parent == project.charts.resolve()
    if is_of_project and chart.resolve() / BUNDLE in map(Path.resolve, drift(project)):
        drifted = "it does not follow from schemas/ and values.yaml"
        found.append(Finding("drift", drifted, "make schemas", file=BUNDLE))
    return [replace(each, file=f"{chart}/{each.file}") for each in found]
