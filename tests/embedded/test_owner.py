"""A killed pytest run leaves no cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bireme.clusters.owner import owned, remove_orphans
from bireme.clusters.state import claim, cluster_dir
from bireme.core.paths import Paths
from bireme.tools import Toolbox
from tests.support.tiers import core
from tests.support.waiting import until

pytestmark = pytest.mark.embedded

TEST = """
import os
import time
from pathlib import Path

def test_it(cluster):
    Path(os.environ["READY"]).write_text(cluster.name)
    time.sleep(600)
"""


def processes_of(state: Path) -> list[bytes]:
    """The command lines of processes that were started from a cluster's folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if command.startswith(os.fsencode(f"{state}/")):
            found.append(command)
    return found


@pytest.mark.parametrize("how", core(signal.SIGTERM, of=[signal.SIGKILL, signal.SIGTERM]))
def test_the_cluster_of_a_run_ends_with_it(bireme_paths: Paths, tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "test_one.py").write_text(TEST)
    state, ready = tmp_path / "state", tmp_path / "ready"
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_XDIST")}
    options = ["-p", "no:cacheprovider", "--rootdir", str(bireme_paths.root), "-c", "pyproject.toml"]
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, "-n0", "--bireme-nodes=cpu=1", str(tmp_path)],
        cwd=bireme_paths.root,
        env={**inherited, "READY": str(ready), "BIREME_STATE": str(state)},
        stdout=subprocess.DEVNULL,
    )
    try:
        until(ready.exists, 300)
        assert processes_of(state)
    finally:
        run.send_signal(how)
        run.wait(120)
    left = [state / "clusters", state / "owners"]
    until(lambda: not processes_of(state) and not any(list(each.iterdir()) for each in left), 120)


def test_the_next_run_removes_what_has_no_owner_and_nothing_else(
    bireme_paths: Paths, toolbox: Toolbox, tmp_path: Path
) -> None:
    """As after a machine that was switched off: no other process has removed the cluster either."""
    paths = replace(bireme_paths, state=tmp_path)
    script = (
        "import os, sys, time; from pathlib import Path; from bireme.clusters import owner;"
        "from bireme.core.paths import Paths; from unittest import mock;"
        "mock.patch.object(owner.subprocess, 'Popen', mock.MagicMock()).start();"
        "block = owner.owned(Paths.discover(), 'embedded', 'orphan'); block.__enter__();"
        "print('owns', flush=True); time.sleep(600)"
    )
    env = {**os.environ, "BIREME_STATE": str(tmp_path)}
    with (
        subprocess.Popen(
            [sys.executable, "-c", script], cwd=bireme_paths.root, env=env, stdout=subprocess.PIPE
        ) as owner,
        owned(paths, "embedded", "mine"),
    ):
        assert owner.stdout is not None
        owner.stdout.readline()
        for name in ("orphan", "mine"):
            claim(cluster_dir(paths, name))
        remove_orphans(paths, toolbox)
        assert {each.name for each in (tmp_path / "clusters").iterdir()} == {"orphan", "mine"}
        owner.kill()
        owner.wait()
        remove_orphans(paths, toolbox)
        assert {each.name for each in (tmp_path / "clusters").iterdir()} == {"mine"}
    assert not list((tmp_path / "owners").iterdir())
