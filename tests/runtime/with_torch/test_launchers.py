"""Launchers that start the processes of a node themselves, under the agent: real torchrun inside torchrun."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.processes import gone

Make = Callable[..., Any]
# Debian's torch has no libuv, which torchrun asks for.
WITHOUT_LIBUV = Path(__file__).parents[2] / "kind/without_libuv/sitecustomize.py"


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


def test_a_torchrun_by_hand_trains_on_all_nodes(job: Make) -> None:
    run = two_nodes(job, steps=10, pause=0.1)
    assert [run.end(name) for name in "ab"] == [0, 0]
    assert {note["rank"] for name in "ab" for note in run.notes(name, "start")} == {0, 1, 2, 3}
    run.check_steps(10)
    assert not list(run.folder.glob("bireme-*")), "the folder of temporary files is as before"


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
