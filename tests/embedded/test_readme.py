"""README.md pasted into a fresh shell: a new HOME, nothing of the project on PATH, tools from the cache."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_it_has_what_a_newcomer_needs_in_seventy_lines() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 70
    assert re.search(r"no index yet.*yours to build.*\| chart \|", text, re.DOTALL), "said before the table"
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
