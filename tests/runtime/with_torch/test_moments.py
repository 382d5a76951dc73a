"""Newcomers join at a checkpoint that images/torch/elastic.py makes for them, on real torchrun."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import waiting

pytestmark = pytest.mark.whole

IMAGE = Path(__file__).parents[3] / "images" / "torch"


def events(run: Any, name: str) -> list[dict[str, Any]]:
    """The events with this name that the workers have printed."""
    lines = [line for worker in run.workers for line in run.words(worker).splitlines()]
    return [event for line in lines if line.startswith("{") and (event := json.loads(line))["event"] == name]


def test_a_newcomer_gets_a_checkpoint_early_and_no_step_is_made_again(job: Callable[..., Any]) -> None:
    run = job(PET_NNODES="1:2", BIREME_JOIN="checkpoint", HOME="/tmp")
    for name in ("digits.py", "elastic.py"):
        shutil.copy(IMAGE / name, run.folder)
    run.script = ["/mnt/digits.py", "--checkpoints=/mnt/run", "--steps=400", "--step-seconds=0.1"]
    run.script += ["--checkpoint-every=100000", "--tensorboard=/tmp/events"]
    run.start("a", 0)
    waiting.until(lambda: events(run, "step"), what=lambda: run.words("a")[-3000:])
    run.start("b", 1)
    waiting.until(lambda: events(run, "resume"), 180, lambda: run.words("a")[-3000:])
    # The checkpoint, that of SIGTERM right after it, and no other.
    saved = sorted({event["step"] for event in events(run, "checkpoint")})
    assert {event["step"] for event in events(run, "resume")} == {saved[-1]}
    assert saved[-1] < 400
    assert [run.end(name, 180) for name in "ab"] == [0, 0]
    steps = [event["step"] for event in events(run, "step") if event["rank"] == 0]
    assert sorted(steps) == list(range(1, 401))
