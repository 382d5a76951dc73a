"""What a check finds, and how it is written: text, Markdown, JSON, SARIF 2.1.0 and JUnit's XML."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import groupby
from typing import Literal
from urllib.parse import quote
from xml.etree import ElementTree

from bireme import __version__

SEVERITIES = ("error", "warning", "note")
"""From the worst on."""


@dataclass(frozen=True)
class Finding:
    """One thing to change: ``sentence`` says what is wrong, ``remedy`` what helps or shows more.

    ``rule`` names the check. The place is a ``file`` with a ``line`` (0 where no line is known), and ``path``
    is the key or the object in it. A note says what nobody can check from here. ``source`` is the URL of the
    fact behind the rule.
    """

    rule: str
    sentence: str
    remedy: str = ""
    severity: Literal["error", "warning", "note"] = "error"
    file: str = ""
    line: int = 0
    path: str = ""
    source: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether the command that finds it exits with 1."""
        return self.severity != "note"

    @property
    def _place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def _said(self) -> str:
        return ": ".join(part for part in (self._place, self.path, self.sentence) if part)

    @property
    def _advice(self) -> str:
        named = f"{self.rule}, {self.source}" if self.source else ""
        return "".join(f"\n    {part}" for part in (self.remedy, named) if part)

    def __str__(self) -> str:
        return self._said + self._advice


_MARKS = {"error": "✗", "warning": "!", "note": "?"}
_NOTHING = "✓ nothing found"


def _text(findings: Sequence[Finding]) -> str:
    kept = "✓ no error and no warning" if findings else _NOTHING
    lines = [] if any(each.is_wrong for each in findings) else [kept]
    for advice, alike in groupby(findings, key=lambda each: each._advice):
        lines += [f"{_MARKS[each.severity]} {each._said}" for each in alike]
        # Findings in a row that have the same remedy share it.
        lines[-1] += advice
    return "\n".join(lines)


def _markdown(findings: Sequence[Finding]) -> str:
    if not findings:
        return _NOTHING
    rows = [
        (_MARKS[each.severity], each.rule, each._place, each.path, f"{each.sentence}\n{each.remedy}".strip())
        for each in findings
    ]
    lines = ["| | rule | file | object or key | what |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows)])


def _cell(text: str) -> str:
    return escape(text, quote=False).replace("|", "\\|").replace("\n", "<br>")


def _sarif(findings: Sequence[Finding]) -> str:
    sources = {each.rule: each.source for each in findings}
    rules = [{"id": rule} | ({"helpUri": url} if url else {}) for rule, url in sources.items()]
    driver = {"name": "bireme", "version": __version__, "rules": rules}
    results = [
        {
            "ruleId": each.rule,
            "level": each.severity,
            "message": {"text": "\n".join(filter(None, (each.sentence, each.remedy)))},
            "locations": [_location(each)],
        }
        for each in findings
    ]
    return json.dumps(
        {
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{"tool": {"driver": driver}, "results": results}],
        },
        indent=2,
    )


def _location(finding: Finding) -> dict[str, object]:
    found: dict[str, object] = {}
    if finding.path:
        found["logicalLocations"] = [{"fullyQualifiedName": finding.path}]
    if finding.file:
        region = {"region": {"startLine": finding.line}} if finding.line else {}
        found["physicalLocation"] = {"artifactLocation": {"uri": quote(finding.file)}, **region}
    return found


def _junit(findings: Sequence[Finding]) -> str:
    failures = sum(each.is_wrong for each in findings)
    numbers = {"tests": len(findings), "failures": failures, "skipped": len(findings) - failures}
    suite = ElementTree.Element(
        "testsuite", {key: str(number) for key, number in numbers.items()}, name="bireme"
    )
    for each in findings:
        case = ElementTree.SubElement(suite, "testcase", classname=each.rule, name=each._place or each.rule)
        kind = "failure" if each.is_wrong else "skipped"
        ElementTree.SubElement(case, kind, message=each.sentence).text = str(each)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


WRITERS: Mapping[str, Callable[[Sequence[Finding]], str]] = {
    "text": _text,
    "markdown": _markdown,
    "json": lambda findings: json.dumps({"findings": [asdict(each) for each in findings]}, indent=2),
    "sarif": _sarif,
    "junit": _junit,
}
"""Writers of findings, by the name of the format."""
