"""Complete values for jobs of today, on fake nodes with the devices and the memory of real ones."""

from __future__ import annotations

from collections import Counter

import pytest

from bireme.clusters.embedded import EmbeddedCluster
from bireme.testing.pytest_plugin import ReleaseFactory
from tests.support import faults

SPOT = {"karpenter.sh/capacity-type": "spot"}


@pytest.mark.parametrize(
    ("workload", "instance_type", "workers", "devices", "labels"),
    [
        ("llm-spot", "g6e.12xlarge", 4, {"nvidia.com/gpu": 4}, SPOT),
        ("neuron", "trn2.48xlarge", 4, {"aws.amazon.com/neuron": 16, "vpc.amazonaws.com/efa": 16}, {}),
        ("megatron", "p5.48xlarge", 4, {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 32}, {}),
        ("jax", "g6e.48xlarge", 2, {"nvidia.com/gpu": 8}, {}),
    ],
)
def test_each_worker_has_a_node_and_all_of_its_devices(
    cluster: EmbeddedCluster,
    release: ReleaseFactory,
    test_namespace: str,
    workload: str,
    instance_type: str,
    workers: int,
    devices: dict[str, int],
    labels: dict[str, str],
) -> None:
    cluster.add_claim("efsvol", test_namespace)
    other, *names = cluster.add_nodes(instance_type, workers + 1)
    try:
        for name in names:
            cluster.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})
        job = release("torch-elastic", instance=instance_type, workload=workload)
        assert job.differences() == ()
        pods = [pod for pod in job.pods() if pod.role == "worker"]
        used = Counter(pod.node for pod in pods)
        assert set(used.values()) == {1}
        assert len(used) == workers
        if labels:
            assert set(used) == set(names), f"{other} is of another capacity"
        for pod in pods:
            assert {key: int(pod.resources[key]) for key in devices} == devices
        job.uninstall()
    finally:
        for name in (other, *names):
            faults.remove_node(cluster, name)
