"""The pytest plugin serves a stranger: what docs/check.md shows passes in a chart of anybody."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.documents import ROOT

Run = Callable[..., tuple[int, str]]
WEB = """\
{{- if lt (int .Values.replicas) 1 }}{{ fail "replicas: at least 1" }}{{ end }}
apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}-web}
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: registry.example.com/web:1.0}]}
{{- if not .Values.internal }}
---
apiVersion: v1
kind: Service
metadata: {name: {{ .Release.Name }}-web}
spec: {selector: {app: web}, ports: [{port: 80}]}
{{- end }}
"""


@pytest.fixture
def run(make_chart: Callable[..., Path]) -> Run:
    """A run of pytest in the folder of a chart that has the first tests of docs/check.md."""
    chart = make_chart("web", {"replicas": 2, "internal": False}, {"web.yaml": WEB})
    files = {"ci/internal-values.yaml": "internal: true\n", "tests/test_web.py": snippets()[0]}
    for name, text in files.items():
        (chart / name).parent.mkdir()
        (chart / name).write_text(text)

    def pytest_run(*options: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        done = subprocess.run(command, cwd=chart, env=inherited, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return pytest_run


def snippets() -> list[str]:
    """The tests that docs/check.md shows."""
    text = (ROOT / "docs/check.md").read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_a_snapshot_is_written_on_demand_and_tells_what_differs(run: Run, tmp_path: Path) -> None:
    code, told = run()
    assert (code, "2 passed" in told, "run pytest with --update" in told) == (1, True, True), told
    code, told = run("--update", "--chart-cov", "--chart-cov-fail-under=100")
    assert (code, "3 passed" in told) == (0, True), told
    assert "templates: 100.0% of lines and 100.0% of branches ran" in told
    [kept] = tmp_path.rglob("tests/snapshots/test_web/*.yaml")
    assert kept.stem == "test_the_internal_web_server_stays_as_it_is"
    kept.write_text(kept.read_text().replace("replicas: 2", "replicas: 7"))
    code, told = run()
    assert (code, "2 passed" in told, "-  replicas: 7\n+  replicas: 2" in told) == (1, True, True), told


def test_branches_that_no_test_ran_are_named_and_may_fail_the_run(run: Run) -> None:
    some = ("--update", "-k", "internal", "--chart-cov", "--chart-cov-fail-under=67")
    code, told = run(*some)
    assert code == 1, told
    assert "  templates/web.yaml: lines 69%, branches 67%, not: 12-16" in told


@pytest.mark.whole
def test_coverage_adds_up_what_workers_rendered(run: Run) -> None:
    code, told = run("--update", "--chart-cov", "--chart-cov-fail-under=100", "-n", "3")
    assert code == 0, told
    assert "templates: 100.0% of lines and 100.0% of branches ran" in told


def test_a_test_outside_of_any_chart_is_told_what_names_one(run: Run, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(chart): chart.render()\n")
    code, told = run(str(tmp_path / "test_it.py"))
    assert (code, "is in no chart: name one with --chart-path" in told) == (1, True), told
