"""How the files of a chart fit together, as far as that can be checked without a render."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from bireme.check.objects import HOOKS, words
from bireme.check.parity import Parity
from bireme.core.findings import Finding
from bireme.core.paths import Paths
from bireme.helm.values import read_file, read_text, unpack
from bireme.helm.yaml import documents, doubled_keys, parse_yaml
from bireme.schemas.bundle import BUNDLE, comments, drift

_HOOK = re.compile(r"""^\s*["']?helm\.sh/hook["']?:\s*["']?([\w, -]+)""", re.MULTILINE)


def values_files(chart: Path, more: Iterable[Path] = ()) -> list[str]:
    """What a chart is checked with: "" for its defaults, its ci/*-values.yaml, and ``more`` files."""
    own = (f"ci/{file.name}" for file in sorted(chart.glob("ci/*-values.yaml")))
    return ["", *own, *(str(file.resolve()) for file in more)]


def dependencies(chart: Path) -> set[str]:
    """The keys of values.yaml that hold the values of other charts."""
    entries = read_file(chart / "Chart.yaml").get("dependencies") or []
    return {str(entry.get("alias") or entry.get("name")) for entry in entries}


def looks_up(chart: Path) -> bool:
    """Whether a template of the chart, or of its dependencies, asks the cluster for what is there."""
    with tempfile.TemporaryDirectory() as folder:
        for number, archive in enumerate(chart.glob("charts/*.tgz")):
            unpack(archive, Path(folder) / str(number))
        files = [
            *chart.glob("templates/**/*"),
            *chart.glob("charts/*/templates/**/*"),
            *Path(folder).rglob("*"),
        ]
        return any(b"lookup" in file.read_bytes() for file in files if file.is_file())


def _hooks(chart: Path) -> Iterator[Finding]:
    """Hooks with a moment that Helm does not know, which it leaves out without a word."""
    for file in sorted(chart.glob("templates/**/*")):
        text = file.read_text("utf-8", errors="replace") if file.is_file() else ""
        for found in _HOOK.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            for word in sorted({*words(found[1])} - HOOKS):
                sentence = f"Helm knows no hook {word}, and leaves out the object without a word"
                advice = "use one that helm.sh/docs/topics/charts_hooks lists"
                yield Finding("hooks", sentence, advice, file=str(file), line=line)


def _twice(text: str) -> Iterator[Finding]:
    for node, _ in documents(text, "values.yaml"):
        for key, line, first in doubled_keys(node):
            sentence = f"the key {key} is there twice, first in line {first}, and Helm takes the last"
            yield Finding("duplicates", sentence, "put them together", file="values.yaml", line=line)


def file_findings(chart: Path, project: Paths) -> list[Finding]:
    """Where values.yaml and the schema of ``chart`` differ, and what is wrong with each and with hooks.

    A chart without a schema has no findings about it. Whether the schema follows from its source
    is checked for the charts of ``project``. Raises BiremeError for a file that cannot be read.
    """
    bundle, values_file = chart / BUNDLE, chart / "values.yaml"
    text = read_text(values_file, "chart file") if values_file.is_file() else ""
    found = [replace(each, file=f"{chart}/{each.file}") for each in _twice(text)]
    found += _hooks(chart)
    if bundle.is_file():
        found += _of_schema(chart, text, project)
    return found


def _of_schema(chart: Path, text: str, project: Paths) -> list[Finding]:
    bundle = chart / BUNDLE
    try:
        schema = json.loads(read_text(bundle, "chart file"))
    except ValueError as error:
        return [Finding("schema", f"it is not valid JSON: {error}", file=str(bundle))]
    values = parse_yaml(text, str(chart / "values.yaml"))
    found = Parity(schema, comments(text), dependencies(chart)).findings(values)
    is_of_project = chart.resolve().parent == project.charts.resolve()
    if is_of_project and chart.resolve() / BUNDLE in map(Path.resolve, drift(project)):
        drifted = "it does not follow from schemas/ and values.yaml"
        found.append(Finding("drift", drifted, "make schemas", file=BUNDLE))
    return [replace(each, file=f"{chart}/{each.file}") for each in found]
