"""Jobs that really train grow into what comes free and give way to a service; the controller is in a pod."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from bireme.clusters.kind import KindCluster
from bireme.core.labels import NODE_TYPE_LABEL
from bireme.testing.pytest_plugin import InstalledRelease
from tests.kind.paddle import DYNAMIC, Jobs, PaddleJob
from tests.kind.shell import NODE_TYPE, until
from tests.kind.training import ANYWHERE, Training

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("controller", "places")]

# Stands in for accelerators: two nodes advertise two each, so that a worker has half a node.
PLACE = "bireme.test/place"
RESOURCES = {
    "requests": {"cpu": "50m", "memory": "384Mi", PLACE: "1"},
    "limits": {"memory": "2Gi", PLACE: "1"},
}
AUTOSCALE = {"enabled": True, "min": 2, "max": 4, "cooldown": 0}
Occupy = Callable[..., Callable[[], None]]


@pytest.fixture(scope="module")
def places(cluster: KindCluster) -> Iterator[None]:
    """Two nodes with two places each."""
    found = cluster.api.get("/api/v1/nodes", labelSelector=f"{NODE_TYPE_LABEL}={NODE_TYPE}")["items"]
    paths = [f"/api/v1/nodes/{node['metadata']['name']}/status" for node in found[:2]]
    for path in paths:
        cluster.api.patch(path, {"status": {"capacity": {PLACE: "2"}, "allocatable": {PLACE: "2"}}})
    yield
    for path in paths:
        cluster.api.patch(path, {"status": {"capacity": {PLACE: None}, "allocatable": {PLACE: None}}})


@pytest.fixture
def urgent(cluster: KindCluster) -> Iterator[str]:
    """A PriorityClass that goes first, but does not preempt: it is the controller that makes room."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    cluster.api.create(path, {"metadata": {"name": "urgent"}, "value": 1000, "preemptionPolicy": "Never"})
    yield "urgent"
    cluster.api.delete(f"{path}/urgent")


@pytest.fixture
def occupy(cluster: KindCluster, test_namespace: str) -> Iterator[Occupy]:
    """``occupy("service")``: a service takes a whole node, as soon as one is free; the result ends it."""
    pods, made = f"/api/v1/namespaces/{test_namespace}/pods", set[str]()

    def end(name: str) -> None:
        cluster.api.delete(f"{pods}/{name}")
        until(lambda: cluster.api.find(f"{pods}/{name}") is None, what=f"{name} to be gone")
        made.discard(name)

    def _occupy(name: str, **spec: Any) -> Callable[[], None]:
        cluster.api.create(pods, service(name, **spec))
        made.add(name)
        path = f"{pods}/{name}"
        until(lambda: cluster.api.get(path)["status"]["phase"] == "Running", what=f"{name} to run")
        return partial(end, name)

    yield _occupy
    for name in sorted(made):
        end(name)


def service(name: str, **spec: Any) -> dict[str, Any]:
    container = {
        "name": "service",
        "image": "bireme/python:3.13",
        "command": ["python3", "-c", "import signal; signal.signal(15, lambda *_: exit()); signal.pause()"],
        "resources": {"limits": {PLACE: "2"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    own = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    anywhere = {"tolerations": ANYWHERE["tolerations"], "securityContext": own}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **anywhere, **spec}}


def elastic_job(release: InstalledRelease) -> dict[str, Any]:
    """Its Job that follows the capacity."""
    (found,) = [job for job in release.objects("jobs") if "bireme/autoscale" in job["metadata"]["labels"]]
    return dict(found)


def workers(release: InstalledRelease) -> int:
    """How many workers it shall have."""
    return int(elastic_job(release)["spec"]["parallelism"])


def test_a_torch_job_grows_and_gives_way_to_a_service_without_losing_a_saved_step(
    train: Callable[..., Training],
    torch_images: None,
    occupy: Occupy,
    urgent: str,
    cluster: KindCluster,
    controller: InstalledRelease,
) -> None:
    give_back = occupy("first")
    values = {
        **ANYWHERE,
        "resources": RESOURCES,
        "elastic": {"minWorkers": 2, "maxWorkers": 4, "autoscale": AUTOSCALE},
    }
    training = train(workers=2, values=values)
    training.until_trained(30, world_size=2)
    assert workers(training.job) == 2, "the other node is taken"

    give_back()
    training.until_trained(30, world_size=4)

    asked = time.monotonic()
    occupy("second", priorityClassName=urgent)
    print(f"the service ran {time.monotonic() - asked:.1f} s after it was asked for")
    assert workers(training.job) == 2
    training.until_trained(30, world_size=2)
    events = cluster.api.get(f"/api/v1/namespaces/{training.job.namespace}/events")["items"]
    said = [each["message"] for each in events if each["reason"] == "Resized"]
    assert any(line.startswith("2 → 4 workers: places are free") for line in said), said
    assert any(line.startswith("4 → 2 workers: pods of priority 1000 wait") for line in said), said
    end = training.complete(seconds=900)

    log = sorted(training.events, key=lambda event: float(event["time"]))
    done = [event["step"] for event in log if event["event"] == "step"]
    print(f"worlds {training.worlds()}, steps made twice: {len(done) - len(set(done))}")
    assert set(done) == set(range(1, end["step"] + 1))
    saved = 0
    for event in log:
        if event["event"] == "checkpoint":
            saved = event["step"]
        if event["event"] == "resume":
            assert event["step"] >= saved, f"what step {saved} saved is lost: {event}"


def test_a_paddle_job_grows_and_gives_way_to_a_service_and_each_shard_counts_once(
    paddle: Jobs, occupy: Occupy, urgent: str
) -> None:
    passes, shards = 6, 24
    give_back = occupy("first")
    job = paddle(
        f"--passes={passes}",
        "--batch-size=8",
        "--step-seconds=0.4",
        shards=shards,
        workers=2,
        resources=RESOURCES,
        elastic={"autoscale": AUTOSCALE},
        **DYNAMIC,
    )
    job.until(lambda: bool(job.events("shard", 0) and job.events("shard", 1)), 240, "two trainers to train")
    assert workers(job.release) == 2, "the other node is taken"

    give_back()
    job.until(lambda: bool(job.events("shard", 2) and job.events("shard", 3)), 240, "four trainers to train")
    assert workers(job.release) == 4

    asked = time.monotonic()
    occupy("second", priorityClassName=urgent)
    print(f"the service ran {time.monotonic() - asked:.1f} s after it was asked for")
    assert workers(job.release) == 2
    until_two_go_on(job)
    job.until_ended(900)
    counted = Counter((event["pass"], event["shard"]) for event in job.events("shard"))
    assert counted == {(n, f"digits-{i:05d}"): 1 for n in range(passes) for i in range(shards)}
    assert job.ended_passes() == [(shards, 0)] * passes


def until_two_go_on(job: PaddleJob) -> None:
    """Wait until the first two trainers have done another shard each."""
    before = [len(job.events("shard", trainer)) for trainer in (0, 1)]
    more = "shards of the trainers that are left"
    job.until(
        lambda: all(len(job.events("shard", each)) > count for each, count in enumerate(before)), 240, more
    )
