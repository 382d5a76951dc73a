"""`bireme check` in repositories of others: an action of GitHub, a hook of pre-commit, a container."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.tools import Toolbox
from tests.support.documents import ROOT

ACTION = ROOT / ".github/actions/check/action.yml"
BIN = Path(sys.executable).parent
WRONG = "{apiVersion: v1, kind: Secret, metadata: {name: web}, dat: {}}"
# In the place of GitHub's own program, which talks to GitHub.
GH = '#!/bin/bash\necho "$*" > "$RUNNER_TEMP/told"\ncat "${@: -1}" >> "$RUNNER_TEMP/told"\n'


@pytest.fixture
def repository(make_chart: Callable[..., Path], tmp_path: Path) -> Path:
    """A repository with a chart that is right and one that is wrong, beside the files of a runner."""
    folder = tmp_path / "team"
    make_chart("good", within=folder)
    make_chart("bad", templates={"a.yaml": WRONG}, within=folder)
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    return folder


def shown(kind: str) -> list[str]:
    """The blocks of docs/check.md that are of this kind."""
    text = (ROOT / "docs/check.md").read_text()
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(script: str, repository: Path, **given: str) -> subprocess.CompletedProcess[str]:
    files = {"RUNNER_TEMP": str(repository.parent), "GITHUB_STEP_SUMMARY": f"{repository.parent}/summary"}
    path = os.pathsep.join([str(repository.parent), str(BIN), os.environ["PATH"]])
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    environment = {**os.environ, **files, "PATH": path, **given}
    return subprocess.run(
        command, cwd=repository, env=environment, capture_output=True, text=True, check=False
    )


def test_the_action_is_one_that_github_takes() -> None:
    check = [str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.github-actions", str(ACTION)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [[step]] = (yaml.safe_load(each) for each in shown("yaml") if "actions/check" in each)
    assert step["uses"] == f"OWNER/bireme/{ACTION.parent.relative_to(ROOT)}@main"
    assert set(step["with"]) <= set(yaml.safe_load(ACTION.read_text())["inputs"])


# Builds actionlint where no download answers.
@pytest.mark.whole
def test_actionlint_finds_nothing_in_the_action_its_steps_and_its_use(
    toolbox: Toolbox, tmp_path: Path
) -> None:
    # It reads no action but those that a workflow uses, and none of their steps.
    action = yaml.safe_load(ACTION.read_text())
    inputs = {
        name: {"type": "string", "description": each["description"]}
        for name, each in action["inputs"].items()
    }
    [[used]] = (yaml.safe_load(each) for each in shown("yaml") if "actions/check" in each)
    uses = [used | {"uses": f"./{ACTION.parent.relative_to(ROOT)}"}]
    jobs = {
        name: {"runs-on": "ubuntu-latest", "steps": steps}
        for name, steps in (("uses", uses), ("steps", action["runs"]["steps"]))
    }
    flow = json.dumps({"on": {"workflow_call": {"inputs": inputs}}, "jobs": jobs})
    for file, text in (("workflows/a.yml", flow), ("actions/check/action.yml", ACTION.read_text())):
        (tmp_path / ".github" / file).parent.mkdir(parents=True)
        (tmp_path / ".github" / file).write_text(text)
    (tmp_path / ".git").mkdir()
    command = [str(toolbox.path("actionlint")), "-shellcheck=", "-pyflakes="]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_action_tells_what_it_finds_in_the_summary_and_on_the_pull_request(repository: Path) -> None:
    steps: list[dict[str, Any]] = yaml.safe_load(ACTION.read_text())["runs"]["steps"]
    tools, check, comment = (step["run"] for step in steps if "run" in step and "pip" not in step["run"])
    assert run(tools, repository).returncode == 0
    url = "https://github.com/team/charts/pull/7"
    # As after an error, which the log of the job has.
    (repository.parent / "bireme-check.md").touch()
    assert run(comment, repository, PULL_REQUEST=url).returncode == 0
    assert not (repository.parent / "told").exists()
    found = run(check, repository, CHARTS="charts/good charts/bad", OPTIONS="--fail-on error")
    assert found.returncode == 1, found.stderr
    summary = (repository.parent / "summary").read_text()
    assert "| ✗ | kubernetes | charts/bad/templates/a.yaml | Secret/web |" in summary
    assert run(comment, repository, PULL_REQUEST=url).returncode == 0
    first, body = (repository.parent / "told").read_text().split("\n", 1)
    assert first.startswith(f"pr comment {url} --edit-last --create-if-none --body-file")
    assert body == summary
    assert run(check, repository, CHARTS="charts/good", OPTIONS="").returncode == 0


def test_the_hook_of_pre_commit_checks_the_charts_of_a_repository(repository: Path) -> None:
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    [asked] = (yaml.safe_load(each)["repos"] for each in shown("yaml") if "bireme-check" in each)
    assert [each["id"] for each in asked[0]["hooks"]] == [hook["id"]]
    for changed in ("web/Chart.yaml", "charts/web/ci/more-values.yaml", "web/templates/_parts.tpl"):
        assert re.search(hook["files"], changed), changed
    assert not re.search(hook["files"], "src/values.py")
    done = run(hook["entry"], repository)
    assert (done.returncode, "charts/bad/templates/a.yaml" in done.stdout) == (1, True), done.stderr
    assert run(shlex.join([*hook["entry"].split(), "charts/good"]), repository).returncode == 0


def test_the_recipe_of_the_container_is_right_and_its_tools_are_known(
    repository: Path, tmp_path: Path
) -> None:
    [recipe] = shown("dockerfile")
    (tmp_path / "Dockerfile").write_text(recipe)
    config = ["--config", str(ROOT / "images/.hadolint.yaml")]
    command = [str(BIN / "hadolint"), *config, str(tmp_path / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    [tools] = re.findall(r"bireme tools .*", recipe)
    assert run(tools, repository).returncode == 0
