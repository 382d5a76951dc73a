"""hack/new-chart makes a job chart that is complete: it is linted, rendered, planned and documented."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bireme.core.paths import Paths
from bireme.plan.topology import Plan
from bireme.schemas import drift
from bireme.tools import Toolbox
from tests.render.cases import ROOT

NAME = "sum-job"
FOLDERS = ("charts", "docs", "hack", "runtime", "schemas", "src", "tests", "values")
IGNORED = shutil.ignore_patterns("__pycache__", ".*_cache")


def new_chart(project: Path, name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "hack/new_chart.py", name]
    environment = {**os.environ, "PYTHONPATH": str(project / "src")}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, toolbox: Toolbox) -> Path:
    """A copy of the project with a chart of the scaffold."""
    folder = tmp_path_factory.mktemp("project")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=IGNORED)
    shutil.copy(ROOT / "pyproject.toml", folder)
    made = new_chart(folder, NAME)
    assert made.returncode == 0, made.stderr
    assert "charts/sum-job is made" in made.stdout
    return folder


@pytest.mark.parametrize("values", ["default", "instance"])
@pytest.mark.parametrize("helm", ["helm", "helm3"])
def test_a_new_chart_is_linted_and_rendered_by_both_helms(
    project: Path, toolbox: Toolbox, helm: str, values: str
) -> None:
    chart = project / "charts" / NAME
    for verb in (["lint", "--strict"], ["template"]):
        command = [str(toolbox.path(helm)), *verb, str(chart), "-f", str(chart / f"ci/{values}-values.yaml")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_bireme_lint_finds_nothing_in_a_new_chart(project: Path) -> None:
    command = [str(Path(sys.executable).with_name("bireme")), "lint", f"charts/{NAME}"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "charts: 1, findings: 0" in done.stdout + done.stderr


def test_a_new_chart_is_planned_as_one_pod_for_each_worker(project: Path, plan: Callable[..., Plan]) -> None:
    (job,) = plan(project / "charts" / NAME, sets=["workers=3"]).workloads
    assert [pod.rank for pod in job.pods] == [0, 1, 2]


def test_a_new_chart_has_its_schema_readme_golden_files_and_a_row_in_the_documents(project: Path) -> None:
    paths = Paths.discover(start=project)
    assert paths.root == project
    assert drift(paths) == []
    assert f"# {NAME}\n" in (project / "charts" / NAME / "README.md").read_text()
    golden = (project / "tests/render/golden" / NAME).glob("*.yaml")
    assert sorted(file.name for file in golden) == ["default.yaml", "instance.yaml"]
    assert (
        f"`helm install {NAME} charts/{NAME} --set workers=2` |\n\nThe images"
        in (project / "docs/charts.md").read_text()
    )


def test_a_new_chart_has_the_shared_values_with_their_descriptions(project: Path) -> None:
    made = (project / "charts" / NAME / "values.yaml").read_text()
    assert '\n# -- PriorityClass of the workers\npriorityClassName: ""\n' in made
    assert "rendezvous" not in made
    assert made.count("\nimage:\n") == 1


def test_no_template_of_a_new_chart_writes_what_charts_common_has(project: Path) -> None:
    """Only the job's own part of a pod and of a Job stands in the chart; all else is one call."""
    templates = project / "charts" / NAME / "templates"
    own = {"_pod.tpl", "_job.tpl", "validate.yaml", "NOTES.txt"}
    objects = [file for file in templates.rglob("*.yaml") if file.name not in own]
    assert len(objects) == 11
    assert [file.name for file in objects if not file.read_text().startswith('{{- include "common.')] == []
    assert [file.name for file in objects if "apiVersion:" in file.read_text()] == []


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sum-job", "charts/sum-job exists already"),
        ("etcd", "charts/etcd exists already"),
        ("Sum", "Sum cannot name a chart: use lower-case words and dashes"),
        ("a" * 31, "at most 30 characters"),
    ],
)
def test_a_name_that_cannot_be_is_refused(project: Path, name: str, sentence: str) -> None:
    refused = new_chart(project, name)
    assert refused.returncode == 1
    assert sentence in refused.stderr
