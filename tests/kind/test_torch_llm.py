"""A small GPT, sharded over elastic workers, reads and learns what one process does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.kind.training import Event, Training

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("torch_images")]

SCRIPT = "llm.py"
TOKENS = 12 * 64
"""Of a step."""
TOLERANCE = 0.01
"""How far a step's loss may differ. Sums over processes round in another order, and AdamW adds to it."""


def steps_of_one_process(steps: int) -> dict[int, Event]:
    """The steps of llm.py in one process without faults."""
    script = ["python3", f"/opt/bireme/{SCRIPT}", "--checkpoints=/tmp/run", f"--steps={steps}"]
    done = subprocess.run(
        ["docker", "run", "--rm", "bireme/torch:0.1.0", *script], capture_output=True, text=True, check=True
    )
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {event["step"]: event for event in events if event["event"] == "step"}


def test_a_run_of_2_then_3_then_2_workers_that_loses_a_pod_reads_and_learns_what_one_process_does(
    train: Callable[..., Training],
) -> None:
    steps = 500
    training = train(workers=2, steps=steps, script=SCRIPT, step_seconds=0.3)
    training.until_trained(30, world_size=2)
    training.delete(1)
    training.until_trained(30, world_size=2)
    training.scale(3)
    training.until_trained(30, world_size=3)
    training.scale(2)
    training.until_trained(30, world_size=2)
    training.until_complete(steps, seconds=900)

    # After the deletion, with a third worker, and without it.
    assert len({event["step"] for event in training.of("resume")}) >= 3
    expected, made = steps_of_one_process(steps), training.of("step")
    assert {event["step"] for event in made} == set(range(1, steps + 1))
    # One worker trains alone until the other one's pod is replaced.
    assert {event["world_size"] for event in made} >= {2, 3}
    for event in made:
        assert event["tokens"] == TOKENS
        assert event["data"] == expected[event["step"]]["data"], event
        assert event["loss"] == pytest.approx(expected[event["step"]]["loss"], rel=TOLERANCE), event
    assert len({event["data"] for event in made}) == steps
    last = [event["loss"] for event in made if event["step"] > steps - 10]
    assert max(last) < 0.7 * made[0]["loss"]
