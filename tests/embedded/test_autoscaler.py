"""Jobs that follow the capacity: the real controller with its chart's rights, on a real control plane."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bireme.cli import cli
from bireme.clusters.embedded import EmbeddedCluster
from bireme.clusters.programs import Program
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from bireme.tools import Toolbox
from bireme_runtime.elastic import progress
from bireme_runtime.elastic.monitor import failures, status
from bireme_runtime.process.server import Background
from tests.embedded.elastic_jobs import (
    BIREME,
    REGISTRY,
    TYPE,
    elastic,
    nodes,
    options,
    running,
    service,
    workers,
)
from tests.runtime.etcd_servers import free_port
from tests.support import controllers, faults
from tests.support.processes import autoscaler
from tests.support.waiting import until


@pytest.fixture(scope="module")
def controller(
    cluster: EmbeddedCluster, new_release: Callable[[], InstalledRelease], test_namespace: str
) -> Iterator[Program]:
    """charts/autoscaler for the namespace of the tests; its controller runs as a process."""
    release = new_release()
    sets = [f"watchNamespace={{{test_namespace},kube-public}}", "everySeconds=1", REGISTRY]
    release.install("autoscaler", "autoscaler", test_namespace, sets=sets)
    with controllers.running(cluster, "autoscaler", test_namespace, BIREME) as program:
        yield program
    release.uninstall()


@pytest.fixture
def occupied(cluster: EmbeddedCluster, test_namespace: str) -> Iterator[Callable[..., Callable[[], None]]]:
    """``occupied(3)``: pods of a service take so many whole nodes; calling the result ends them."""
    made: list[str] = []
    pods = f"/api/v1/namespaces/{test_namespace}/pods"

    def end(names: list[str]) -> None:
        for name in names:
            cluster.api.delete(f"{pods}/{name}", gracePeriodSeconds="0")
            made.remove(name)

    def occupy(count: int, **spec: Any) -> Callable[[], None]:
        names = [f"service-{len(made) + index}" for index in range(count)]
        for name in names:
            cluster.api.create(pods, service(name, **spec))
            made.append(name)
        return partial(end, names)

    yield occupy
    end(list(made))


@pytest.fixture
def urgent(cluster: EmbeddedCluster) -> Iterator[str]:
    """A PriorityClass that goes first, but does not preempt: it is the controller that makes room."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    body = {"metadata": {"name": "urgent"}, "value": 1000, "preemptionPolicy": "Never"}
    cluster.api.create(path, body)
    yield "urgent"
    cluster.api.delete(f"{path}/urgent")


class AnsweringWorker:
    """The real answers of a worker, at a port of this machine: nobody answers at those of fake pods."""

    def __init__(self) -> None:
        self.port, self.seen, self._starts = free_port(), progress.Progress(), status.Starts()
        known = status.WorkerStatus(self._starts, self.seen, failures.Ledger(), lambda: "")
        Background(known.answer, "", self.port)

    def is_in(self, job: InstalledRelease, cluster: EmbeddedCluster) -> None:
        """It answers for the workers that the job has now."""
        for pod in job.objects("pods"):
            path = f"/api/v1/namespaces/{job.namespace}/pods/{pod['metadata']['name']}/status"
            cluster.api.patch(path, {"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}})


def test_a_job_grows_from_2_to_4_when_nodes_come_free(
    cluster: EmbeddedCluster,
    controller: Program,
    release: ReleaseFactory,
    occupied: Callable[..., Callable[[], None]],
) -> None:
    give_back = occupied(nodes(cluster) - 2)
    job = elastic(release, "elastic.autoscale.max=4")
    until(lambda: running(job) == 2, what="both workers to run")
    assert workers(job) == 2
    give_back()
    until(lambda: running(job) == 4, what="four workers to run")
    assert workers(job) == 4

    def is_told() -> bool:
        events = cluster.api.get(f"/api/v1/namespaces/{job.namespace}/events")["items"]
        return any(each["message"].startswith("2 → ") for each in events if each["reason"] == "Resized")

    until(is_told, what="the event")
    (live,) = job.objects("jobs")
    owners = {each["manager"] for each in live["metadata"]["managedFields"]}
    assert "bireme-autoscaler" in owners


@pytest.mark.whole
def test_a_job_gives_way_to_a_service_of_a_higher_priority(
    cluster: EmbeddedCluster,
    controller: Program,
    release: ReleaseFactory,
    occupied: Callable[..., Callable[[], None]],
    urgent: str,
) -> None:
    count = nodes(cluster)
    job = elastic(release, f"elastic.autoscale.max={count}", workers=count)
    until(lambda: running(job) == count, what="the job to fill the nodes")
    occupied(1, priorityClassName=urgent)
    service = f"/api/v1/namespaces/{job.namespace}/pods/service-0"
    until(lambda: cluster.api.get(service)["status"]["phase"] == "Running", what="the service to run")
    assert workers(job) == count - 1
    until(lambda: running(job) == count - 1, what="the other workers to run")


@pytest.mark.whole
def test_a_job_is_not_resized_while_it_writes_a_checkpoint(
    cluster: EmbeddedCluster,
    controller: Program,
    release: ReleaseFactory,
    occupied: Callable[..., Callable[[], None]],
) -> None:
    give_back = occupied(nodes(cluster) - 2)
    worker = AnsweringWorker()
    worker.seen.board.mark_saving(0, True)
    job = elastic(release, "elastic.autoscale.max=3", f"monitoring.metrics.port={worker.port}")
    until(lambda: running(job) == 2, what="both workers to run")
    worker.is_in(job, cluster)
    give_back()
    sentence = f"{job.namespace}/{job.name}-r1: it writes a checkpoint"
    until(lambda: sentence in controller.log.read_text(), what=controller.log.read_text)
    assert workers(job) == 2
    worker.seen.board.mark_saving(0, False)
    until(lambda: workers(job) == 3, what=controller.log.read_text)


@pytest.mark.whole
@pytest.mark.parametrize("helm", ["helm", "helm3"])
def test_an_upgrade_keeps_the_number_and_a_rollback_takes_it_back(
    cluster: EmbeddedCluster,
    controller: Program,
    release: ReleaseFactory,
    toolbox: Toolbox,
    helm: str,
) -> None:
    job = elastic(release, "elastic.autoscale.max=3", "elastic.autoscale.cooldown=3600", helm=helm)
    until(lambda: workers(job) == 3, what=controller.log.read_text)
    before = pods(job)
    job.upgrade(
        **options("elastic.autoscale.max=3", "elastic.autoscale.cooldown=3600", "job.labels.team=vision"),
        helm=helm,
    )
    (live,) = job.objects("jobs")
    assert live["metadata"]["labels"]["team"] == "vision"
    assert workers(job) == 3
    assert job.wait() == ()
    assert pods(job) == before
    scale = ["scale", job.name, "5", "--namespace", job.namespace, "--kubeconfig", str(cluster.kubeconfig)]
    assert "follows the capacity" in str(CliRunner().invoke(cli, scale).exception)
    if helm == "helm":
        assert 'conflicts with "bireme-autoscaler"' in roll_back(job, toolbox, cluster, helm).stderr
        assert workers(job) == 3
    done = roll_back(job, toolbox, cluster, helm, *(["--force-conflicts"] if helm == "helm" else []))
    assert done.returncode == 0, done.stderr
    assert workers(job) == 2


def pods(job: InstalledRelease) -> set[str]:
    """The UIDs of its workers' pods."""
    return {
        each["metadata"]["uid"] for each in job.objects("pods") if "deletionTimestamp" not in each["metadata"]
    }


def roll_back(
    job: InstalledRelease, toolbox: Toolbox, cluster: EmbeddedCluster, helm: str, *more: str
) -> subprocess.CompletedProcess[str]:
    command = [str(toolbox.path(helm)), "rollback", job.name, "1", "--namespace", job.namespace]
    command += ["--kubeconfig", str(cluster.kubeconfig), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.whole
def test_a_job_keeps_to_its_hours(controller: Program, release: ReleaseFactory) -> None:
    always = {"elastic": {"autoscale": {"schedules": [{"from": "00:00", "to": "00:00", "max": 1}]}}}
    job = elastic(release, values=always)
    until(lambda: workers(job) == 1, what=controller.log.read_text)
    until(lambda: running(job) == 1, what="one worker to run")


@pytest.mark.whole
def test_a_job_shrinks_before_its_spot_node_goes(
    cluster: EmbeddedCluster, controller: Program, release: ReleaseFactory
) -> None:
    count = nodes(cluster)
    job = elastic(release, f"elastic.autoscale.max={count}", workers=count)
    until(lambda: running(job) == count, what="the job to fill the nodes")
    name = next(pod.node for pod in job.pods() if pod.role == "worker")
    node = cluster.api.get(f"/api/v1/nodes/{name}")
    taints = node["spec"].get("taints") or []
    notice = {"key": "aws-node-termination-handler/spot-itn", "value": "x", "effect": "NoSchedule"}
    cluster.api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": [*taints, notice]}})
    try:
        until(lambda: workers(job) == count - 1, what=controller.log.read_text)
    finally:
        cluster.api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": taints or None}})
    until(lambda: workers(job) == count, what=controller.log.read_text)


@pytest.mark.whole
def test_a_job_that_is_deleted_midway_disturbs_nobody(
    cluster: EmbeddedCluster, controller: Program, release: ReleaseFactory
) -> None:
    first, second = (elastic(release, "elastic.autoscale.max=3", workers=1) for _ in range(2))
    until(lambda: running(first) >= 1 and running(second) >= 1, what="both jobs to run")
    first.uninstall()
    until(lambda: running(second) == 3, what=controller.log.read_text)
    controller.check_alive()


@pytest.mark.whole
def test_another_controller_takes_over_from_one_that_is_paused_or_killed(
    cluster: EmbeddedCluster,
    controller: Program,
    release: ReleaseFactory,
    test_namespace: str,
    tmp_path: Path,
) -> None:
    log, where = tmp_path / "log", (f"--namespace={test_namespace}", f"--lease-namespace={test_namespace}")
    with autoscaler(cluster.kubeconfig, log, "--direct", *where) as second:
        try:
            until(lambda: "waiting: " in log.read_text(), what=log.read_text)
            job = elastic(release, "elastic.autoscale.max=3", "elastic.autoscale.cooldown=0")
            until(lambda: workers(job) == 3, what=controller.log.read_text)
            controller.process.send_signal(signal.SIGSTOP)
            until(lambda: log.read_text().endswith(" leading\n"), what=log.read_text)
            controller.process.send_signal(signal.SIGCONT)
            until(lambda: "waiting: " in controller.log.read_text(), what=controller.log.read_text)
            second.kill()
            until(lambda: controller.log.read_text().count(" leading\n") == 2, what=controller.log.read_text)
        finally:
            controller.process.send_signal(signal.SIGCONT)
    assert workers(job) == 3


def test_the_first_failure_of_any_job_outlives_its_pods(
    cluster: EmbeddedCluster, controller: Program, release: ReleaseFactory
) -> None:
    sets = ["workers=2", "rendezvous.backend=c10d", "etcd.enabled=false"]
    job = release("torch-elastic", instance=TYPE, sets=sets, expect_differences=True)
    until(lambda: running(job) == 2, what="both workers to run")
    pod = next(each for each in job.pods() if each.slot == f"{job.name}-r1-1")
    faults.fail(cluster, pod.name, 1, job.namespace)

    def status() -> str:
        target = ["-n", job.namespace, "--kubeconfig", str(cluster.kubeconfig)]
        return " ".join(CliRunner().invoke(cli, ["status", job.name, *target]).output.split())

    said = f"{pod.name} on {pod.node}: container trainer ended"
    until(lambda: said in status(), 60, controller.log.read_text)
    cluster.api.delete(f"/api/v1/namespaces/{job.namespace}/pods/{pod.name}")
    until(lambda: pod.name not in {each.name for each in job.pods()}, what="the pod to be gone")
    assert f"{job.name}-r1 failed first at" in status()
    assert said in status()
