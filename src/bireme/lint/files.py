"""How the files of a chart fit together, as far as that can be checked without a render."""

from __future__ import annotations

import json
from pathlib import Path

from bireme.core.paths import Paths
from bireme.helm.values import read_file, read_text
from bireme.helm.yaml import parse_yaml
from bireme.lint.findings import Finding
from bireme.lint.parity import parity
from bireme.lint.patterns import foreign_patterns
from bireme.schemas import BUNDLE, comments, drift


def file_findings(chart: Path, project: Paths) -> list[Finding]:
    """Where values.yaml and the schema of ``chart`` differ, and what is wrong with the schema.

    A chart without a schema has no such findings. Whether the schema follows from its source is checked for
    the charts of ``project``. Raises BiremeError for a file that cannot be read.
    """
    if not (chart / BUNDLE).is_file():
        return []

    def finding(check: str, where: str, sentence: str) -> Finding:
        return Finding(str(chart), check, where, sentence)

    try:
        schema = json.loads(read_text(chart / BUNDLE, "chart file"))
    except ValueError as error:
        return [finding("schema", BUNDLE, f"it is not valid JSON: {error}")]
    values_file = chart / "values.yaml"
    text = read_text(values_file, "chart file") if values_file.is_file() else ""
    entries = read_file(chart / "Chart.yaml").get("dependencies") or []
    dependencies = {str(entry.get("alias") or entry.get("name")) for entry in entries}
    values = parse_yaml(text, str(values_file))
    found = [
        finding("parity", where, sentence)
        for where, sentence in parity(values, comments(text), schema, dependencies)
    ]
    found += [finding("patterns", BUNDLE, sentence) for sentence in foreign_patterns(schema)]
    is_of_project = chart.resolve().parent == project.charts.resolve()
    if is_of_project and chart.resolve() / BUNDLE in map(Path.resolve, drift(project)):
        advice = "it does not follow from schemas/ and values.yaml: run `make schemas`"
        found.append(finding("drift", BUNDLE, advice))
    return found
