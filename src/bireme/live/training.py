"""What the workers of a running elastic job tell about their run, through the API server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bireme.clusters.api import Api, ApiError
from bireme.core.manifests import Manifest
from bireme.live.pods import ObservedPod
from bireme.live.timeline import Timeline
from bireme.plan.workloads import pod_templates

_PORT_NAME = "metrics"
_CONTAINER = "trainer"
_SECONDS = 5.0
# Each pod that does not answer costs that time.
_MOST_PODS = 3


@dataclass(frozen=True)
class Training:
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

    @classmethod
    def of(cls, job: str, status: Mapping[str, Any]) -> Training:
        """From a worker's status (docs/runtime.md)."""
        failures = tuple(each["sentence"] for each in status["failures"])
        return cls(
            job, status["round"], status["world"], status["step"], status["stepsPerSecond"],
            dict(status["restarts"]), status["lostSteps"], status["waits"], tuple(status.get("spares", ())),
            failures, dict(status["nodes"]), tuple(each["sentence"] for each in status.get("events", ())),
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for ``-o json``."""
        return {
            "job": self.job,
            "round": self.round,
            "world": self.world,
            "step": self.step,
            "stepsPerSecond": self.steps_per_second,
            "restarts": dict(self.restarts),
            "lostSteps": self.lost_steps,
            "waits": self.waits,
            "spares": list(self.spares),
            "failures": list(self.failures),
            "nodes": dict(self.nodes),
            "events": list(self.events),
        }


def trainings(
    api: Api, namespace: str, manifests: Iterable[Manifest], pods: Iterable[ObservedPod]
) -> tuple[Training, ...]:
    """The runs of a release's elastic jobs; nothing of one whose workers do not answer."""
    answers = _asked(api, namespace, manifests, pods, "v1/status")
    return tuple(Training.of(job, status) for job, status in answers.items())


def timelines(
    api: Api, namespace: str, manifests: Iterable[Manifest], pods: Iterable[ObservedPod]
) -> tuple[Timeline, ...]:
    """What happened in the runs of a release's elastic jobs, as `trainings`."""
    answers = _asked(api, namespace, manifests, pods, "v1/timeline")
    return tuple(Timeline.of(job, answer) for job, answer in answers.items())


def _asked(
    api: Api, namespace: str, manifests: Iterable[Manifest], pods: Iterable[ObservedPod], path: str
) -> dict[str, dict[str, Any]]:
    """What one worker of each job answers."""
    ports = {item.name: port for item in manifests if (port := _port(item))}
    found: dict[str, dict[str, Any]] = {}
    asked: dict[str, int] = dict.fromkeys(ports, 0)
    for pod in pods:
        job = pod.workload
        known = found.get(job)
        # A spare knows of no round, so another worker is asked as well.
        if job not in ports or (known and known.get("world", 1)) or not pod.ready or asked[job] == _MOST_PODS:
            continue
        asked[job] += 1
        try:
            answer = api.proxied(namespace, pod.name, ports[job], path, _SECONDS, kind="pods")
        except ApiError:
            # The differences already tell what is wrong with the pods.
            continue
        if known is None or answer.get("world"):
            found[job] = answer
    return found


def _port(workload: Manifest) -> int | None:
    """The port at which the workers of a workload tell; None where they do not, or for another object."""
    ports = (_port_of(template) for template in pod_templates(workload))
    return next((port for port in ports if port), None)


def metrics_port(job: Mapping[str, Any]) -> int | None:
    """The same of a live Job."""
    return _port_of(job["spec"]["template"])


def _port_of(template: Mapping[str, Any]) -> int | None:
    for container in template["spec"].get("containers") or ():
        if container["name"] == _CONTAINER:
            for port in container.get("ports") or ():
                if port.get("name") == _PORT_NAME:
                    return int(port["containerPort"])
    return None
