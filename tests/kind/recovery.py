"""How a training job recovers from a kill, read from the logs of its workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pytest

from tests.kind.training import Event, Training


@dataclass(frozen=True)
class World:
    """Workers that trained together, as their rank 0 logged it. Times are Unix times.

    ``agreed`` is the start of its process, which the agents make as soon as they have agreed.
    ``import_seconds`` is what the process took to start Python and to import torch.
    """

    agreed: float
    size: int
    import_seconds: float
    first_step: float | None = None


def worlds_after(events: Iterable[Event], moment: float) -> list[World]:
    """The worlds that were agreed after a moment, in order."""
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
    """Wait until a world that was agreed after the moment, and that fits, has made a step; all up to it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        worlds = worlds_after(list(training.events), moment)
        for number, world in enumerate(worlds, 1):
            if world.first_step is not None and fits(world):
                return worlds[:number]
        time.sleep(0.1)
    pytest.fail(
        f"no new world trained within {seconds:.0f} s; the workers said last:\n"
        + "\n".join(training.said[-40:])
    )
