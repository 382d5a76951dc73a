"""How a training job recovers from a kill, read from the logs of its workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pytest

from tests.kind.training import Event, Training


@dataclass(frozen=True)
class World:
    """Workers that trained together, by the log of their rank 0. Times are Unix times.

    ``agreed``: the start of rank 0's process, which its agent starts as soon as all agents have agreed.
    ``import_seconds``: the time in which that process started Python and imported torch.
    """

    agreed: float
    size: int
    import_seconds: float
    first_step: float | None = None


def worlds_after(events: Iterable[Event], moment: float) -> list[World]:
    """The worlds that were agreed after ``moment``, in order."""
    worlds: list[World] = []
    for event in sorted(events, key=lambda event: float(event["time"])):
        if event["event"] == "start" and event["rank"] == 0:
            agreed = event["time"] - event["import_seconds"] - event["join_seconds"]
            if agreed > moment:
                worlds.append(World(agreed, event["world_size"], event["import_seconds"]))
        if event["event"] == "step" and worlds and worlds[-1].first_step is None:
            worlds[-1] = replace(worlds[-1], first_step=event["time"])
    return worlds


def wait_for_world(
    training: Training, moment: float, seconds: float, fits: Callable[[World], bool] = lambda world: True
) -> list[World]:
    """Wait for a step of a world that was agreed after ``moment`` and ``fits``; the worlds up to that one."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        worlds = worlds_after(list(training.events), moment)
        for number, world in enumerate(worlds, 1):
            if world.first_step is not None and fits(world):
                return worlds[:number]
        time.sleep(0.1)
    pytest.fail(
        f"no new world trained within {seconds:.0f} s; the last lines of the workers:\n"
        + "\n".join(training.output[-40:])
    )
