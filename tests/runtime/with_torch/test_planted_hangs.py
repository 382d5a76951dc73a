"""Sixteen real ranks of four workers meet each planted fault, and the run itself names rank and line."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.planted_hangs import FAULTS, WITHOUT_A_LINE
from tests.support import waiting

Make = Callable[..., Any]
WORKERS = "abcd"
# Among sixteen, gloo ends a process that gets more bytes than it expects. Among four it hangs.
CRASHES = {"another_type"}


def log_of(job: Make, name: str) -> Callable[[], str]:
    """Four workers of four ranks begin a script with a fault: what they have printed."""
    run = job(
        PET_NNODES="4:4", PET_NPROC_PER_NODE="4", BIREME_WARM_START="true",
        BIREME_HANG_SECONDS="20", BIREME_FIRST_STEP_SECONDS="300", BIREME_GRACE_SECONDS="1",
    )  # fmt: skip
    (run.folder / "train.py").write_bytes(Path(__file__).with_name("faults.py").read_bytes())
    run.script = ["/mnt/train.py", name]
    for index, worker in enumerate(WORKERS):
        run.start(worker, index, BIREME_NODE=f"node-{worker}")
    return lambda: "\n".join(run.words(worker) for worker in WORKERS)


@pytest.mark.whole
@pytest.mark.parametrize("name", sorted(FAULTS.keys() - CRASHES))
def test_a_planted_fault_of_sixteen_ranks_is_named_by_the_run_itself(job: Make, name: str) -> None:
    log = log_of(job, name)
    waiting.until(lambda: "the stacks of all processes follow" in log(), 240, log)
    noticed = time.monotonic()
    waiting.until(lambda: "workers have told where they stand" in log(), what=log)
    seconds = time.monotonic() - noticed
    sentence = next(line for line in log().splitlines() if "workers have told where they stand" in line)
    print(f"{name}: after {seconds:.1f} s: {sentence}")
    _, ranks, words = FAULTS[name]
    assert "4 of 4 workers have told" in sentence
    # The evidence is told too.
    assert words in log()
    assert len(ranks) != 1 or f"rank {ranks[0]} on node-a" in sentence
    assert name in WITHOUT_A_LINE or re.search(r"train\.py:\d+", sentence)
    assert seconds <= 5


@pytest.mark.whole
@pytest.mark.parametrize("name", CRASHES)
def test_a_mismatch_that_ends_a_process_is_told_by_what_gloo_says(job: Make, name: str) -> None:
    log = log_of(job, name)
    waiting.until(lambda: " on node-a failed in round 1 (signal 6): " in log(), 240, log)
    sentence = next(line for line in log().splitlines() if " failed in round 1 (signal 6): " in line)
    assert "Is there a distributed collective mismatch in your code?" in sentence
