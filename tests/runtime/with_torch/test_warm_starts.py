"""Agents and ranks forked from a process that has imported torch, on real torchrun and etcd."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Make = Callable[..., Any]
WARM = {"BIREME_WARM_START": "true"}


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_run_survives_the_loss_of_an_agent_and_no_start_is_cold(job: Make) -> None:
    run = job(steps=240, pause=0.2, **WARM)
    run.hold()
    for index, name in enumerate("ab"):
        run.start(name, index)
    run.wait_for("b", "step", world=2)
    since = time.time()
    os.kill(run.wait_for("a", "start", world=2)["agent"], signal.SIGKILL)
    run.wait_for_training("b", since, 2)
    rank = run.notes("a", "start")[-1]
    # A rank is its agent's child, as in a cold start, and the agent is the supervisor's.
    assert parent(rank["pid"]) == rank["agent"]
    run.let_go()
    assert [run.end(name) for name in "ab"] == [0, 0]
    run.check_steps(240)
    for name in "ab":
        assert "cold" not in run.words(name)


@pytest.mark.whole
@pytest.mark.parametrize("modules", ["auto", "torch"])
def test_several_ranks_of_a_worker_are_forked_with_one_thread_each(job: Make, modules: str) -> None:
    run = job(steps=5, PET_NNODES="1:1", PET_NPROC_PER_NODE="2", BIREME_WARM_MODULES=modules, **WARM)
    run.start("a")
    assert run.end("a") == 0
    assert {note["rank"] for note in run.notes("a", "start")} == {0, 1}
    assert "cold" not in run.words("a")
