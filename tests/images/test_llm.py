"""The small GPT trains with FSDP2 on CPUs, and goes on with another number of processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.images.chroot_jobs import Event, Job, Start

pytestmark = pytest.mark.torch

STEPS = 150
LLM = ("llm.py", "--checkpoints=/tmp/job/checkpoints", f"--steps={STEPS}", "--checkpoint-every=10")
TOKENS = 12 * 64
"""Of a step."""
TOLERANCE = 0.01
"""Relative, of a step's loss: sums over processes are rounded in another order, and AdamW magnifies that."""


def kept(jobs: list[Job]) -> dict[int, Event]:
    """Each step as it was made last, which is what the model has learned from."""
    return {event["step"]: event for job in jobs for event in job.events("step")}


# With 2.6, FSDP2 runs on CPUs only by a stand-in for a stream's event.
@pytest.mark.parametrize("image", ["torch-2.6", "torch-2.14"], indirect=True)
def test_a_run_of_2_then_3_then_2_processes_reads_and_learns_what_one_process_does(
    start_in: Start, tmp_path: Path
) -> None:
    (alone_in := tmp_path / "alone").mkdir()
    alone = start_in(alone_in, *LLM)
    assert alone.status() == 0, alone.output
    (resized_in := tmp_path / "resized").mkdir()
    two = start_in(resized_in, *LLM, "--step-seconds=0.1", processes=2)
    two.wait_for_step(25)
    two.terminate()
    three = start_in(resized_in, *LLM, "--step-seconds=0.1", processes=3)
    three.wait_for_step(65)
    three.signal(1, signal.SIGKILL)
    three.wait_until(lambda: len(three.events("resume")) == 6, "a resume after the kill")
    three.wait_for_step(85)
    three.terminate()
    again = start_in(resized_in, *LLM, processes=2)
    assert again.status() == 0, again.output

    # Of a stop by SIGTERM nothing is made again, of a kill at most what came after the last checkpoint.
    assert three.events("resume")[0]["step"] == two.events("step")[-1]["step"]
    assert three.events("resume")[-1]["step"] >= 60
    assert again.events("resume")[0]["step"] == three.events("step")[-1]["step"]
    expected, steps = kept([alone]), kept([two, three, again])
    assert sorted(steps) == list(range(1, STEPS + 1))
    assert {event["world_size"] for event in steps.values()} == {2, 3}
    for job in (two, three, again):
        for event in job.events("step"):
            assert event["tokens"] == TOKENS
            assert event["data"] == expected[event["step"]]["data"], event
            assert event["loss"] == pytest.approx(expected[event["step"]]["loss"], rel=TOLERANCE), event
    assert len({event["data"] for event in steps.values()}) == STEPS
    assert steps[STEPS]["loss"] < 0.7 * steps[1]["loss"]
