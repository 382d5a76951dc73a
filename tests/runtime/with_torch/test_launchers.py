"""Launchers that start the processes of a node, under the agent: torchrun, accelerate, deepspeed."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bireme.core.paths import Paths
from bireme.tools.store import make_once
from tests.runtime.with_torch.conftest import ROOT
from tests.support.processes import gone

pytestmark = pytest.mark.whole

Make = Callable[..., Any]
# Debian's torch has no libuv, which torchrun asks for.
WITHOUT_LIBUV = Path(__file__).parents[2] / "kind/without_libuv/sitecustomize.py"


@pytest.fixture(scope="module")
def packages() -> Path:
    """A folder with the real accelerate and DeepSpeed, for the Python of the root file system."""
    lock = Path(__file__).with_name("launchers.lock")
    (python,) = Path(ROOT, "usr/lib").glob("python3.*")
    version = python.name.removeprefix("python")
    digest = hashlib.sha256(f"{version} {lock.read_text()}".encode()).hexdigest()[:16]
    folder = Paths.discover(start=lock).cache / "launchers" / digest
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]

    def make(partial: Path) -> None:
        target = ["--python-version", version, "--target", str(partial)]
        subprocess.run([*install, *target, "-r", str(lock)], check=True)

    make_once(folder, make)
    return folder


@pytest.mark.parametrize("library", ["accelerate", "deepspeed"])
def test_the_real_launcher_trains_on_two_nodes_and_again_after_a_failure(
    job: Make, packages: Path, library: str
) -> None:
    run = job(
        BIREME_LAUNCHER=library, PET_NPROC_PER_NODE="2", PET_NNODES="2:2", PYTHONPATH="/srv:/opt:/mnt",
        HOME="/tmp", DS_ACCELERATOR="cpu", BIREME_ACCELERATE='{"mixed_precision": "no"}',
    )  # fmt: skip
    run.packages = packages
    run.folder.joinpath("launched.py").write_bytes(Path(__file__).with_name("launched.py").read_bytes())
    run.folder.joinpath("sitecustomize.py").write_bytes(WITHOUT_LIBUV.read_bytes())
    for index, name in enumerate("ab"):
        run.script = ["/mnt/launched.py", library, "/mnt", name, "6"]
        # DeepSpeed refuses a host file that names one address twice.
        run.start(name, index, PET_LOCAL_ADDR=f"127.0.0.{index + 1}")
    assert [run.end(name, 300) for name in "ab"] == [0, 0], {name: run.words(name) for name in "ab"}
    starts = [note for name in "ab" for note in run.notes(name, "start")]
    assert {(note["rank"], note["world"]) for note in starts} == {(rank, 4) for rank in range(4)}
    assert all(library in " ".join(note["parent"]) for note in starts), starts
    assert sorted({note["step"] for note in starts}) == [0, 3], "they start again after the failure at step 3"
    assert {note["rank"] for name in "ab" for note in run.notes(name, "done")} == {0, 1, 2, 3}
    run.check_steps(6)


def two_nodes(make: Make, **env: Any) -> Any:
    """Two nodes with two processes each, which a torchrun by hand starts on each of them."""
    run = make(PET_NPROC_PER_NODE="2", BIREME_LAUNCHER="node", PYTHONPATH="/srv:/mnt", **env)
    (run.folder / "sitecustomize.py").write_bytes(WITHOUT_LIBUV.read_bytes())
    for index, name in enumerate("ab"):
        run.script = [
            "sh", "-c", "exec python3 -m torch.distributed.run --nnodes $NNODES --node-rank $NODE_RANK "
            "--nproc-per-node $NPROC_PER_NODE --master-addr $MASTER_ADDR --master-port $MASTER_PORT "
            f"/mnt/train.py /mnt {name} {' '.join(run.arguments)}",
        ]  # fmt: skip
        run.start(name, index)
    return run


def test_a_lost_node_lets_the_other_train_on_and_rejoins(job: Make) -> None:
    run = two_nodes(job, steps=120, pause=0.2)
    run.wait_for("a", "step", world=4)
    run.workers["b"].send_signal(signal.SIGTERM)
    since = time.time()
    assert run.end("b") == 143
    run.wait_for("a", "step", since, world=2)
    run.start("b", 1)
    run.wait_for("b", "step", since, world=4)
    assert [run.end(name) for name in "ab"] == [0, 0]
    run.check_steps(120)


def test_a_killed_launcher_leaves_no_training_process_behind(job: Make) -> None:
    run = two_nodes(job, steps=60, pause=0.2)
    run.wait_for("b", "step", world=4)
    started, since = run.wait_for("b", "start", world=4), time.time()
    os.kill(started["agent"], signal.SIGKILL)
    # Not the step: one of the old world may still come.
    run.wait_for("b", "start", since, world=4)
    assert gone(started["pid"])
    assert [run.end(name) for name in "ab"] == [0, 0]
    run.check_steps(60)
