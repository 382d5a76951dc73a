"""`bireme status` shows the progress of shards: a real dispatcher behind a real API server's proxy."""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from bireme.cli import views
from bireme.clusters.embedded import EmbeddedCluster
from bireme.clusters.waiting import until
from bireme.core.manifests import Manifest
from bireme.live.pod_http import through_the_api
from bireme.live.shards import Shards, shards
from bireme.tools import Toolbox
from tests.runtime.dispatcher_replicas import Dispatchers
from tests.runtime.etcd_servers import EtcdServer

LABELS = {"app.kubernetes.io/component": "dispatcher"}


def own_address() -> str:
    """An address of this machine; not loopback, because the API server does not connect to that."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("192.0.2.1", 9))
        return str(sock.getsockname()[0])


@pytest.fixture
def replicas(toolbox: Toolbox, tmp_path: Path) -> Iterator[Dispatchers]:
    server = EtcdServer(toolbox.path("etcd"), tmp_path / "etcd").start()
    found = Dispatchers(server.endpoint, "/test/", host=own_address()).start()
    yield found
    found.stop()
    server.stop()


@pytest.fixture
def expose(cluster: EmbeddedCluster, test_namespace: str) -> Callable[[int], Manifest]:
    """A Service whose only endpoint is a port of this machine, given as that of a pod, as it must be."""
    core = f"/api/v1/namespaces/{test_namespace}"

    def make(port: int) -> Manifest:
        name = f"dispatcher-{port}"
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "labels": LABELS},
            "spec": {"ports": [{"name": "http", "port": 7190}]},
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "schedulingGates": [{"name": "bireme/never"}],
                "containers": [{"name": "dispatcher", "image": "none"}],
            },
        }
        reference = {"kind": "Pod", "name": name, "namespace": test_namespace}
        endpoints = {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {"name": name},
            "subsets": [
                {
                    "addresses": [{"ip": own_address(), "targetRef": reference}],
                    "ports": [{"name": "http", "port": port}],
                }
            ],
        }
        cluster.api.create(f"{core}/services", service)
        cluster.api.create(f"{core}/pods", pod)
        where = {"podIP": own_address(), "podIPs": [{"ip": own_address()}]}
        cluster.api.patch(f"{core}/pods/{name}/status", {"status": where})
        cluster.api.create(f"{core}/endpoints", endpoints)
        return Manifest(service)

    return make


def test_the_status_shows_shards_whichever_replica_answers(
    cluster: EmbeddedCluster, test_namespace: str, replicas: Dispatchers, expose: Callable[[int], Manifest]
) -> None:
    from bireme_runtime.dispatcher import Dispatcher

    ask = through_the_api(cluster.api, 5, "services")
    follower = replicas.ports[1 - replicas.leader()]
    service = expose(follower)
    with Dispatcher(replicas.addresses, "run-1", "worker-0") as trainer:
        trainer.add(["a", "bad", "b", "c"], passes=2, failures=1)
        taken = trainer.shards()
        next(taken)
        next(taken)
        taken.close()
        taken = trainer.shards()
        next(taken)
        told: list[Shards] = []

        def is_told() -> bool:
            told[:] = shards(ask, test_namespace, [service])
            return bool(told)

        # The API server knows the endpoints a moment later.
        until(is_told, 120, "the service proxy")
        (found,) = told
        taken.close()
    assert (found.dataset, found.number, found.passes, found.is_over) == ("run-1", 1, 2, False)
    assert (found.todo, found.pending, found.done, found.failed) == (1, 1, 1, ("bad",))
    (worker,) = found.trainers
    assert (worker.name.partition(".")[0], worker.in_hand, worker.done) == ("worker-0", ("b",), 1)
    shown = io.StringIO()
    Console(file=shown, width=120).print(views.shards_view(found))
    assert (
        "shards of run-1: pass 1 of 2: 1 todo, 1 pending, 1 done, 1 failed, 0 dispatched again"
        in shown.getvalue()
    )
    assert "given up: bad" in shown.getvalue()


def test_a_dispatcher_that_does_not_answer_is_left_out(
    cluster: EmbeddedCluster, test_namespace: str, expose: Callable[[int], Manifest]
) -> None:
    ask = through_the_api(cluster.api, 5, "services")
    assert shards(ask, test_namespace, [expose(9)]) == ()
