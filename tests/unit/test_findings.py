"""How findings are written: each format says all that a finding says."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

from bireme.core.findings import WRITERS, Finding

WRONG = Finding(
    "names", "two ports are named a", "rename one", file="charts/my web/a.yaml", line=3, path="Service/web"
)
WARNING = Finding("nodes", "No node is a p4d.24xlarge", severity="warning")
NOTE = Finding("network", "Whether nodes reach each other shows later", "helm test check", "note")
ALL = [WRONG, WARNING, NOTE]


def test_the_text_has_place_sentence_and_remedy_of_each_finding() -> None:
    assert WRITERS["text"](ALL).splitlines() == [
        "✗ charts/my web/a.yaml:3: Service/web: two ports are named a",
        "    rename one",
        "! No node is a p4d.24xlarge",
        "? Whether nodes reach each other shows later",
        "    helm test check",
    ]


def test_findings_in_a_row_share_their_remedy_in_the_text() -> None:
    other = replace(WRONG, line=9)
    assert WRITERS["text"]([WRONG, other, WARNING, WRONG]).splitlines() == [
        "✗ charts/my web/a.yaml:3: Service/web: two ports are named a",
        "✗ charts/my web/a.yaml:9: Service/web: two ports are named a",
        "    rename one",
        "! No node is a p4d.24xlarge",
        "✗ charts/my web/a.yaml:3: Service/web: two ports are named a",
        "    rename one",
    ]


def test_markdown_has_a_row_for_each_finding() -> None:
    assert WRITERS["markdown"]([]) == "✓ nothing found"
    *_, wrong, warning, _ = WRITERS["markdown"](ALL).splitlines()
    place = "charts/my web/a.yaml:3 | Service/web"
    assert wrong == f"| ✗ | names | {place} | two ports are named a<br>rename one |"
    assert warning == "| ! | nodes |  |  | No node is a p4d.24xlarge |"
    pipes = replace(WARNING, sentence="a|b <c>")
    assert "| a\\|b &lt;c&gt; |" in WRITERS["markdown"]([pipes])


def test_the_text_says_so_when_nothing_is_wrong() -> None:
    assert WRITERS["text"]([]) == "✓ nothing found"
    assert WRITERS["text"]([NOTE]).splitlines()[:2] == ["✓ no error and no warning", f"? {NOTE.sentence}"]


def test_json_gives_every_finding_back() -> None:
    read = json.loads(WRITERS["json"](ALL))
    assert [Finding(**each) for each in read["findings"]] == ALL


def test_sarif_names_rule_level_and_place_as_github_shows_them() -> None:
    [run] = json.loads(WRITERS["sarif"](ALL))["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["names", "nodes", "network"]
    assert [(each["ruleId"], each["level"]) for each in run["results"]] == [
        ("names", "error"),
        ("nodes", "warning"),
        ("network", "note"),
    ]
    assert run["results"][0]["message"]["text"] == "two ports are named a\nrename one"
    [place] = run["results"][0]["locations"]
    # A URI has no spaces.
    assert place["physicalLocation"]["artifactLocation"] == {"uri": "charts/my%20web/a.yaml"}
    assert place["physicalLocation"]["region"] == {"startLine": 3}
    assert place["logicalLocations"] == [{"fullyQualifiedName": "Service/web"}]


def test_junit_counts_what_is_wrong_as_failures_and_skips_notes() -> None:
    suite = ElementTree.fromstring(WRITERS["junit"](ALL))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "2", "1")
    assert [(case.get("classname"), case.get("name"), case[0].tag) for case in suite] == [
        ("names", "charts/my web/a.yaml:3", "failure"),
        ("nodes", "nodes", "failure"),
        ("network", "network", "skipped"),
    ]
    assert suite[0][0].get("message") == "two ports are named a"
    assert "rename one" in (suite[0][0].text or "")
