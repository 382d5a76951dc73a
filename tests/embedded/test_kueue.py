"""Jobs in the queues of the real Kueue, which decides when they start, with how many workers, and where."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bireme.clusters.embedded import EmbeddedCluster
from bireme.live.deploy import Deployer
from bireme.live.doctor import Doctor
from bireme.live.release import Revision
from bireme.live.summary import ReleaseStatus
from bireme.testing.charts import RequestFor
from bireme.tools import Toolbox
from tests.embedded.addons import WithAddon
from tests.support import controllers, faults
from tests.support.processes import autoscaler
from tests.support.waiting import until

pytestmark = pytest.mark.whole

VERSION = "kueue.x-k8s.io/v1beta2"
KUEUE = f"/apis/{VERSION}"
KINDS = {
    "clusterqueues": "ClusterQueue",
    "localqueues": "LocalQueue",
    "resourceflavors": "ResourceFlavor",
    "topologies": "Topology",
    "workloadpriorityclasses": "WorkloadPriorityClass",
}
PODS = "/api/v1/namespaces/default/pods"
NODES = 4
TYPE = "p4d.24xlarge"
GPUS = 8
DEVICES = "nvidia.com/gpu"
# Kueue admits nothing that asks for a resource without quota.
LARGE = {"hugepages-2Mi": "1Pi", "vpc.amazonaws.com/efa": "1k"}
# Of a flavor of their own: pods without accelerators must not be bound to nodes that have some.
ANYWHERE = {"cpu": "10k", "memory": "1Pi", "ephemeral-storage": "1Pi"}


def group(flavor: str, quotas: Mapping[str, str]) -> dict[str, Any]:
    resources = [{"name": name, "nominalQuota": amount} for name, amount in quotas.items()]
    return {"coveredResources": list(quotas), "flavors": [{"name": flavor, "resources": resources}]}


# The charts whose jobs train with one to four workers.
ELASTIC = pytest.mark.parametrize(
    ("chart", "limits"),
    [
        ("torch-elastic", ("elastic.minWorkers=1", "elastic.maxWorkers=4")),
        ("mpi-training", ("elastic.minWorkers=1", "elastic.maxWorkers=4", "args={python3,train.py}")),
    ],
)


@dataclass(frozen=True)
class Queues:
    """A cluster with Kueue; what tests make in it is removed by `clear`."""

    cluster: EmbeddedCluster
    deployer: Deployer
    request_for: RequestFor
    objects: list[str]
    releases: list[str]

    def make(self, plural: str, name: str, body: Mapping[str, Any]) -> None:
        """Create an object of Kueue."""
        path = f"{KUEUE}/namespaces/default/{plural}" if plural == "localqueues" else f"{KUEUE}/{plural}"
        kind = {"apiVersion": VERSION, "kind": KINDS[plural]}
        self.cluster.api.create(path, {**kind, "metadata": {"name": name}, **body})
        self.objects.append(f"{path}/{name}")

    def queue(self, name: str, nodes: int, flavor: str = "p4d", **spec: Any) -> None:
        """A LocalQueue and a ClusterQueue of one name, with quota for so many p4d.24xlarge."""
        devices = {DEVICES: str(nodes * GPUS), **LARGE}
        groups = [group(flavor, devices), group("any", ANYWHERE)]
        if flavor == "near":
            # Pods that Kueue places have one flavor only.
            groups = [group(flavor, {**devices, **ANYWHERE})]
        body = {"namespaceSelector": {}, "resourceGroups": groups, **spec}
        self.make("clusterqueues", name, {"spec": body})
        self.make("localqueues", name, {"spec": {"clusterQueue": name}})

    def install(
        self, release: str, queue: str, *sets: str, chart: str = "torch-elastic", seconds: float = 60
    ) -> ReleaseStatus:
        """Install a job whose workers take whole nodes, and wait at most so long for its pods."""
        if release not in self.releases:
            self.releases.append(release)
        sets = (f"queue.name={queue}", *sets)
        request = self.request_for(chart, instance=TYPE, release=release, namespace="default", sets=sets)
        return self.deployer.install(request, seconds)

    def waits(self, release: str, queue: str, *sets: str, **options: Any) -> str:
        """Install a job for which there is no room; the sentence of `bireme status` about it."""
        self.install(release, queue, *sets, seconds=2, **options)
        until(
            lambda: ": " in (said := self.sentence(release)) and "has not seen it yet" not in said,
            what=lambda: self.sentence(release),
        )
        return self.sentence(release)

    def sentence(self, release: str) -> str:
        return "; ".join(each.sentence for each in self.deployer.status(release, "default").differences)

    def runs(self, release: str, workers: int) -> None:
        """Wait until so many pods of the release run, and no others are there."""
        until(lambda: self.phases(release) == ["Running"] * workers, what=lambda: self.sentence(release))

    def pods(self, release: str) -> list[dict[str, Any]]:
        """Its pods in the order of their names, without those of etcd."""
        selector = f"app.kubernetes.io/instance={release},app.kubernetes.io/component!=member"
        items = self.cluster.api.get(PODS, labelSelector=selector)["items"]
        return sorted(items, key=lambda pod: str(pod["metadata"]["generateName"]))

    def phases(self, release: str) -> list[str]:
        return [pod["status"].get("phase", "") for pod in self.pods(release)]

    def uninstall(self, release: str) -> None:
        self.releases.remove(release)
        self.deployer.uninstall(release, "default")

    def clear(self) -> None:
        for release in list(self.releases):
            self.uninstall(release)
        for path in reversed(self.objects):
            self.cluster.api.delete(path)
        until(lambda: not any(map(self.cluster.api.find, self.objects)), what="Kueue's objects to go")
        self.objects.clear()


@pytest.fixture(scope="module")
def kueue(with_addon: WithAddon, request_for: RequestFor) -> Iterator[Queues]:
    """A cluster of its own with Kueue, and a flavor for p4d.24xlarge."""
    with with_addon("kueue", {TYPE: NODES, "cpu": 1}) as (cluster, deployer):
        yield Queues(cluster, deployer, request_for, [], [])


@pytest.fixture
def queues(kueue: Queues) -> Iterator[Queues]:
    labels = {"node.kubernetes.io/instance-type": TYPE}
    kueue.make("resourceflavors", "p4d", {"spec": {"nodeLabels": labels}})
    kueue.make("resourceflavors", "any", {"spec": {}})
    yield kueue
    kueue.clear()


def test_a_job_waits_for_quota_in_its_place_and_status_says_why(queues: Queues) -> None:
    queues.queue("training", nodes=2)
    first = queues.install("first", "training", "workers=2")
    assert first.differences == ()
    assert [(each.state, each.pods) for each in first.queue_positions] == [("admitted", 2)]
    second = queues.waits("second", "training", "workers=2")
    assert second.startswith("Job/second-r1 waits in queue training, place 1 of 1: ")
    plan = queues.deployer.planned("second", "default")
    found = Doctor(queues.cluster.api, plan, plan.objects, {}).after()
    assert [each.sentence for each in found if each.rule == "queues"] == [second]
    assert "suspended" not in str(found)
    listed = queues.deployer.summaries(
        [Revision("second", "default", 1, "deployed", "torch-elastic-1.0.0", "")]
    )
    assert [(each.phase, each.queue) for each in listed] == [("queued", "1 of 1")]
    assert f"insufficient unused quota for {DEVICES} in flavor p4d, 16 more needed" in second
    queues.uninstall("first")
    queues.runs("second", 2)
    assert queues.sentence("second") == ""


def test_a_job_of_higher_priority_goes_first_and_one_that_it_preempts_starts_again_later(
    queues: Queues,
) -> None:
    for name, value in {"low": 1, "high": 10, "highest": 100}.items():
        queues.make("workloadpriorityclasses", name, {"value": value})
    queues.queue("training", nodes=1, preemption={"withinClusterQueue": "LowerPriority"})
    queues.install("holder", "training", "workers=1", "queue.priorityClass=high")
    queues.waits("patient", "training", "workers=1", "queue.priorityClass=low")
    assert "place 1 of 2" in queues.waits("urgent", "training", "workers=1", "queue.priorityClass=high")
    assert "place 2 of 2" in queues.sentence("patient")
    queues.uninstall("holder")
    queues.runs("urgent", 1)
    assert queues.phases("patient") == []
    queues.install("preempts", "training", "workers=1", "queue.priorityClass=highest")
    queues.runs("preempts", 1)
    queues.runs("urgent", 0)
    assert "waits in queue training, place 1 of 2" in queues.sentence("urgent")
    queues.uninstall("preempts")
    queues.runs("urgent", 1)


def test_a_team_borrows_what_another_does_not_use_and_gives_it_back(queues: Queues) -> None:
    reclaiming = {"reclaimWithinCohort": "Any"}
    queues.queue("vision", nodes=2, cohortName="lab", preemption=reclaiming)
    queues.queue("speech", nodes=2, cohortName="lab", preemption=reclaiming)
    queues.install("borrower", "speech", "workers=4")
    queues.runs("borrower", 4)
    queues.install("owner", "vision", "workers=2")
    queues.runs("owner", 2)
    until(lambda: queues.phases("borrower") == [], what="the borrower to give its nodes back")
    assert "waits in queue speech" in queues.sentence("borrower")
    queues.uninstall("owner")
    queues.runs("borrower", 4)


def test_install_does_not_wait_for_a_job_that_its_queue_holds(queues: Queues) -> None:
    queues.queue("training", nodes=1)
    queues.install("holder", "training", "workers=1")
    began = time.monotonic()
    held = queues.install("held", "training", "workers=1", seconds=900)
    assert time.monotonic() - began < 900
    assert held.is_held
    (why,) = [each.sentence for each in held.differences]
    assert why.startswith("Job/held-r1 waits in queue training, place 1 of 1: ")
    assert not queues.install("holder", "training", "workers=1").is_held


@ELASTIC
def test_a_job_starts_with_as_many_workers_as_there_is_quota_for(
    queues: Queues, chart: str, limits: tuple[str, ...]
) -> None:
    queues.queue("training", nodes=3)
    sets = ("workers=4", *limits, "queue.admission=partial")
    queues.install("partial", "training", *sets, chart=chart, seconds=5)
    queues.runs("partial", 3)
    found = queues.deployer.status("partial", "default")
    assert [(each.state, each.pods) for each in found.queue_positions] == [("admitted", 3)]
    assert "waits" in queues.waits("late", "training", *sets, chart=chart)


@ELASTIC
def test_an_elastic_job_grows_and_shrinks_in_place_within_its_quota(
    queues: Queues, chart: str, limits: tuple[str, ...]
) -> None:
    queues.queue("training", nodes=3)
    sets = (*limits, "queue.admission=elastic")
    queues.install("elastic", "training", "workers=1", *sets, chart=chart)
    queues.runs("elastic", 1)
    (first,) = [pod["metadata"]["uid"] for pod in queues.pods("elastic")]
    queues.install("elastic", "training", "workers=3", *sets, chart=chart)
    queues.runs("elastic", 3)
    assert first in {pod["metadata"]["uid"] for pod in queues.pods("elastic")}, "it was not restarted"
    queues.install("elastic", "training", "workers=4", *sets, chart=chart, seconds=5)
    until(lambda: sorted(queues.phases("elastic")) == ["Pending", "Running", "Running", "Running"])

    def grown() -> list[tuple[object, ...]]:
        found = queues.deployer.status("elastic", "default").queue_positions
        return [(each.state, each.pods, "insufficient unused quota" in each.why) for each in found]

    until(lambda: grown() == [("admitted", 3, True)], what=lambda: str(grown()))
    queues.install("elastic", "training", "workers=2", *sets, chart=chart)
    queues.runs("elastic", 2)
    assert first in {pod["metadata"]["uid"] for pod in queues.pods("elastic")}


def test_workers_are_packed_below_one_switch_or_wait(queues: Queues) -> None:
    layers = [f"topology.k8s.aws/network-node-layer-{layer}" for layer in (1, 2)]
    levels = [{"nodeLabel": each} for each in (*layers, "kubernetes.io/hostname")]
    queues.make("topologies", "aws", {"spec": {"levels": levels}})
    for index in range(NODES):
        labels = {layers[0]: "spine", layers[1]: f"leaf-{index % 2}"}
        node = f"/api/v1/nodes/p4d-24xlarge-{index}"
        queues.cluster.api.patch(node, {"metadata": {"labels": labels}})
    flavor = {
        "nodeLabels": {"node.kubernetes.io/instance-type": TYPE},
        "topologyName": "aws",
        "tolerations": [{"key": DEVICES, "operator": "Exists"}],
    }
    queues.make("resourceflavors", "near", {"spec": flavor})
    queues.queue("training", nodes=NODES, flavor="near")
    near = ["placement.networkLayer=2", "queue.topology=true", "placement.networkMode=require"]
    assert "topology" in queues.waits("three", "training", "workers=3", *near)
    queues.install("two", "training", "workers=2", *near)
    queues.runs("two", 2)
    nodes = {int(pod["spec"]["nodeName"].rpartition("-")[2]) % 2 for pod in queues.pods("two")}
    assert len(nodes) == 1, "both are below one switch"


@pytest.mark.parametrize("orchestrator", ["Job", "MPIJob"])
def test_an_mpi_job_starts_as_a_whole(queues: Queues, mpi_kind_there: None, orchestrator: str) -> None:
    queues.queue("training", nodes=2)
    sets = ("workers=2", f"mpi.orchestrator={orchestrator}", "image.repository=r", "image.tag=t")
    queues.install("first", "training", *sets, chart="mpi-training")
    assert queues.sentence("first") == ""
    assert "insufficient unused quota" in queues.waits("second", "training", *sets, chart="mpi-training")
    assert queues.phases("second") == []
    queues.uninstall("first")
    until(lambda: queues.sentence("second") == "", what=lambda: queues.sentence("second"))


def test_pservers_and_trainers_start_together_or_not_at_all(queues: Queues) -> None:
    queues.cluster.add_claim("efsvol")
    queues.queue("training", nodes=2)
    sets = (
        "paddle.useGpu=true",
        "workers=2",
        "paddle.pservers.count=2",
        "data.jobClaim.existingClaim=efsvol",
    )
    queues.install("first", "training", *sets, chart="paddle")
    queues.runs("first", 4)
    assert "insufficient unused quota" in queues.waits("second", "training", *sets, chart="paddle")
    assert queues.phases("second") == ["Pending"] * 4, "all are held back, the pservers too"
    queues.uninstall("first")
    queues.runs("second", 4)


@pytest.fixture(scope="module")
def mpi_kind_there(kueue: Queues, toolbox: Toolbox, request_for: RequestFor) -> Iterator[None]:
    """charts/mpijob and its operator in Kueue's cluster."""
    request = request_for("mpijob", release="mpijob", namespace="mpi-operator")
    kueue.deployer.install(request)
    with controllers.running(kueue.cluster, "mpijob", "mpi-operator", toolbox.path("mpi-operator")):
        yield


AUTOSCALE = ("elastic.autoscale.enabled=true", "elastic.autoscale.max=4", "elastic.autoscale.cooldown=0")


def test_the_autoscaler_grows_a_job_within_the_quota_of_its_queue(queues: Queues, tmp_path: Path) -> None:
    queues.queue("training", nodes=3)
    sets = ("workers=1", "queue.admission=elastic", "rendezvous.backend=c10d", "etcd.enabled=false")
    queues.install("follower", "training", *sets, *AUTOSCALE)
    queues.runs("follower", 1)
    job = "/apis/batch/v1/namespaces/default/jobs/follower-r1"
    version = queues.cluster.api.get(job)["metadata"]["resourceVersion"]
    log = tmp_path / "log"
    with autoscaler(queues.cluster.kubeconfig, log):
        until(lambda: queues.phases("follower") == ["Running"] * 3, what=log.read_text)
        # The autoscaler leaves the rest of the quota to a job that waits in the queue.
        queues.waits("patient", "training", "workers=2")
        with queues.cluster.api.watch(job.rpartition("/")[0], 10, resourceVersion=version) as events:
            counts = {each["object"]["spec"]["parallelism"] for each in events}
        assert max(counts) == 3, log.read_text()


def test_the_workload_llm_efa_starts_as_a_whole_on_the_nodes_of_its_capacity_block(queues: Queues) -> None:
    cluster, block = queues.cluster, "cr-0123456789abcdef0"
    cluster.add_claim("fsx-pvc")
    names = cluster.add_nodes("p5.48xlarge", 17)
    labels = {"karpenter.sh/capacity-type": "reserved", "karpenter.k8s.aws/capacity-reservation-id": block}
    for name in names[1:]:
        cluster.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})
    try:
        labels = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
        queues.make("resourceflavors", "p5", {"spec": {"nodeLabels": labels}})
        queues.queue("training", nodes=16, flavor="p5")
        queues.releases.append("llm")
        request = queues.request_for(
            "torch-elastic",
            instance="p5.48xlarge",
            workload="llm-efa",
            release="llm",
            namespace="default",
            sets=[f"placement.reservationId={block}"],
        )
        status = queues.deployer.install(request, 120)
        assert [each.sentence for each in status.differences] == []
        assert {pod["spec"]["nodeName"] for pod in queues.pods("llm")} == set(names[1:])
        queues.uninstall("llm")
    finally:
        for name in names:
            faults.remove_node(cluster, name)
