"""Complete values for jobs of today, on fake nodes with the devices and the memory of real ones."""

from __future__ import annotations

from collections import Counter

import pytest

from bireme.clusters.embedded import EmbeddedCluster
from bireme.testing.pytest_plugin import ReleaseFactory
from tests.support import faults
from tests.support.tiers import core

# The type of the nodes, the number of workers, their devices, and the labels of the nodes.
WORKLOADS: dict[str, tuple[str, int, dict[str, int], dict[str, str]]] = {
    "llm-spot": ("g6e.12xlarge", 4, {"nvidia.com/gpu": 4}, {"karpenter.sh/capacity-type": "spot"}),
    "neuron": ("trn2.48xlarge", 4, {"aws.amazon.com/neuron": 16, "vpc.amazonaws.com/efa": 16}, {}),
    "megatron": ("p5.48xlarge", 4, {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 32}, {}),
    "jax": ("g6e.48xlarge", 2, {"nvidia.com/gpu": 8}, {}),
}
# Standard_ND96isr_MI300X_v5: 96 vCPU, 1,850 GiB. gx3d-160x1792x8gaudi3: 160 vCPU, 1,792 GiB.
ELSEWHERE = {
    "amd": ("amd.com/gpu", {"cpu": "95", "memory": "1780Gi"}),
    "gaudi": ("habana.ai/gaudi", {"cpu": "159", "memory": "1600Gi", "hugepages-2Mi": "95000Mi"}),
}


@pytest.mark.parametrize("workload", core("llm-spot", of=WORKLOADS))
def test_each_worker_has_a_node_and_all_of_its_devices(
    cluster: EmbeddedCluster,
    release: ReleaseFactory,
    test_namespace: str,
    workload: str,
) -> None:
    instance_type, workers, devices, labels = WORKLOADS[workload]
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


@pytest.mark.parametrize("workload", core("amd", of=ELSEWHERE))
def test_each_worker_has_a_node_of_another_cloud(
    cluster: EmbeddedCluster,
    release: ReleaseFactory,
    test_namespace: str,
    workload: str,
) -> None:
    accelerator, offered = ELSEWHERE[workload]
    cluster.add_claim("efsvol", test_namespace)
    names = cluster.add_nodes("cpu", 2)
    more = {**offered, accelerator: "8", "pods": "110", "ephemeral-storage": "500Gi"}
    try:
        for name in names:
            cluster.api.patch(
                f"/api/v1/nodes/{name}/status", {"status": {"capacity": more, "allocatable": more}}
            )
        job = release("torch-elastic", workload=workload)
        assert job.differences() == ()
        pods = [pod for pod in job.pods() if pod.role == "worker"]
        assert {pod.node for pod in pods} == set(names)
        assert {pod.resources[accelerator] for pod in pods} == {"8"}
        job.uninstall()
    finally:
        for name in names:
            faults.remove_node(cluster, name)
