"""Generated files are up to date, and ct lint passes with the project's settings."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import generate
import pytest
import yaml

from bireme.core.paths import Paths
from bireme.schemas.bundle import comments
from bireme.tools import Toolbox
from tests.render.cases import ROOT
from tests.support.rendered import RenderChart, the

LIBRARIES = ("common", "training", "bireme-runtime")
CHARTS = [file.parent.name for file in sorted(ROOT.glob("charts/*/README.md.gotmpl"))]


@pytest.mark.parametrize("chart", CHARTS)
def test_the_readme_of_a_chart_is_what_helm_docs_writes(
    bireme_paths: Paths, toolbox: Toolbox, chart: str
) -> None:
    assert (ROOT / "charts" / chart / "README.md").read_text() == generate.chart_readme(
        bireme_paths, toolbox, chart
    ), "make docs"


@pytest.mark.parametrize("chart", CHARTS)
def test_the_install_commands_of_a_readme_render(toolbox: Toolbox, chart: str) -> None:
    """Helm renders each command as it is in the README."""
    text = (ROOT / "charts" / chart / "README.md").read_text()
    commands = re.findall(rf"^helm install (\S+ charts/{chart}(?: .*)?)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        done = subprocess.run(
            [toolbox.path("helm"), "template", *shlex.split(command)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_the_picture_in_the_readme_shows_the_plan() -> None:
    assert (ROOT / "docs/plan.svg").read_text() == generate.readme_picture(), "make docs"


def test_every_installable_chart_has_a_readme(charts: list[Path]) -> None:
    assert [chart.name for chart in charts] == CHARTS


def test_charts_have_the_style_that_ct_lint_asks_for() -> None:
    files = [
        file for name in ("Chart.yaml", "values.yaml", "ci/*.yaml") for file in ROOT.glob(f"charts/*/{name}")
    ]
    yamllint = str(Path(sys.executable).with_name("yamllint"))
    command = [yamllint, "-c", "hack/lint/yamllint.yaml", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.whole
def test_ct_lint_passes_for_all_charts(toolbox: Toolbox) -> None:
    """It lints each chart with each of its values files, as `bireme check` does in each run."""
    folders = [toolbox.path("helm").parent, toolbox.path("ct").parent, Path(sys.executable).parent]
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    command = ["ct", "lint", "--all", "--config", "ct.yaml"]
    finished = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "All charts linted successfully" in finished.stdout


def test_linting_leaves_no_packaged_dependencies_behind() -> None:
    assert list(ROOT.glob("charts/*/charts/*.tgz")) == []


@pytest.mark.parametrize("helm", ["helm", pytest.param("helm3", marks=pytest.mark.whole)])
@pytest.mark.parametrize("chart", CHARTS)
def test_a_packaged_chart_contains_its_dependencies_and_renders_the_same(
    toolbox: Toolbox, tmp_path: Path, chart: str, helm: str
) -> None:
    binary = toolbox.path(helm)
    subprocess.run(
        [binary, "package", ROOT / "charts" / chart, "-d", tmp_path], check=True, capture_output=True
    )
    (archive,) = tmp_path.glob("*.tgz")
    # Some charts render nothing without values.
    values = min((ROOT / "charts" / chart / "ci").glob("*-values.yaml"))
    texts = [
        subprocess.run(
            [binary, "template", "x", source, "-f", values], check=True, capture_output=True, text=True
        ).stdout
        for source in (ROOT / "charts" / chart, archive)
    ]
    assert texts[0] == texts[1]


JOB_CHARTS = [
    chart for chart in CHARTS if '/trainingJob"' in (ROOT / f"schemas/{chart}.schema.json").read_text()
]
OWN_MEANING = {
    "workers",
    "image.repository",
    "script",
    "args",
    "launch.command",
    "launch.waitSeconds",
    "elastic.minWorkers",
    "elastic.maxWorkers",
    "recovery.maxRestarts",
    "etcd.enabled",
}
"""Keys of job charts that each of them describes in its own words."""


def test_a_key_that_job_charts_share_has_one_description(bireme_paths: Paths) -> None:
    described: dict[str, dict[str, str]] = {}
    for chart in JOB_CHARTS:
        text = (bireme_paths.charts / chart / "values.yaml").read_text()
        for path, description in comments(text).items():
            described.setdefault(".".join(path), {})[chart] = description
    different = {key: each for key, each in described.items() if len(set(each.values())) > 1}
    assert {key: each for key, each in different.items() if key not in OWN_MEANING} == {}
    assert set(different) >= OWN_MEANING


MOST_AT_THE_TOP = 36


@pytest.mark.parametrize("chart", JOB_CHARTS)
def test_a_job_chart_has_few_keys_at_the_top_under_headings(chart: str) -> None:
    text = (ROOT / f"charts/{chart}/values.yaml").read_text()
    assert len(yaml.safe_load(text)) <= MOST_AT_THE_TOP
    headings = re.findall(r"^# ===== (.+) =====$", text, re.MULTILINE)
    assert (headings[0], len(headings) >= 8) == ("What everybody sets", True)


def test_editors_find_the_schema_of_each_values_file() -> None:
    files = [*ROOT.glob("charts/*/values.yaml"), *ROOT.glob("values/**/*.yaml")]
    for file in files:
        if (
            file.name not in ("prices.yaml", "bandwidth.yaml", "nvidia-device-plugin.yaml")
            and file.parent.name not in LIBRARIES
        ):
            (name,) = re.findall(r"\A# yaml-language-server: \$schema=(\S+)$", file.read_text(), re.MULTILINE)
            assert (file.parent / name).is_file(), file


def test_the_starter_is_short_and_valid(render: RenderChart) -> None:
    file = ROOT / "values/starter.yaml"
    assert len(file.read_text().splitlines()) <= 15
    assert the(render("torch-elastic", instance="g5.xlarge", files=["values/starter.yaml"]), "Job")
