"""The commands of the README run as they stand, and the demo ends with the compared topology."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bireme.tools import Toolbox

ROOT = Path(__file__).parents[2]
Shell = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shell(tmp_path: Path, toolbox: Toolbox) -> Shell:
    """Runs a line as a user would, with a state directory of the test's own and no kubeconfig."""
    folders = [Path(sys.executable).parent, toolbox.path("helm").parent, toolbox.path("kubectl").parent]
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([*map(str, folders), os.environ["PATH"]]),
        "BIREME_STATE": str(tmp_path / "state"),
        "BIREME_CACHE": os.environ.get("BIREME_CACHE", str(Path.home() / ".cache/bireme")),
        "KUBECONFIG": str(tmp_path / "state/clusters/bireme/kubeconfig"),
        "COLUMNS": "200",
    }

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            line, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )

    return run


def test_the_readme_can_be_followed_line_by_line(shell: Shell) -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
    (session,) = re.findall(r"^```sh\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    installs = re.findall(r"`(helm install [^`]*)`", readme)
    up, *steps, down = session.strip().splitlines()
    said: dict[str, str] = {}
    try:
        for line in (up, *steps, *installs):
            finished = shell(line)
            assert finished.returncode == 0, f"{line}\n{finished.stdout}{finished.stderr}"
            said[line] = finished.stdout + finished.stderr
    finally:
        assert shell(down).returncode == 0
    text = "\n".join(said.values())
    assert "warning: 1 of 3 worker pods does not fit" in text
    assert "3 → 5" in text
    assert "as planned: 6 pods, 40 accelerators, 20 EFA" in text
    assert shell("bireme clusters -o json").stdout.strip() == "[]"


def test_the_demo_compares_plan_and_cluster_and_leaves_nothing(shell: Shell) -> None:
    finished = shell("bireme demo")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "as planned: 4 pods, 24 accelerators, 12 EFA, nodes: 3 × p4d.24xlarge" in finished.stdout
    assert shell("bireme clusters -o json").stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("bireme plan charts/torch-elastc", "charts/torch-elastc"),
        ("bireme plan charts/torch-elastic -f nowhere.yaml", "nowhere.yaml"),
        ("bireme plan charts/torch-elastic --set workers", "workers"),
        ("bireme install charts/torch-elastic --set workrs=2", "workrs"),
        ("bireme up --nodes p4d.24xlage=2", "p4d.24xlarge"),
        ("bireme up --provider kinf", "kind"),
        ("bireme status nothing --cluster nowhere", "nowhere"),
        ("bireme validate charts/torch-elastic --set workrs=2", "did you mean `workers`"),
        ("bireme validate charts/torch-elastic --set minWorkers=2", "minWorkers"),
    ],
)
def test_bad_input_gets_one_sentence_and_a_non_zero_exit(shell: Shell, line: str, sentence: str) -> None:
    finished = shell(line)
    assert finished.returncode == 1
    assert sentence in finished.stdout + finished.stderr
    assert "Traceback" not in finished.stderr


def test_install_that_does_not_fit_names_the_difference_and_exits_1(shell: Shell) -> None:
    try:
        assert shell("bireme up --nodes p4d.24xlarge=1").returncode == 0
        values = "-f values/instances/p4d.24xlarge.yaml --set workers=2"
        finished = shell(f"bireme install charts/torch-elastic {values} -o json")
        assert finished.returncode == 1
        assert '"kind": "pending"' in finished.stdout
        assert "Insufficient" in finished.stdout
    finally:
        shell("bireme down")
