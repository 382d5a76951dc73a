"""MPI jobs of both orchestrators on a real control plane: what is observed is what was planned."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from bireme.cli import cli
from bireme.clusters.embedded import EmbeddedCluster
from bireme.core.errors import BiremeError
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from bireme.tools import Toolbox
from tests.support import faults
from tests.support.tiers import core
from tests.support.waiting import until

# The types on which the AWS walkthrough trains Mask R-CNN, with their GPUs and EFA interfaces.
TYPES = {"p3.16xlarge": (8, 0), "p3dn.24xlarge": (8, 1), "p4d.24xlarge": (8, 4)}
EACH_TYPE = pytest.mark.parametrize("instance", core("p4d.24xlarge", of=TYPES))
P4D: dict[str, Any] = {"instance": "p4d.24xlarge", "workload": "maskrcnn"}
ALONE = "monitoring.tensorboard.enabled=false"


@pytest.fixture(scope="module", autouse=True)
def nodes(cluster: EmbeddedCluster, test_namespace: str) -> Iterator[None]:
    """Two nodes of each type that the session's cluster lacks, and the claim on EFS."""
    cluster.add_claim("efsvol", test_namespace)
    added = [name for kind in TYPES if kind not in cluster.nodes for name in cluster.add_nodes(kind, 2)]
    yield
    for name in added:
        faults.remove_node(cluster, name)


def live(release: InstalledRelease, role: str) -> list[str]:
    return [pod.name for pod in release.pods() if pod.role == role and pod.is_live]


def conditions(release: InstalledRelease) -> set[str]:
    (job,) = release.objects("jobs")
    return {each["type"] for each in job["status"].get("conditions", []) if each["status"] == "True"}


def told(release: InstalledRelease, role: str) -> list[dict[str, str]]:
    """The environment of each pod of a role."""
    label = "app.kubernetes.io/component"
    return [
        {item["name"]: item.get("value", "") for item in pod["spec"]["containers"][0]["env"]}
        for pod in release.objects("pods")
        if pod["metadata"]["labels"][label] == role
    ]


def assert_whole_nodes(job: InstalledRelease, instance: str, hosts: list[str]) -> None:
    gpus, efa = TYPES[instance]
    workers = [pod for pod in job.pods() if pod.role == "worker" and pod.is_live]
    assert sorted(str(pod.hostname) for pod in workers) == hosts
    assert len({pod.node for pod in workers}) == len(hosts)
    assert {pod.resources["nvidia.com/gpu"] for pod in workers} == {str(gpus)}
    assert {pod.resources.get("vpc.amazonaws.com/efa", "0") for pod in workers} == {str(efa)}
    assert (job.plan.totals.accelerators, job.plan.totals.efa) == (gpus * len(hosts), efa * len(hosts))
    for environment in told(job, "worker"):
        workers_told, slots = environment["BIREME_MPI_WORKERS"], environment["BIREME_MPI_SLOTS"]
        assert int(workers_told) * int(slots) == gpus * len(hosts)
        names = [environment["BIREME_MPI_HOSTS"].replace("{}", str(i)) for i in range(int(workers_told))]
        assert [name.partition(".")[0] for name in names] == hosts


@EACH_TYPE
def test_maskrcnn_without_an_operator_fills_two_nodes(release: ReleaseFactory, instance: str) -> None:
    job = release("mpi-training", instance=instance, workload="maskrcnn", sets=["workers=2", "mpi.np=16"])
    assert job.differences() == ()
    assert_whole_nodes(job, instance, [f"{job.name}-r1-{index}" for index in range(2)])


def test_the_first_workers_success_completes_the_job_and_ends_the_others(release: ReleaseFactory) -> None:
    job = release("mpi-training", sets=["workers=2", ALONE], **P4D)
    faults.complete(
        job.cluster, next(name for name in live(job, "worker") if "-r1-0-" in name), job.namespace
    )
    job.until(lambda: not live(job, "worker") and "Complete" in conditions(job))


def test_an_exit_code_that_no_restart_helps_fails_the_job_at_once(release: ReleaseFactory) -> None:
    job = release("mpi-training", sets=["workers=2", ALONE], **P4D)
    failed = live(job, "worker")[0]
    faults.fail(job.cluster, failed, 78, job.namespace)
    assert [each.category for each in job.wait(until="job-failed")] == ["job-failed"]
    target = ["-n", job.namespace, "--kubeconfig", str(job.cluster.kubeconfig)]
    told = CliRunner().invoke(cli, ["why", job.name, *target], catch_exceptions=False).output
    assert f"{failed} on p4d-24xlarge" in " ".join(told.split())
    assert "ended first, exit code 78" in " ".join(told.split())


@pytest.mark.whole
def test_a_lost_worker_counts_twice_because_its_own_pod_fails_and_the_launchers_too(
    release: ReleaseFactory,
) -> None:
    job = release("mpi-training", sets=["workers=2", "recovery.backoffLimit=2", ALONE], **P4D)
    for pod in live(job, "worker"):
        faults.fail(job.cluster, pod, 75, job.namespace)
    job.wait()
    faults.fail(job.cluster, live(job, "worker")[0], 75, job.namespace)
    assert [each.category for each in job.wait(until="job-failed")] == ["job-failed"]


def key(job: InstalledRelease) -> bytes:
    (secret,) = [item for item in job.objects("secrets") if item["metadata"]["name"] == f"{job.name}-ssh"]
    return base64.b64decode(secret["data"]["ssh-privatekey"])


@pytest.mark.parametrize("helm", core("helm", of=["helm", "helm3"]))
def test_the_ssh_key_is_generated_once_and_kept_by_upgrades(release: ReleaseFactory, helm: str) -> None:
    job = release("mpi-training", sets=["workers=2", ALONE], helm=helm, **P4D)
    made = key(job)
    assert made.startswith(b"-----BEGIN EC PRIVATE KEY-----")
    in_place = ["workers=2", ALONE, "job.activeDeadlineSeconds=9000", "queue.name=training"]
    foreseen = job.changes(sets=in_place, helm=helm, **P4D)
    assert [each.object for each in foreseen.changes if each.action != "nothing"] == [f"Job/{job.name}-r1"]
    job.upgrade(sets=in_place, helm=helm, **P4D)
    assert key(job) == made


@pytest.mark.whole
def test_two_releases_have_two_keys(release: ReleaseFactory) -> None:
    one, two = (release("mpi-training", sets=["job.suspend=true"]) for _ in range(2))
    assert key(one) != key(two)


@pytest.mark.whole
def test_another_number_of_workers_needs_the_next_run(
    release: ReleaseFactory,
) -> None:
    job = release("mpi-training", sets=["workers=2", ALONE], **P4D)
    before = live(job, "worker")
    with pytest.raises(BiremeError, match="workers of the Job"):
        job.upgrade(sets=["workers=3", ALONE], **P4D)
    assert live(job, "worker") == before
    with pytest.raises(BiremeError, match="two runs must not write one checkpoint"):
        job.upgrade(sets=["workers=3", "run=2", ALONE], **P4D)
    job.upgrade(sets=["workers=3", ALONE], replace=True, **P4D)
    assert job.differences() == ()
    assert job.names("jobs") == [f"{job.name}-r2"]


def test_an_elastic_job_scales_in_place_and_each_worker_has_starts_of_its_own(
    release: ReleaseFactory,
) -> None:
    limits = [
        "elastic.minWorkers=2",
        "elastic.maxWorkers=4",
        "args={python3,train.py}",
        "recovery.backoffLimit=1",
    ]
    job = release("mpi-training", sets=["workers=2", *limits])
    (launcher,) = [name for name in live(job, "worker") if "-r1-0-" in name]
    job.upgrade(sets=["workers=4", *limits])
    assert job.differences() == ()
    for index in (1, 2, 3):
        (worker,) = [name for name in live(job, "worker") if f"-r1-{index}-" in name]
        faults.fail(job.cluster, worker, 143, job.namespace)
        job.wait()
    job.upgrade(sets=["workers=2", *limits])
    job.until(lambda: len(live(job, "worker")) == 2)
    assert launcher in live(job, "worker")
    with pytest.raises(BiremeError, match="workers: 5 is not within"):
        job.upgrade(sets=["workers=5", *limits])


def test_without_the_operator_an_mpi_job_is_refused_with_advice(release: ReleaseFactory) -> None:
    with pytest.raises(BiremeError, match="this cluster has no MPIJobs; install charts/mpijob first"):
        release("mpi-training", sets=["mpi.orchestrator=MPIJob"])


@pytest.mark.usefixtures("mpi_operator")
class TestMpiJob:
    """The same jobs, run by the real mpi-operator."""

    SETS = ("mpi.orchestrator=MPIJob", "workers=2", ALONE)

    @EACH_TYPE
    def test_launcher_and_workers_are_as_planned_and_in_the_host_file(
        self, release: ReleaseFactory, instance: str, toolbox: Toolbox
    ) -> None:
        job = release("mpi-training", instance=instance, workload="maskrcnn", sets=list(self.SETS))
        assert job.differences() == ()
        workers = [f"{job.name}-r1-worker-{index}" for index in range(2)]
        assert_whole_nodes(job, instance, workers)
        (environment,) = told(job, "launcher")
        assert environment["BIREME_MPI_ROLE"] == "launcher"
        config = job.cluster.api.get(f"/api/v1/namespaces/{job.namespace}/configmaps/{job.name}-r1-config")
        assert config["data"]["hostfile"].splitlines() == [
            f"{worker}.{job.name}-r1.{job.namespace}.svc slots=8" for worker in workers
        ]
        where = ["--kubeconfig", str(job.cluster.kubeconfig), "-n", job.namespace]
        command = [str(toolbox.path("kubectl")), *where, "get", "mpijob", f"{job.name}-r1", "--no-headers"]

        def columns() -> list[str]:
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[:3]

        until(lambda: columns() == [f"{job.name}-r1", "Running", "2"], what=lambda: str(columns()), every=1)

    def test_the_launcher_starts_after_the_last_worker_is_ready(
        self, release: ReleaseFactory, cluster: EmbeddedCluster
    ) -> None:
        nodes = cluster.nodes["p4d.24xlarge"]
        sets = ["mpi.orchestrator=MPIJob", f"workers={nodes + 1}", ALONE]
        job = release("mpi-training", sets=sets, expect_differences=True, timeout=3, **P4D)

        def ready() -> list[bool]:
            return sorted(pod.ready for pod in job.pods() if pod.role == "worker")

        job.until(lambda: ready() == [False] + [True] * nodes)
        assert live(job, "launcher") == []
        (node,) = cluster.add_nodes("p4d.24xlarge", 1)
        # Not by `wait`, which gives up where the scheduler stands still.
        job.until(lambda: job.differences() == ())
        (launcher,) = [pod.created for pod in job.pods() if pod.role == "launcher"]
        assert launcher >= max(pod.created for pod in job.pods() if pod.role == "worker")
        # In this order, because no kubelet ends the pods of a removed node.
        job.uninstall()
        faults.remove_node(cluster, node)

    @pytest.mark.parametrize("restarts", core(0, of=[0, 1]))
    def test_a_launcher_that_fails_once_too_often_fails_the_job_with_a_reason(
        self, release: ReleaseFactory, restarts: int
    ) -> None:
        job = release("mpi-training", sets=[*self.SETS, f"recovery.backoffLimit={restarts}"], **P4D)
        for _ in range(restarts + 1):
            job.wait()
            (launcher,) = live(job, "launcher")
            faults.fail(job.cluster, launcher, 3, job.namespace)
        job.until(lambda: [each.category for each in job.differences()] == ["job-failed"])
        assert "backoff limit" in job.differences()[0].sentence
        job.until(lambda: not live(job, "worker"))

    @pytest.mark.whole
    def test_a_complete_job_removes_its_workers_and_keeps_its_launcher(self, release: ReleaseFactory) -> None:
        job = release("mpi-training", sets=list(self.SETS), **P4D)
        (launcher,) = live(job, "launcher")
        faults.complete(job.cluster, launcher, job.namespace)
        job.until(lambda: not live(job, "worker"))
        (kept,) = [pod for pod in job.pods() if pod.role == "launcher"]
        assert kept.phase == "Succeeded"

    @pytest.mark.whole
    def test_an_upgrade_of_a_running_job_needs_the_next_run(self, release: ReleaseFactory) -> None:
        job = release("mpi-training", sets=list(self.SETS), **P4D)
        changed = [*self.SETS, "image.tag=0.2.0"]
        with pytest.raises(BiremeError, match="changes image, initContainers, launcher"):
            job.upgrade(sets=changed, **P4D)
        with pytest.raises(BiremeError, match="two runs must not write one checkpoint"):
            job.upgrade(sets=[*changed, "run=2"], **P4D)
        job.upgrade(sets=changed, replace=True, **P4D)
        assert job.differences() == ()
        assert {pod.workload for pod in job.pods() if pod.is_live} == {f"{job.name}-r2"}

    @pytest.mark.whole
    def test_suspend_removes_the_pods_and_the_queue_label_is_set(self, release: ReleaseFactory) -> None:
        job = release("mpi-training", sets=list(self.SETS), **P4D)
        job.upgrade(sets=[*self.SETS, "job.suspend=true", "queue.name=training"], **P4D)
        job.until(lambda: not live(job, "worker") and not live(job, "launcher"))
        path = f"/apis/kubeflow.org/v2beta1/namespaces/{job.namespace}/mpijobs/{job.name}-r1"
        labels = job.cluster.api.get(path)["metadata"]["labels"]
        assert labels["kueue.x-k8s.io/queue-name"] == "training"
        job.upgrade(sets=[*self.SETS, "job.suspend=false", "queue.name=training"], **P4D)
        assert job.differences() == ()
