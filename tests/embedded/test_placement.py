"""The real scheduler keeps the workers of a job in one zone, and close to each other in the network."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

import pytest
import yaml

from bireme.clusters.embedded import EmbeddedCluster
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.support import faults
from tests.support.documents import ROOT
from tests.support.waiting import until

ZONE = "topology.kubernetes.io/zone"
LAYER = "topology.k8s.aws/network-node-layer-3"
# A type with EFA that the other tests leave alone.
TYPE = "p5e.48xlarge"


@pytest.fixture(scope="module")
def nodes(cluster: EmbeddedCluster) -> Iterator[Mapping[str, Mapping[str, str]]]:
    """The labels of eight nodes by name: two in each of two parts of the network, in each of two zones."""
    places = [{ZONE: f"us-west-2{zone}", LAYER: f"nn-{zone}{part}"} for zone in "ab" for part in "1122"]
    names = cluster.add_nodes(TYPE, len(places))
    for name, labels in zip(names, places, strict=True):
        cluster.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})
    yield dict(zip(names, places, strict=True))
    for name in names:
        faults.remove_node(cluster, name)


def places(release: InstalledRelease, nodes: Mapping[str, Mapping[str, str]], label: str) -> set[str]:
    """The values of ``label`` on the nodes of the workers."""
    found = [pod.node for pod in release.pods() if pod.role == "worker" and pod.is_live]
    return {nodes[node or ""][label] for node in found}


def test_workers_with_efa_share_a_zone_also_when_they_grow(
    release: ReleaseFactory, nodes: Mapping[str, Mapping[str, str]]
) -> None:
    job = release("torch-elastic", instance=TYPE, sets=["workers=2"])
    assert job.differences() == ()
    assert len(places(job, nodes, ZONE)) == 1
    job.upgrade(instance=TYPE, sets=["workers=3"])
    assert job.differences() == ()
    assert len(places(job, nodes, ZONE)) == 1


@pytest.mark.whole
def test_a_job_over_any_zone_may_have_more_workers_than_a_zone_has_nodes(
    release: ReleaseFactory, nodes: Mapping[str, Mapping[str, str]]
) -> None:
    job = release("mpi-training", instance=TYPE, sets=["workers=6", "placement.zone=any"])
    assert job.differences() == ()
    assert len(places(job, nodes, ZONE)) == 2


@pytest.mark.whole
def test_workers_are_packed_into_one_part_of_the_network(
    release: ReleaseFactory, nodes: Mapping[str, Mapping[str, str]]
) -> None:
    packed = ["workers=2", "placement.zone=us-west-2b", "placement.networkLayer=3"]
    job = release("mpi-training", instance=TYPE, sets=packed)
    assert job.differences() == ()
    assert len(places(job, nodes, LAYER)) == 1


PACKED = "g5.12xlarge"


@pytest.mark.whole
def test_a_trainer_a_service_with_much_memory_and_a_pod_with_much_disk_share_a_node(
    cluster: EmbeddedCluster, release: ReleaseFactory, test_namespace: str
) -> None:
    """The recipe of docs/placement.md. Without its ``reserve`` there is no room for the service."""
    (command,) = re.findall(r"^helm install trainer (.*)$", (ROOT / "docs/placement.md").read_text(), re.M)
    efa, *reserve = shlex.split(command)[-1].split(",")
    (node,) = cluster.add_nodes(PACKED, 1)
    pods = f"/api/v1/namespaces/{test_namespace}/pods"
    deployments = f"/apis/apps/v1/namespaces/{test_namespace}/deployments"
    others = list(yaml.safe_load_all((ROOT / "docs/packing.yaml").read_text()))

    def where() -> dict[str, str]:
        found = cluster.api.get(pods)["items"]
        return {
            each["metadata"]["labels"].get("app", "trainer"): each["spec"].get("nodeName", "")
            for each in found
        }

    try:
        trainer = release("torch-elastic", instance=PACKED, sets=[efa, "workers=1"])
        for each in others:
            cluster.api.create(deployments, each)
        until(lambda: where() == {"trainer": node, "cache": "", "crawler": ""}, what=lambda: str(where()))
        trainer.uninstall()
        until(lambda: where() == {"cache": node, "crawler": node}, what=lambda: str(where()))
        trainer = release("torch-elastic", instance=PACKED, sets=[efa, *reserve, "workers=1"])
        until(
            lambda: where() == dict.fromkeys(("trainer", "cache", "crawler"), node), what=lambda: str(where())
        )
        # Nobody ends a pod on a node that is gone.
        trainer.uninstall()
    finally:
        for each in others:
            cluster.api.delete(f"{deployments}/{each['metadata']['name']}")
        faults.remove_node(cluster, node)
