"""MPIJobs run by the real mpi-operator, with the arguments and the rights that charts/mpijob gives it."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from bireme.clusters.embedded import EmbeddedCluster
from bireme.core.manifests import Manifest
from bireme.live import observe
from bireme.live.observe import Difference
from bireme.live.pods import ObservedPod
from bireme.plan.instances import Instance
from bireme.plan.topology import Plan, expand
from bireme.tools import Toolbox
from tests.support import faults
from tests.support.waiting import until

TYPE = "p4d.24xlarge"
pytestmark = pytest.mark.usefixtures("mpi_operator")


def manifest(name: str, workers: int, **policy: Any) -> dict[str, Any]:
    """An MPIJob on whole p4d.24xlarge nodes, as in the AWS walkthrough."""

    def replica(role: str, count: int, **pod: Any) -> dict[str, Any]:
        labels = {"app.kubernetes.io/instance": name, "app.kubernetes.io/component": role}
        resources = pod.pop("resources", {})
        container = {"name": role, "image": "mpi", "resources": {"limits": resources, "requests": resources}}
        tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
        spec = {"containers": [container], "tolerations": tolerations, **pod}
        template = {"metadata": {"labels": labels}, "spec": spec}
        return {"replicas": count, "restartPolicy": "Never", "template": template}

    devices = {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "4"}
    selector = {"node.kubernetes.io/instance-type": TYPE}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/instance": name}},
        "spec": {
            "slotsPerWorker": 8,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {"cleanPodPolicy": "Running", **policy},
            "mpiReplicaSpecs": {
                "Launcher": replica("launcher", 1),
                "Worker": replica("worker", workers, resources=devices, nodeSelector=selector),
            },
        },
    }


@dataclass(frozen=True)
class Job:
    """One MPIJob on the cluster."""

    cluster: EmbeddedCluster
    instances: Mapping[str, Instance]
    namespace: str
    name: str

    @property
    def path(self) -> str:
        return f"/apis/kubeflow.org/v2beta1/namespaces/{self.namespace}/mpijobs/{self.name}"

    def wait(self, workers: int) -> tuple[Difference, ...]:
        """Wait until it is as planned with ``workers`` workers; the differences that remain."""
        return observe.wait(self.cluster, self._plan(workers), 60).differences

    def differences(self, workers: int) -> tuple[Difference, ...]:
        """How it differs now from the plan with ``workers`` workers."""
        return observe.check(self.cluster, self._plan(workers)).differences

    def _plan(self, workers: int) -> Plan:
        planned = Manifest(manifest(self.name, workers))
        return expand(self.name, self.namespace, [planned], self.instances)

    def pods(self) -> dict[str, ObservedPod]:
        """Its pods by host name."""
        found = observe.observe(self.cluster, self._plan(1))
        return {pod.hostname or "": pod for pod in found}

    def conditions(self) -> set[str]:
        status = self.cluster.api.get(self.path).get("status", {})
        return {each["type"] for each in status.get("conditions", []) if each["status"] == "True"}

    def launcher(self) -> dict[str, Any] | None:
        """The launcher's Job."""
        return self.cluster.api.find(self._launcher)

    def remove(self) -> None:
        """Remove all of it; the garbage collector would first have to discover the new kind."""
        self.cluster.api.delete(self.path)
        self.cluster.api.delete(self._launcher)
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self.cluster.api.delete(pods, labelSelector=f"app.kubernetes.io/instance={self.name}")
        until(lambda: not self.pods(), what="its pods to be gone")

    @property
    def _launcher(self) -> str:
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{self.name}-launcher"


@pytest.fixture
def job(
    cluster: EmbeddedCluster, instances: Mapping[str, Instance], test_namespace: str
) -> Iterator[Callable[..., Job]]:
    """``job(workers=3)``: an MPIJob, removed with its pods when the test ends."""
    made: list[Job] = []

    def _job(workers: int, **policy: Any) -> Job:
        one = Job(cluster, instances, test_namespace, f"m{uuid.uuid4().hex[:6]}")
        made.append(one)
        cluster.api.create(one.path.rpartition("/")[0], manifest(one.name, workers, **policy))
        return one

    yield _job
    for one in made:
        one.remove()


def test_launcher_and_workers_are_as_planned_and_in_the_host_file(
    job: Callable[..., Job], cluster: EmbeddedCluster, toolbox: Toolbox
) -> None:
    one = job(3)
    assert one.wait(3) == ()
    workers = [f"{one.name}-worker-{index}" for index in range(3)]
    assert sorted(one.pods()) == sorted([f"{one.name}-launcher", *workers])
    config = cluster.api.get(f"/api/v1/namespaces/{one.namespace}/configmaps/{one.name}-config")
    assert config["data"]["hostfile"].splitlines() == [
        f"{worker}.{one.name}.{one.namespace}.svc slots=8" for worker in workers
    ]
    # The columns of the kind.
    until(lambda: "Running" in one.conditions(), what="the job to run")
    where = ["--kubeconfig", str(cluster.kubeconfig), "-n", one.namespace]
    command = [str(toolbox.path("kubectl")), *where, "get", "mpijob", one.name, "--no-headers"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.split()[:3] == [one.name, "Running", "3"]


def test_the_launcher_starts_after_the_last_worker_is_ready(
    job: Callable[..., Job], cluster: EmbeddedCluster
) -> None:
    nodes = cluster.nodes[TYPE]
    one = job(nodes + 1)
    until(
        lambda: sorted(pod.ready for pod in one.pods().values()) == [False] + [True] * nodes,
        what="a worker on each node, and one without",
    )
    (pending,) = (pod for pod in one.pods().values() if not pod.ready)
    assert pending.role == "worker"
    assert one.launcher() is None
    (node,) = cluster.add_nodes(TYPE, 1)
    # Not by `wait`, which gives up where the scheduler stands still.
    until(lambda: one.differences(nodes + 1) == (), what=lambda: str(one.differences(nodes + 1)))
    pods = one.pods()
    launcher = pods.pop(f"{one.name}-launcher")
    assert launcher.created >= max(pod.created for pod in pods.values())
    # In this order, because no kubelet ends the pods of a removed node.
    one.remove()
    faults.remove_node(cluster, node)


def test_a_failed_launcher_fails_the_job_with_a_reason(
    job: Callable[..., Job], cluster: EmbeddedCluster
) -> None:
    one = job(2, backoffLimit=0)
    assert one.wait(2) == ()
    faults.fail(cluster, one.pods()[f"{one.name}-launcher"].name, 3, one.namespace)
    until(lambda: "Failed" in one.conditions(), what="the job to fail")
    until(lambda: len(one.pods()) == 1, what="the workers to go")
    (found,) = one.differences(2)
    assert (found.category, found.workload) == ("job-failed", one.name)
    assert "backoff limit" in found.sentence
