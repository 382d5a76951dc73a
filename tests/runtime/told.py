"""What `bireme` reads of a worker that runs here: a stand-in for the API server that asks it."""

from __future__ import annotations

import urllib.request

from bireme.core.manifests import Manifest
from bireme.live.pods import ObservedPod, observed_pod
from tests.support.api_server import Quiet


class Proxy(Quiet):
    """The part of an API server that asks pods; all pods are here."""

    def do_GET(self) -> None:
        _, _, _, _, _, kind, pod, _, path = self.path.split("/", 8)
        assert kind == "pods"
        with urllib.request.urlopen(f"http://127.0.0.1:{pod.rpartition(':')[2]}/{path}") as answer:
            body = answer.read()
        self.answer(body)


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
