"""What `bireme` reads of a worker that runs here: a stand-in for the API server that asks it."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar

from bireme.clusters.api import Api
from bireme.core.manifests import Manifest
from bireme.live.pod_http import through_the_api
from bireme.live.pods import ObservedPod, observed_pod
from bireme.live.timeline import Timeline
from bireme.live.worker_status import WorkerStatus, worker_answers
from tests.runtime.etcd_servers import free_port
from tests.support import waiting
from tests.support.api_server import Quiet

Answer = TypeVar("Answer")


class ToPods(Quiet):
    """The part of an API server that asks pods; all pods are here."""

    def do_GET(self) -> None:
        _, _, _, _, _, kind, pod, _, path = self.path.split("/", 8)
        assert kind == "pods"
        with urllib.request.urlopen(f"http://127.0.0.1:{pod.rpartition(':')[2]}/{path}") as answer:
            body = answer.read()
        self.answer(body)


class Told:
    """What one worker tells of its run at a port of its own, and what `bireme` reads of that."""

    def __init__(self, api: Api) -> None:
        self._ask = through_the_api(api, 5)
        self._port = free_port()
        self.env = {"BIREME_METRICS_PORT": str(self._port)}

    def status(self, true: Callable[[WorkerStatus], Any]) -> WorkerStatus:
        """The status, as soon as that is true of it."""
        return self._until("status", WorkerStatus.of, true)

    def timeline(self, true: Callable[[Timeline], Any]) -> Timeline:
        """The past of the run, as soon as it has a world and that is true of it."""
        return self._until("timeline", Timeline.of, lambda run: run.worlds and true(run))

    def get(self, path: str) -> str:
        """What the worker answers, as to Prometheus."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def _until(self, path: str, read: Callable[[str, Any], Answer], true: Callable[[Answer], Any]) -> Answer:
        found: list[Answer] = []

        def is_told() -> bool:
            job = elastic_job(self._port)
            told = worker_answers(self._ask, "default", [job], [ready_pod()], f"v1/{path}")
            found[:] = [read(name, answer) for name, answer in told.items()]
            return any(true(each) for each in found)

        waiting.until(is_told, what=lambda: f"{path}: {found}")
        return found[0]


def elastic_job(port: int) -> Manifest:
    """A job whose workers tell of their run at this port."""
    trainer = {"name": "trainer", "ports": [{"name": "metrics", "containerPort": port}]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job-r1"}}
    return Manifest({**job, "spec": {"template": {"spec": {"containers": [trainer]}}}})


def ready_pod() -> ObservedPod:
    """The only pod of that job."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job-r1", "controller": True}
    pod = {
        "metadata": {"name": "job-r1-0-abcde", "ownerReferences": [owner]},
        "spec": {"containers": [], "nodeName": "node-a"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    return observed_pod(pod)
