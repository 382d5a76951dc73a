"""README.md pasted into a fresh shell: a new HOME, nothing of the project on PATH, tools from the cache."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bireme.core.paths import Paths
from bireme.tools import Toolbox
from tests.support.documents import ROOT, Block, blocks
from tests.support.reader import Newcomer

pytestmark = pytest.mark.embedded


@pytest.fixture
def links(tmp_path: Path) -> Path:
    """A folder that looks like the clone, set up."""
    clone = tmp_path / "clone"
    (clone / ".venv").mkdir(parents=True)
    for entry in ROOT.iterdir():
        if entry.name not in ("dist", ".venv"):
            (clone / entry.name).symlink_to(entry)
    for entry in Path(sys.prefix).iterdir():
        if entry.name != ".ready":
            (clone / ".venv" / entry.name).symlink_to(entry)
    (clone / ".venv/.ready").touch()
    return clone


def follows(newcomer: Newcomer, toolbox: Toolbox) -> None:
    here, there = blocks(ROOT / "README.md")
    *start, down = here.commands
    kubeconfig = newcomer.home / ".local/state/bireme/clusters/bireme/kubeconfig"
    tools = [toolbox.path(name).parent for name in ("helm", "kubectl")]
    try:
        printed = newcomer.pastes(Block(tuple(start), ()))
        assert f"export KUBECONFIG={kubeconfig}\n" in printed
        assert "✓ as planned: 2 pods, 1 accelerator, 0 EFA, nodes: 1 × g5.xlarge" in printed
        newcomer.environment["KUBECONFIG"] = str(kubeconfig)
        printed = newcomer.pastes(there, *tools)
        assert "STATUS: deployed" in printed
        assert "level=INFO" not in printed
    finally:
        newcomer.pastes(Block((down,), ()), newcomer.clone / ".venv/bin")


def test_its_commands_work_in_a_clone_that_is_set_up(
    links: Path, tmp_path: Path, bireme_paths: Paths, toolbox: Toolbox
) -> None:
    follows(Newcomer(links, tmp_path / "home", bireme_paths), toolbox)


@pytest.mark.whole
def test_its_commands_work_in_a_new_clone(tmp_path: Path, bireme_paths: Paths, toolbox: Toolbox) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    follows(Newcomer(clone, tmp_path / "home", bireme_paths), toolbox)


def test_an_older_python_is_named_in_a_sentence(tmp_path: Path) -> None:
    older = tmp_path / "python"
    lie = "import sys; sys.version_info = (3, 10, 14, 'final', 0); exec(sys.argv[1])"
    older.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{lie}" "$2"\n')
    older.chmod(0o755)
    command = ["make", "setup", f"PYTHON={older}", f"VENV={tmp_path}/venv"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (oldest,) = re.findall(r"You need Python ([\d.]+) or newer", (ROOT / "README.md").read_text())
    assert done.stderr.startswith(f"Bireme needs Python {oldest} or newer: run make with PYTHON=")
    assert not (tmp_path / "venv").exists()


WHOSE = {
    **{"pytorch": "PyTorch's", "bireme": "yours", "paddlepaddle": "Paddle's", "library": "Python's"},
    **{"coreos": "etcd's", "mpioperator": "mpi-operator's", "eks": "AWS's", "nvidia": "NVIDIA's"},
}


def test_its_table_tells_whose_images_the_charts_take(bireme_paths: Paths) -> None:
    rows = re.findall(r"^\| \[.*", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert rows
    for row in rows:
        taken = set()
        for chart in re.findall(r"charts/([\w-]+)/", row):
            values = yaml.safe_load((bireme_paths.charts / chart / "values.yaml").read_text())
            parts = {"": values, **{key: each for key, each in values.items() if isinstance(each, dict)}}
            images = {key: each["image"]["repository"] for key, each in parts.items() if "image" in each}
            # That of the chart, those of its agents, or that of its test where it runs nothing else.
            agents = [each for key, each in images.items() if key != "test"] or [*images.values()]
            taken |= {WHOSE[each.partition("/")[0]] for each in ([images[""]] if "" in images else agents)}
        assert set(re.split(r", | or ", row.rstrip("| ").rpartition("| ")[2])) == taken, row


def test_it_has_what_a_newcomer_needs_in_seventy_lines(toolbox: Toolbox) -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 70
    assert re.search(r"no index yet.*yours to build.*\| chart \|", text, re.DOTALL), "said before the table"
    helms = [toolbox.pin(name).version.rpartition(".")[0] for name in ("helm3", "helm")]
    assert f"Helm {' and '.join(helms)} work alike" in text
    charts = {file.parent.name for file in ROOT.glob("charts/*/README.md")}
    assert set(re.findall(r"\]\(charts/([\w-]+)/README\.md\)", text)) == charts
    for needed in (
        "**Not for**",
        "Nothing has run yet on a GPU",
        "`make demo`",
        "`make test`",
        "docs/plan.svg",
    ):
        assert needed in text
