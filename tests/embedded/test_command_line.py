"""The commands of docs/commands.md and docs/charts.md run as they stand, and the demo prints what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bireme.core.paths import Paths
from bireme.tools import Toolbox
from tests.support.documents import blocks
from tests.support.reader import Newcomer
from tests.support.tiers import core

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


def helm_installs(document: Path) -> list[str]:
    """The commands that install a chart, in the tables of a document."""
    return re.findall(r"`(helm install [^`]*)`", document.read_text())


@pytest.mark.whole
def test_the_commands_can_be_followed_line_by_line(shell: Shell) -> None:
    (session,) = blocks(ROOT / "docs/commands.md")
    *steps, down = session.commands
    text = ""
    try:
        for step in steps:
            finished = shell(step.text)
            assert finished.returncode == step.code, f"{step}\n{finished.stdout}{finished.stderr}"
            text += finished.stdout + finished.stderr
    finally:
        assert shell(down.text).returncode == 0
    assert "warning: 1 of 3 worker pods does not fit" in text
    assert "3 → 5" in text
    assert "as planned: 6 pods, 40 accelerators, 20 EFA" in text
    assert shell("bireme clusters -o json").stdout.strip() == "[]"


@pytest.mark.whole
def test_each_command_of_docs_charts_installs_its_chart(shell: Shell) -> None:
    commands = helm_installs(ROOT / "docs/charts.md")
    assert len(commands) >= 13
    try:
        assert shell("bireme up").returncode == 0
        for command in commands:
            finished = shell(command)
            assert finished.returncode == 0, f"{command}\n{finished.stdout}{finished.stderr}"
    finally:
        assert shell("bireme down").returncode == 0


@pytest.mark.whole
@pytest.mark.parametrize("document", ["queues.md", "gitops.md", "elasticity.md", "troubleshooting.md"])
def test_a_document_can_be_followed_line_by_line(
    document: str, tmp_path: Path, bireme_paths: Paths, toolbox: Toolbox
) -> None:
    newcomer = Newcomer(ROOT, tmp_path / "home", bireme_paths)
    programs = [Path(sys.executable).parent, toolbox.path("helm").parent, toolbox.path("kubectl").parent]
    for session in blocks(ROOT / "docs" / document):
        printed = newcomer.pastes(session, *programs)
        assert session.missing(printed) == [], printed


def test_docs_charts_names_every_chart() -> None:
    text = (ROOT / "docs/charts.md").read_text()
    charts = [file.parent.name for file in ROOT.glob("charts/*/Chart.yaml")]
    assert [name for name in charts if f"charts/{name}" not in text] == []


@pytest.mark.whole
def test_the_demo_compares_plan_and_cluster_and_leaves_nothing(shell: Shell) -> None:
    finished = shell("bireme demo")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    shown = re.search(r"ends like this:\n\n```\n(.*?)```", (ROOT / "docs/commands.md").read_text(), re.DOTALL)
    assert shown
    # The names of pods end with characters that differ each time, and any node may have any worker.
    facts = [re.sub(r"-\w{5}\s|-\d\s*$|\s+", " ", line).strip() for line in shown[1].splitlines()]
    printed = [re.sub(r"-\w{5}\s|-\d\s*$|\s+", " ", line).strip() for line in finished.stdout.splitlines()]
    assert [line for line in facts if "─" not in line and line not in printed] == []
    assert shell("bireme clusters -o json").stdout.strip() == "[]"


@pytest.mark.whole
def test_a_script_that_changes_is_a_new_run(shell: Shell, tmp_path: Path) -> None:
    """A module beside it counts too, and `diff` shows its lines. What NOTES tell to set can be set."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("import net")
    (work / "net.py").write_text("layers = 2")
    job = f"torch-elastic -f g5.xlarge --script {work}"

    def run(line: str, code: int = 0) -> str:
        finished = shell(line)
        assert finished.returncode == code, f"{line}\n{finished.stdout}{finished.stderr}"
        return finished.stdout + finished.stderr

    try:
        run("bireme up --nodes g5.xlarge=1")
        installed = run(f"bireme install {job}")
        assert "bireme status torch-elastic --namespace default --watch" in installed
        assert "bireme stop torch-elastic" in installed
        # These nodes run no container, so there is no log and no test. Helm's own log lines are not shown.
        assert not re.search("helm -n|kubectl -n|^Logs|^Check|level=INFO", installed, re.MULTILINE)
        for setting in re.findall(r"--set (\S+=\S+)", installed):
            run(f"bireme validate {job} --set {setting.replace('=N', '=2')}")
        run(f"bireme diff torch-elastic --reuse-values --script {work}")
        (work / "net.py").write_text("layers = 3")
        changed = run(f"bireme diff torch-elastic --reuse-values --script {work}", code=1)
        assert "layers = 2" in changed
        assert "layers = 3" in changed
        run(f"bireme install {job}", code=1)
        assert "torch-elastic-r1-0" in run("bireme status torch-elastic")
        replaced = run(f"bireme install {job} --replace")
        assert "torch-elastic-r2-0" in replaced
        assert "bireme stop" not in replaced, "the notes are printed once"
        alone = run(f"bireme diff torch-elastic --reuse-values --script {work}/train.py", code=1)
        assert re.search(r"^ *- .*layers = 3", alone, re.MULTILINE), "a file alone is the whole program"
        assert "layers = 3" not in re.sub(r"^ *- .*$", "", alone, flags=re.MULTILINE)
    finally:
        assert shell("bireme down").returncode == 0


MISSPELT = "bireme validate charts/torch-elastic --set workrs=2"
BAD_INPUT = {
    "bireme plan charts/torch-elastc": "charts/torch-elastc",
    "bireme plan charts/torch-elastic -f nowhere.yaml": "nowhere.yaml",
    "bireme plan charts/torch-elastic --set workers": "workers",
    "bireme install charts/torch-elastic --set workrs=2": "workrs",
    "bireme up --nodes p4d.24xlage=2": "p4d.24xlarge",
    "bireme up --provider kinf": "kind",
    "bireme status nothing --cluster nowhere": "nowhere",
    "bireme timeline nothing --cluster nowhere": "nowhere",
    MISSPELT: "did you mean `workers`",
    "bireme validate charts/torch-elastic --set elastic.minWorkers=2": "minWorkers",
}
"""What a line prints for its mistake."""


@pytest.mark.parametrize("line", core(MISSPELT, of=BAD_INPUT))
def test_bad_input_gets_one_sentence_and_a_non_zero_exit(shell: Shell, line: str) -> None:
    finished = shell(line)
    assert finished.returncode == 1
    assert BAD_INPUT[line] in finished.stdout + finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.whole
def test_the_values_of_a_release_count_alike_for_plan_diff_and_install(shell: Shell) -> None:
    """The first line says where it happens, and which values go."""
    here = 'on the cluster of bireme up "bireme", namespace default'
    kept = f"upgrade of job: {here}; its values stay"
    dropped = (
        f"upgrade of job: {here}; only the values given here count, elastic, instance of the release not"
    )

    def run(line: str, code: int = 0) -> str:
        finished = shell(line)
        assert finished.returncode == code, f"{line}\n{finished.stdout}{finished.stderr}"
        return finished.stderr + finished.stdout

    try:
        run("bireme up --nodes p4d.24xlarge=3")
        first = run("bireme install torch-elastic job -f p4d.24xlarge --set workers=2,elastic.maxWorkers=8")
        assert first.startswith(f"install of job: {here}\n")
        for line in ("plan torch-elastic job --against", "diff job", "install torch-elastic job"):
            forgotten = run(f"bireme {line} --set workers=3", code=1)
            assert forgotten.startswith(dropped), line
            # Of what `diff` shows nothing is refused.
            refusal = "values that differ: elastic (not given now), instance (not given now), workers"
            assert (refusal in forgotten) == (line != "diff job"), forgotten
        assert "2 → 3" in run("bireme plan torch-elastic job --against --reuse-values --set workers=3")
        assert "+  parallelism: 3" in run("bireme diff job --reuse-values --set workers=3", code=1)
        assert run("bireme install torch-elastic job --reuse-values --set workers=3").startswith(kept)
        assert run("bireme scale job 2").startswith(kept)
        assert run("bireme uninstall job").startswith(f"uninstall of job: {here}\n")
    finally:
        assert shell("bireme down").returncode == 0


@pytest.mark.whole
def test_a_kubeconfig_that_is_set_goes_before_the_cluster_of_bireme_up(shell: Shell, tmp_path: Path) -> None:
    other = tmp_path / "other"
    try:
        assert "names another cluster" in shell(f"KUBECONFIG={other} bireme up --nodes cpu=1").stderr
        assert f"there is no kubeconfig at {other}" in shell(f"KUBECONFIG={other} bireme list").stderr
        assert shell(f"KUBECONFIG={other} bireme list --cluster bireme").returncode == 0
        assert shell("env -u KUBECONFIG bireme list").returncode == 0
        assert shell("bireme list").returncode == 0
        assert shell(f"cp $KUBECONFIG {other}").returncode == 0
        uninstall = shell(f"KUBECONFIG={other} bireme uninstall nothing")
        assert re.match(r"uninstall of nothing: context \S+, namespace default\n", uninstall.stderr)
    finally:
        assert shell("bireme down").returncode == 0


@pytest.mark.whole
def test_a_job_is_listed_stopped_resumed_and_its_history_is_kept(shell: Shell) -> None:
    def run(line: str, code: int = 0) -> str:
        finished = shell(line)
        assert finished.returncode == code, f"{line}\n{finished.stdout}{finished.stderr}"
        return finished.stdout

    def listed() -> dict[str, tuple[object, ...]]:
        found = json.loads(run("bireme list -o json"))
        return {
            each["release"]: (each["phase"], *each["workers"].values(), each["accelerators"])
            for each in found
        }

    try:
        run("bireme up --nodes p4d.24xlarge=2,cpu=1")
        run("bireme install torch-elastic job -f p4d.24xlarge --set workers=2")
        run("bireme install torch-elastic large -f p4d.24xlarge --set workers=8", code=1)
        assert listed() == {"job": ("running", 2, 2, 16), "large": ("pending", 0, 8, 64)}
        assert re.search(r"job +default +torch-elastic-\S+ +running +2/2 +16 +\d+[smh]", run("bireme list"))
        status = run("bireme status large", code=1)
        assert status.startswith("✗ 6 of 8 worker pods do not fit on 2 p4d.24xlarge nodes")
        assert status.count("Insufficient nvidia.com/gpu") == 1
        run("bireme stop job")
        assert listed()["job"] == ("stopped", 0, 2, 16)
        run("bireme resume job", code=1)  # The other job took its nodes.
        run("bireme uninstall large")
        assert "running" in run("bireme resume job && bireme list")
        assert "has no value `job.suspend`" in shell("bireme install etcd && bireme stop etcd").stderr
        typed = "_BIREME_COMPLETE=zsh_complete COMP_CWORD=2"
        assert "job" in run(f'{typed} COMP_WORDS="bireme status jo" bireme').split()
        assert (
            run(f'{typed} COMP_WORDS="bireme status -n nowhere jo" bireme'.replace("=2", "=4")).strip() == ""
        )
        revisions = json.loads(run("bireme history job -o json"))
        assert [each["revision"] for each in revisions] == [1, 2, 3, 4]
        assert "no release nothing" in shell("bireme history nothing").stderr
        watched = shell('bireme status job --watch | grep --max-count=2 "as planned"')
        assert watched.stdout.count("as planned") == 2
    finally:
        assert shell("bireme down").returncode == 0
