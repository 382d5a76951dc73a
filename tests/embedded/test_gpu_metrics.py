"""Agents that measure GPUs run on exactly the nodes with GPUs, and never two on one node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bireme.clusters.embedded import EmbeddedCluster
from bireme.core.errors import BiremeError
from bireme.testing.pytest_plugin import ReleaseFactory
from tests.embedded.fleet import Fleet

CLOUDWATCH = ["cloudwatch.region=us-west-2", "global.imageRegistries.bireme=registry.example.com"]
DCGM = ["agent=dcgm"]
GPU_NODES = {"p3", "p4d", "g5", "g5-efa", "auto"}


@pytest.fixture(scope="module")
def fleet(cluster: EmbeddedCluster) -> Iterator[Fleet]:
    fleet = Fleet(cluster)
    fleet.add("p9", "p9.48xlarge")
    yield fleet
    fleet.remove()


def test_agents_run_on_every_node_with_gpus_and_one_replaces_the_other(
    release: ReleaseFactory, fleet: Fleet
) -> None:
    metrics = release("gpu-metrics", sets=CLOUDWATCH)
    metrics.until(lambda: fleet.words(metrics) >= GPU_NODES)
    assert fleet.words(metrics) == GPU_NODES
    metrics.upgrade(sets=[*DCGM, "instanceTypes={p9.48xlarge}"])
    metrics.until(lambda: {pod.workload for pod in metrics.pods()} == {f"{metrics.name}-dcgm"})
    metrics.until(lambda: fleet.words(metrics) >= {*GPU_NODES, "p9"})
    assert fleet.words(metrics) == {*GPU_NODES, "p9"}
    metrics.uninstall()
    assert metrics.objects("daemonsets") == metrics.objects("pods") == metrics.objects("configmaps") == []


@pytest.mark.whole
def test_a_type_that_nobody_knows_gets_an_agent_by_its_label(release: ReleaseFactory, fleet: Fleet) -> None:
    fleet.add("p10", "p10.48xlarge")
    fleet.label("p10", {"karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia"})
    metrics = release("gpu-metrics", sets=CLOUDWATCH)
    metrics.until(lambda: fleet.words(metrics) >= {*GPU_NODES, "p10"})
    assert fleet.words(metrics) == {*GPU_NODES, "p10"}
    fleet.label("p10", {"karpenter.k8s.aws/instance-gpu-manufacturer": "amd"})


@pytest.mark.whole
def test_a_second_agent_for_the_same_gpus_is_refused(release: ReleaseFactory, fleet: Fleet) -> None:
    first = release("gpu-metrics", sets=CLOUDWATCH)
    with pytest.raises(
        BiremeError, match=f"DaemonSet {first.name}-cloudwatch in namespace .* measures GPUs already"
    ):
        release("gpu-metrics", sets=DCGM)
    elsewhere = [*DCGM, "checkOthers=false", r"nodeSelector.node\.kubernetes\.io/instance-type=g5.xlarge"]
    second = release("gpu-metrics", sets=elsewhere)
    second.until(lambda: fleet.words(second) == {"g5"})


def test_a_service_monitor_needs_its_custom_resource_definition(release: ReleaseFactory) -> None:
    with pytest.raises(BiremeError, match="this cluster has no ServiceMonitors"):
        release("gpu-metrics", sets=[*DCGM, "dcgm.serviceMonitor.enabled=true"])
