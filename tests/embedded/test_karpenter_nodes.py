"""Nodes that the real Karpenter makes for jobs and takes away again; its provider simulates the machines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from bireme.clusters.embedded import EmbeddedCluster
from bireme.live.deploy import Deployer
from bireme.live.summary import ReleaseStatus
from bireme.testing.charts import RequestFor
from tests.embedded.addons import WithAddon
from tests.support.waiting import until

pytestmark = pytest.mark.whole

PODS, NODES = "/api/v1/namespaces/default/pods", "/api/v1/nodes"
KARPENTER = "/apis/karpenter.sh/v1"
TYPE = "g5.12xlarge"
POOL = f"{KARPENTER}/nodepools/{TYPE.replace('.', '-')}"
HALF = ("accelerators=2", "workers=1")


@dataclass(frozen=True)
class Site:
    """A cluster with Karpenter and no nodes but one without accelerators."""

    cluster: EmbeddedCluster
    deployer: Deployer
    request_for: RequestFor
    installed: set[str]

    def install(self, release: str, *sets: str, instance: str = TYPE) -> ReleaseStatus:
        """Install a job and wait until it runs."""
        self.installed.add(release)
        options: dict[str, Any] = {"release": release, "namespace": "default", "sets": sets}
        found = self.deployer.install(self.request_for("torch-elastic", instance=instance, **options), 120)
        assert found.differences == ()
        return found

    def uninstall(self, release: str) -> None:
        self.installed.remove(release)
        self.deployer.uninstall(release, "default")

    def nodes(self) -> dict[str, int]:
        """How many nodes there are of each type, without the one that was there before."""
        items = self.cluster.api.get(NODES, labelSelector="karpenter.sh/nodepool")["items"]
        return dict(Counter(each["metadata"]["labels"]["node.kubernetes.io/instance-type"] for each in items))

    def worker(self, release: str) -> dict[str, Any]:
        """The newest pod of its worker; one that a node took with it may still be there."""
        selector = f"app.kubernetes.io/instance={release},app.kubernetes.io/component=worker"
        items = self.cluster.api.get(PODS, labelSelector=selector)["items"]
        return max(items, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def pool(self, spec: Mapping[str, Any], path: str = POOL) -> None:
        """Change a NodePool."""
        self.cluster.api.patch(path, {"spec": spec})

    def claim_of(self, pod: Mapping[str, Any]) -> str:
        """The NodeClaim behind the pod's node, once it names that node."""
        node, paths = pod["spec"]["nodeName"], f"{KARPENTER}/nodeclaims"

        def found() -> list[str]:
            claims = self.cluster.api.get(paths)["items"]
            return [each["metadata"]["name"] for each in claims if each["status"].get("nodeName") == node]

        until(found, what=lambda: f"a NodeClaim to name {node}")
        return f"{paths}/{found()[0]}"


@pytest.fixture(scope="module")
def site(with_addon: WithAddon, request_for: RequestFor) -> Iterator[Site]:
    with with_addon("karpenter", {"cpu": 1}) as (cluster, deployer):
        yield Site(cluster, deployer, request_for, set())


@pytest.fixture
def clean(site: Site) -> Iterator[Site]:
    """No node of Karpenter's is there before and after a test."""
    before = site.cluster.api.get(POOL)["spec"]
    yield site
    site.pool({"disruption": {"consolidateAfter": "0s"}})
    for release in tuple(site.installed):
        site.uninstall(release)
    until(lambda: site.nodes() == {}, what="the nodes to go")
    site.pool(before)


def test_a_job_gets_the_planned_nodes_from_none_and_they_go_afterwards(site: Site) -> None:
    pool = f"{KARPENTER}/nodepools/p4d-24xlarge"
    site.pool({"disruption": {"consolidateAfter": "0s"}}, pool)
    assert site.nodes() == {}
    found = site.install("imagenet", "workers=3", instance="p4d.24xlarge")
    assert found.plan.totals.nodes == {"p4d.24xlarge": 3}
    assert site.nodes() == found.plan.totals.nodes
    site.uninstall("imagenet")
    until(lambda: site.nodes() == {}, what="the nodes to go")


@pytest.mark.parametrize(("kept", "left"), [(True, 2), (False, 1)])
def test_consolidation_leaves_alone_only_jobs_that_must_not_be_disrupted(
    clean: Site, kept: bool, left: int
) -> None:
    """Two nodes, each half used, would do as one."""
    keep = f"placement.doNotDisrupt={str(kept).lower()}"
    clean.install("first", *HALF, keep)
    node = f"{NODES}/{clean.worker('first')['spec']['nodeName']}"
    clean.cluster.api.patch(node, {"spec": {"unschedulable": True}})
    clean.install("second", *HALF, keep)
    assert clean.nodes() == {TYPE: 2}
    clean.cluster.api.patch(node, {"spec": {"unschedulable": False}})
    budgets = [{"nodes": "100%"}]
    eager = {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s", "budgets": budgets}
    before = {release: clean.worker(release)["metadata"]["uid"] for release in ("first", "second")}
    clean.pool({"disruption": eager})
    if kept:
        time.sleep(30)
    until(lambda: clean.nodes() == {TYPE: left}, what=lambda: str(clean.nodes()))
    until(lambda: all(clean.worker(release)["status"]["phase"] == "Running" for release in before))
    after = {release: clean.worker(release)["metadata"]["uid"] for release in ("first", "second")}
    assert (after == before) == kept


def told_to_stop(site: Site, pod: Mapping[str, Any]) -> bool:
    found = site.cluster.api.find(f"{PODS}/{pod['metadata']['name']}")
    return found is None or found["metadata"]["uid"] != pod["metadata"]["uid"]


def test_a_worker_that_may_be_disrupted_moves_when_its_node_is_taken_back(clean: Site) -> None:
    """Interruption: Karpenter deletes the NodeClaim when AWS says that it takes the instance."""
    clean.install("first", *HALF, "placement.doNotDisrupt=false")
    worker = clean.worker("first")
    clean.cluster.api.delete(clean.claim_of(worker))
    until(lambda: told_to_stop(clean, worker), what="the worker to be evicted")
    until(lambda: clean.worker("first")["status"]["phase"] == "Running", what="its replacement to run")
    assert clean.worker("first")["spec"]["nodeName"] != worker["spec"]["nodeName"]


def test_a_worker_that_must_not_be_disrupted_is_told_its_grace_period_before_the_end(clean: Site) -> None:
    clean.pool({"template": {"spec": {"terminationGracePeriod": "120s"}}})
    clean.install("first", *HALF, "pod.terminationGracePeriodSeconds=90")
    worker = clean.worker("first")
    claim = clean.claim_of(worker)
    started = time.monotonic()
    clean.cluster.api.delete(claim)
    until(lambda: told_to_stop(clean, worker), what="the worker to be deleted")
    # 120 s until the node ends, less the 90 s in which the worker saves.
    assert 15 < time.monotonic() - started < 100


def test_without_a_termination_grace_period_it_stays_as_long_as_it_runs(clean: Site) -> None:
    clean.pool({"template": {"spec": {"terminationGracePeriod": None}}})
    clean.install("first", *HALF)
    worker = clean.worker("first")
    claim = clean.claim_of(worker)
    clean.cluster.api.delete(claim)
    time.sleep(30)
    assert not told_to_stop(clean, worker)
    clean.uninstall("first")
    until(lambda: clean.cluster.api.find(claim) is None, what="the node to go")


def test_a_node_that_is_too_old_is_replaced_as_one_that_is_taken_back(clean: Site) -> None:
    clean.pool({"template": {"spec": {"expireAfter": "20s", "terminationGracePeriod": "30s"}}})
    clean.install("first", *HALF, "pod.terminationGracePeriodSeconds=20")
    worker = clean.worker("first")
    until(lambda: told_to_stop(clean, worker), what="the worker to be deleted")
    until(lambda: clean.worker("first")["spec"].get("nodeName", "") not in ("", worker["spec"]["nodeName"]))
