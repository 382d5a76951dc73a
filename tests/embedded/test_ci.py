"""The pipelines of docs/ci.md: their files are right, and their commands pass in such a repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.documents import ROOT

pytestmark = pytest.mark.embedded

DOCUMENT = ROOT / "docs/ci.md"
IMAGENET = """\
workers: 3
image: {registry: registry.example.com, repository: team/train, tag: "1.4"}
args: [/opt/train.py]
"""


def pipelines() -> dict[str, str]:
    """The files of the document: GitHub's and GitLab's."""
    github, gitlab = re.findall(r"^```yaml\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    return {"github-workflows": github, "gitlab-ci": gitlab}


def commands(kind: str) -> list[str]:
    """The commands of a pipeline, without those that install packages."""
    parsed: dict[Any, Any] = yaml.safe_load(pipelines()[kind])
    if kind == "gitlab-ci":
        found = [*parsed["charts"]["before_script"], *parsed["charts"]["script"]]
    else:
        found = [step["run"] for step in parsed["jobs"]["charts"]["steps"] if "run" in step]
    return [command for command in found if not command.startswith("pip install ")]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """That of a team with a chart, values and tests of its own."""
    folder = tmp_path / "team"
    shutil.copytree(ROOT / "tests/example/ring", folder / "charts/ring")
    (folder / "values").mkdir()
    (folder / "values/imagenet.yaml").write_text(IMAGENET)
    test = (ROOT / "tests/example/test_ring.py").read_text()
    (folder / "tests").mkdir()
    (folder / "tests/test_ring.py").write_text(test.replace("tests/example/ring", "charts/ring"))
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    return folder


@pytest.mark.parametrize("kind", ["github-workflows", "gitlab-ci"])
def test_the_file_is_one_that_the_service_takes(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(pipelines()[kind])
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{kind}", str(file)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    file.write_text(pipelines()[kind].replace("charts:", "charts: 1 #", 1))
    assert subprocess.run(check, capture_output=True, check=False).returncode == 1


def test_both_services_run_the_same_commands() -> None:
    (_, *github), (_, *gitlab) = commands("github-workflows"), commands("gitlab-ci")
    assert github == gitlab
    assert len(github) == 5


def test_the_workflow_of_this_repository_runs_what_ci_run_runs() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    cells = workflow["jobs"]["core"]["strategy"]["matrix"]["include"]
    ours = re.findall(r"make (demo|test(?:-[a-z]+)?)\b", (ROOT / ".ci/run").read_text())
    assert {target for cell in cells for target in cell["targets"].split()} == set(ours)


@pytest.mark.whole
def test_the_commands_pass_in_the_repository_of_a_team(repository: Path, tmp_path: Path) -> None:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment = {
        **inherited,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "BIREME_STATE": str(tmp_path / "state"),
        "COLUMNS": "200",
    }
    script = "\n".join(["set -euo pipefail", *commands("gitlab-ci")])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=repository,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "All charts linted successfully" in done.stdout
    assert "3 × p4d.24xlarge" in done.stdout
    assert "3 passed" in done.stdout
