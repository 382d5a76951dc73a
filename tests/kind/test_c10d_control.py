"""What a job survives with the chart's c10d and with etcd, on an old and a new torch.

docs/failures.md has the rows that this test prints (`pytest -s`). The events fall on one job, in turn.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kind import stock_torchrun
from tests.kind.recovery import wait_for_world
from tests.kind.training import Training

TAGS = {"2.6": "0.1.0", "2.14": "0.1.0-torch2.14"}
C10D: Mapping[str, Any] = {"rendezvous": {"backend": "c10d"}, "etcd": {"enabled": False}}
LIMIT_SECONDS = 240


@dataclass(frozen=True)
class Aftermath:
    """Seconds until the first step of a new world and of one with all workers; agents that ended."""

    step: float
    all_workers: float
    agents: int


@dataclass
class Trial:
    """A training job to which faults are applied one after another."""

    torch: str
    training: Training
    workers: int

    def after(self, event: str, act: Callable[[], float | None]) -> Aftermath:
        """Apply a fault, wait until all workers train again, and print the row."""
        ended, began = self.ended(), time.time()
        began = act() or began
        worlds = wait_for_world(self.training, began, LIMIT_SECONDS, lambda world: world.size == self.workers)
        steps = [world.first_step - began for world in worlds if world.first_step is not None]
        found = Aftermath(round(steps[0], 1), round(steps[-1], 1), self.ended() - ended)
        print(json.dumps({"torch": self.torch, "event": event, **vars(found)}))
        self.training.until_trained(10, world_size=self.workers, seconds=LIMIT_SECONDS)
        return found

    def join(self) -> Aftermath:
        """Add one worker."""
        self.workers += 1
        return self.after("a worker joins", lambda: self.training.scale(self.workers))

    def ended(self) -> int:
        """How many agents have ended so far, with their pods or before a restart in them."""
        failed = [pod for pod in self.training.job.objects("pods") if pod["status"]["phase"] == "Failed"]
        return len(failed) + sum("restarting the agent" in line for line in self.training.output)


@pytest.fixture
def trial(
    load: Callable[..., None],
    train: Callable[..., Training],
) -> Callable[..., Trial]:
    """``trial("2.6", values)``: two workers that train with that torch."""

    def _trial(torch: str, values: Mapping[str, Any]) -> Trial:
        load("etcd", "python", "torch" if torch == "2.6" else f"torch-{torch}")
        image = {"registry": "", "repository": "bireme/torch", "tag": TAGS[torch]}
        training = train(workers=2, values={**values, "elastic": {"minWorkers": 2}, "image": image})
        training.until_trained(10, world_size=2, seconds=LIMIT_SECONDS)
        return Trial(torch, training, workers=2)

    return _trial


PROCESS, POD, AGENT, AGENT_0 = (
    "a training process is killed",
    "a pod is deleted",
    "an agent is killed",
    "the agent of worker 0 is killed",
)


def fatal(trial: Trial, agent: str) -> set[str]:
    """Apply all faults to the job, whose agents run ``agent``; returns those that ended other agents too."""
    job, script = trial.training, "-u /opt/bireme/digits.py"
    own = {AGENT: 1, AGENT_0: 1}
    ended = {
        event: trial.after(event, act).agents
        for event, act in (
            (PROCESS, lambda: stock_torchrun.kill(job, 1, script)),
            (POD, lambda: job.delete(2)),
            (AGENT, lambda: stock_torchrun.kill(job, 2, agent)),
            (AGENT_0, lambda: stock_torchrun.kill(job, 0, agent)),
        )
    }
    return {event for event, agents in ended.items() if agents > own.get(event, 0)}


@pytest.mark.whole
@pytest.mark.parametrize("torch", TAGS)
@pytest.mark.parametrize(("values", "ends_all"), [(C10D, {AGENT_0}), ({}, set())], ids=["c10d", "etcd"])
def test_the_charts_own(
    trial: Callable[..., Trial], torch: str, values: Mapping[str, Any], ends_all: set[str]
) -> None:
    job = trial(torch, values)
    job.join()
    assert fatal(job, "bireme_runtime.elastic.agent.launch") == ends_all
