"""Prose gets no worse: semicolons and sentences of more than 30 words are no more than words.yaml says."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CEILING: dict[str, dict[str, int]] = yaml.safe_load((Path(__file__).parent / "words.yaml").read_text())
PLACES = {
    "documents": ("docs/*.md", "docs/walkthroughs/*.md", "README.md", "CONTRIBUTING.md", "SECURITY.md"),
    "decisions": ("docs/adr/*.md",),
    "changelog": ("CHANGELOG.md",),
    "charts": ("charts/*/README.md.gotmpl",),
    "values": ("charts/*/values.yaml",),
    "docstrings": ("src/*.py", "runtime/*.py"),
}


def files(place: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", *PLACES[place]], cwd=ROOT, text=True, capture_output=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split()]


def paragraphs(file: Path) -> Iterator[str]:
    """The prose of a file: no code, no tables, no headings."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from (ast.get_docstring(node) or "").split("\n\n")
    elif file.suffix == ".yaml":
        yield from re.findall(r"^ *# -- (.*)$", text, re.MULTILINE)
    else:
        text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        for block in re.split(r"\n\s*\n|\n *(?:[-*]|\d+\.) ", text):
            if not block.lstrip().startswith(("|", "#", "{{")):
                yield block


def sentences(place: str) -> Iterator[str]:
    for file in files(place):
        for paragraph in paragraphs(file):
            plain = re.sub(r"`[^`]*`", "code", " ".join(paragraph.split()))
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain)
            yield from re.split(r"(?<=[.!?]) (?=[A-Z\"(])", plain)


@pytest.mark.parametrize("place", PLACES)
def test_sentences_get_no_longer_and_semicolons_no_more(place: str) -> None:
    found = list(sentences(place))
    counts = {
        "semicolons": sum(each.count(";") for each in found),
        "longSentences": sum(len(each.split()) > 30 for each in found),
    }
    over = {name: count for name, count in counts.items() if count > CEILING[place][name]}
    assert not over, f"{place}: {over}, at most {CEILING[place]}. Write one thought a sentence"
    slack = {name: count for name, count in counts.items() if count < CEILING[place][name] * 0.95 - 3}
    assert not slack, f"{place}: {slack}. Lower the numbers in words.yaml to keep what was won"
