"""`bireme check --import-unittest` runs what a team has of helm-unittest, and tells it as all else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bireme.cli import cli
from tests.unit.conftest import MakeChart

WEB = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {a: {{ .Values.a | quote }}}\n"
SUITE = """\
suite: settings
templates: [web.yaml]
tests:
  - it: takes the value
    set: {a: given}
    asserts:
      - equal: {path: data.a, value: given}
      - matchSnapshot: {}
  - it: is wrong
    asserts:
      - equal: {path: data.a, value: other}
  - it: is for another day
    skip: {reason: not yet}
    asserts:
      - isKind: {of: Secret}
"""
UNKNOWN = "suite: unknown\ntests: [{it: asks, asserts: [{resembles: {path: data.a}}]}]\n"


def findings(chart: Path, suite: str) -> tuple[str, list[dict[str, str]]]:
    """What the command says beside its findings, and these, for a chart with one suite."""
    (chart / "tests").mkdir()
    (chart / "tests/web_test.yaml").write_text(suite)
    done = CliRunner().invoke(cli, ["check", str(chart), "--import-unittest", "-o", "json"])
    assert done.exit_code == 1, done.output
    return done.stderr, json.loads(done.stdout)["findings"]


# Builds helm-unittest where no download answers.
@pytest.mark.whole
def test_suites_run_as_they_are_and_what_fails_is_a_finding(make_chart: MakeChart) -> None:
    chart = make_chart("web", values={"a": "b"}, templates={"web.yaml": WEB})
    said, [failed] = findings(chart, SUITE)
    assert "3 tests of helm-unittest ran, 1 failed" in said
    assert (failed["rule"], failed["path"]) == ("unittest", "is wrong")
    assert Path(failed["file"]).resolve() == chart / "tests/web_test.yaml"
    assert failed["sentence"].splitlines()[0] == "- asserts[0] `equal` fail"
    assert failed["sentence"].splitlines()[-2:] == ["-other", "+b"]


@pytest.mark.whole
def test_a_suite_that_helm_unittest_cannot_read_is_a_finding(make_chart: MakeChart) -> None:
    chart = make_chart("web", values={"a": "b"}, templates={"web.yaml": WEB})
    said, [unread] = findings(chart, UNKNOWN)
    assert "0 tests of helm-unittest ran, 1 failed" in said
    assert unread["file"] == f"{chart}/tests/web_test.yaml"
    assert "Assertion type `resembles` is invalid" in unread["sentence"]
    assert unread["sentence"].endswith("so no suite of the chart ran")


def test_charts_without_a_suite_are_told(make_chart: MakeChart) -> None:
    chart = make_chart("web", values={"a": "b"}, templates={"web.yaml": WEB})
    done = CliRunner().invoke(cli, ["check", str(chart), "--import-unittest"])
    assert str(done.exception).startswith("no chart has a suite of helm-unittest")
