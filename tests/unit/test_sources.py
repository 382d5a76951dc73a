"""docs/sources.md: what each row names is there, and each row has a test or a reason."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from bireme.cli import cli
from bireme.core.errors import BiremeError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/sources.md"
REASONS = ("missing: ", "not carried over: ", "not shown: ")
_CODE = re.compile(r"`([^`]+)`")
_CELLS = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Row:
    """A row: what the source has, what it is here, and the tests that show it."""

    line: int
    theirs: str
    here: str
    tests: str

    def __str__(self) -> str:
        return f"docs/sources.md:{self.line} ({self.theirs})"


def rows(text: str) -> Iterator[Row]:
    """The rows of the tables with three columns."""
    for number, line in enumerate(text.splitlines(), 1):
        cells = [each.strip().replace("\\|", "|") for each in _CELLS.split(line)[1:-1]]
        if len(cells) == 3 and cells[0] != "source" and not set(cells[0]) <= set("-: "):
            yield Row(number, *cells)


def problems(row: Row) -> list[str]:
    """What is wrong with the row, each as a sentence."""
    found = []
    if row.here.startswith(REASONS):
        if row.tests:
            found.append("has a reason and tests: choose one")
    elif not _CODE.search(row.here):
        found.append("says in code neither where it is, nor that it is missing or not carried over")
    elif not _CODE.search(row.tests):
        found.append("has no test")
    found += [problem for each in _CODE.findall(row.here) if (problem := _named(each))]
    found += [problem for each in _CODE.findall(row.tests) if (problem := _test(each))]
    return [f"{row}: {each}" for each in found]


def _test(name: str) -> str:
    file, *names = name.split("::")
    path = ROOT / "tests" / file
    if not path.exists():
        return f"tests/{file} is not there"
    wrong = [each for each in names if not re.search(rf"^ *(def|class) {each}\b", path.read_text(), re.M)]
    return f"tests/{file} has no {wrong[0]}" if wrong else ""


def _named(text: str) -> str:
    """What is wrong with a value, a line of a walkthrough, a command or a path."""
    place, colon, what = text.partition(": ")
    walkthrough = ROOT / f"docs/walkthroughs/{place}.md"
    if colon and (ROOT / f"charts/{place}/values.schema.json").exists():
        schema = json.loads((ROOT / f"charts/{place}/values.schema.json").read_text())
        wrong = [key for key in what.split(", ") if not _has(schema, schema, _path(key))]
        return f"charts/{place} has no value {wrong[0]}" if wrong else ""
    if colon and walkthrough.exists():
        there = any(what in line for line in walkthrough.read_text().splitlines())
        return "" if there else f"{place}.md has no line with {what}"
    if colon and place == "hack/eks":
        declared = "".join(file.read_text() for file in (ROOT / place).glob("*.tf"))
        kinds = "variable|output"
        wrong = [key for key in what.split(", ") if not re.search(rf'^(?:{kinds}) "{key}"', declared, re.M)]
        return f"hack/eks has no variable or output {wrong[0]}" if wrong else ""
    if colon and place.endswith(".yaml") and (ROOT / place).exists():
        values = yaml.safe_load((ROOT / place).read_text())
        wrong = [key for key in what.split(", ") if not _is_set(values, _path(key))]
        return f"{place} does not set {wrong[0]}" if wrong else ""
    if text.startswith("bireme "):
        return _command(shlex.split(text)[1:])
    if text.startswith("make "):
        target = text.split()[1]
        return "" if f"\n{target}:" in (ROOT / "Makefile").read_text() else f"make has no target {target}"
    return "" if "/" in text and (ROOT / text).exists() else f"nobody knows what {text} is"


def _path(key: str) -> list[str]:
    return key.partition("=")[0].replace("[]", ".[]").split(".")


def _has(schema: Mapping[str, Any], root: Mapping[str, Any], path: list[str]) -> bool:
    """Whether a chart's schema knows the value; of a part that is open, it knows all."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if not path:
        return True
    if path[0] == "[]":
        return _has(schema["items"], root, path[1:])
    if path[0] in schema.get("properties", {}):
        return _has(schema["properties"][path[0]], root, path[1:])
    other = schema.get("additionalProperties", False)
    return bool(other) and (other is True or _has(other, root, path[1:]))


def _is_set(values: Any, path: list[str]) -> bool:
    for key in path:
        values = values[0] if key == "[]" else values
        if key != "[]" and (not isinstance(values, dict) or key not in values):
            return False
        values = values if key == "[]" else values[key]
    return True


def _command(words: list[str]) -> str:
    group: Mapping[str, click.Command] = cli.commands
    if words[0] not in group:
        return f"there is no command bireme {words[0]}"
    try:
        if words[1:]:
            group[words[0]].make_context(words[0], words[1:])
    except click.ClickException as error:
        return f"bireme {words[0]} does not take that: {error.message}"
    except BiremeError as error:
        return f"bireme {words[0]} does not take that: {error}"
    return ""


def test_each_row_names_what_is_there_and_has_a_test_or_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = list(rows(PAGE.read_text()))
    assert len(found) > 150
    wrong = [each for row in found for each in problems(row)]
    assert not wrong, "\n".join(wrong)


def test_each_chart_has_a_line() -> None:
    named = set(re.findall(r"^\| \[(\S+)\]\(\.\./charts/\1/README\.md\) \|", PAGE.read_text(), re.M))
    assert named == {file.parent.name for file in ROOT.glob("charts/*/README.md")}


@pytest.mark.parametrize(
    ("here", "tests", "sentence"),
    [
        ("`paddle: pserver.port`", "`unit/test_sources.py`", "charts/paddle has no value pserver.port"),
        ("`hack/eks: node`", "`unit/test_sources.py`", "hack/eks has no variable or output node"),
        ("`bireme plan --node a=1`", "`unit/test_sources.py`", "bireme plan does not take that"),
        (
            "`paddle: paddle.nic`",
            "`unit/test_sources.py::test_it`",
            "tests/unit/test_sources.py has no test_it",
        ),
        ("`paddle: paddle.nic`", "", "has no test"),
    ],
)
def test_what_is_wrong_with_a_row_is_one_sentence(here: str, tests: str, sentence: str) -> None:
    (row,) = rows(f"| a step | {here} | {tests} |")
    (said,) = problems(row)
    assert said.startswith("docs/sources.md:1 (a step): ")
    assert sentence in said
