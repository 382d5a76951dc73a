"""Training survives many random kills."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from tests.kind.training import Training

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("torch_images")]

KILLS = 25
DELETED_PODS = 2


def test_25_random_kills_of_agents_and_processes_and_two_deleted_pods(train: Callable[..., Training]) -> None:
    seed = int(os.environ.get("BIREME_SEED") or random.randrange(10**6))
    print(f"BIREME_SEED={seed}")
    chance = random.Random(seed)
    harms = [*["pod"] * DELETED_PODS, *chance.choices(["agent", "process"], k=KILLS - DELETED_PODS)]
    chance.shuffle(harms)
    training = train(workers=3)
    for number, harm in enumerate(harms, start=1):
        # Sometimes before the job has recovered from the kill before.
        training.until_trained(chance.randrange(1, 40), world_size=chance.choice([3, None]))
        index = chance.randrange(3)
        print(f"{number}: {harm} of worker {index} at step {training.step}")
        if harm == "pod":
            training.delete(index)
        else:
            training.kill(index, agent=harm == "agent")
    training.until_trained(20, world_size=3)
    training.complete(seconds=600)
    assert len(training.pods) == 3 + DELETED_PODS, "agents are restarted inside their containers"
