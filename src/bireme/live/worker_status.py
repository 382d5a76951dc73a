"""Status of a running elastic job, as its workers tell it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bireme.core.manifests import Manifest
from bireme.core.plain import Plain
from bireme.live.pod_http import Ask, metrics_port
from bireme.live.pods import ObservedPod
from bireme.live.timeline import lasted

# Each pod that does not answer costs the time limit of a request.
_MOST_PODS = 3


@dataclass(frozen=True)
class WorkerStatus(Plain):
    """The run of one job.

    ``waits`` says for what it waits, ``spares`` which workers wait while the others train, ``failures`` who
    failed first in each round.
    """

    job: str
    round: int
    world: int
    step: int | None
    steps_per_second: float
    restarts: Mapping[str, int]
    lost_steps: int
    waits: str
    spares: tuple[str, ...]
    failures: tuple[str, ...]
    nodes: Mapping[str, int]
    events: tuple[str, ...] = ()
    snapshot: str = ""
    total_steps: int = 0
    seconds_left: float | None = None

    @property
    def pace(self) -> str:
        """The step, of how many, the rate and the time that is left; empty before the first step."""
        if self.step is None:
            return ""
        of = f" of {self.total_steps} ({self.step / self.total_steps:.0%})" if self.total_steps else ""
        left = f", {lasted(self.seconds_left)} left" if self.seconds_left is not None else ""
        return f"step {self.step}{of}, {self.steps_per_second:.2f} a second{left}"

    @classmethod
    def of(cls, job: str, status: Mapping[str, Any]) -> WorkerStatus:
        """From a worker's status (docs/runtime.md)."""
        failures = tuple(each["sentence"] for each in status["failures"])
        return cls(
            job, status["round"], status["world"], status["step"], status["stepsPerSecond"],
            dict(status["restarts"]), status["lostSteps"], status["waits"], tuple(status.get("spares", ())),
            failures, dict(status["nodes"]), tuple(each["sentence"] for each in status.get("events", ())),
            _snapshot(status.get("snapshots", {})), status.get("totalSteps", 0), status.get("secondsLeft"),
        )  # fmt: skip


def _snapshot(kept: Mapping[str, Any]) -> str:
    """The newest snapshot of a worker, in words; empty without one."""
    if not kept:
        return ""
    age = max(0.0, time.time() - kept["time"])
    claim = f", step {kept['flushed']} on the claim" if "flushed" in kept else ""
    return (
        f"step {kept['step']}, {age:.0f} s ago, {kept['MiB']} MiB, copies at other workers: "
        f"{kept['copies']}{claim}; ranks waited {kept['blockedSeconds']:.1f} s for {kept['count']}"
    )


def worker_answers(
    ask: Ask, namespace: str, manifests: Iterable[Manifest], pods: Iterable[ObservedPod], path: str
) -> dict[str, Mapping[str, Any]]:
    """What one worker of each of a release's elastic jobs answers to ``path``, by the job's name."""
    ports = {item.name: port for item in manifests if (port := metrics_port(item))}
    found: dict[str, Mapping[str, Any]] = {}
    asked: dict[str, int] = dict.fromkeys(ports, 0)
    for pod in pods:
        job = pod.workload
        known = found.get(job)
        # A spare knows of no round, so another worker is asked as well.
        if job not in ports or (known and known.get("world", 1)) or not pod.ready or asked[job] == _MOST_PODS:
            continue
        asked[job] += 1
        # The differences already tell what is wrong with a pod that does not answer.
        answer = ask(namespace, {"metadata": {"name": pod.name}}, ports[job], path)
        if answer is not None and (known is None or answer.get("world")):
            found[job] = answer
    return found
