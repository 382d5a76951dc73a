"""Nodes of kind clusters are shaped as their instance type."""

from __future__ import annotations

from typing import Any

from bireme.clusters.kind import KindCluster
from tests.kind.shell import NODE_TYPE


def nodes_of_type(cluster: KindCluster, instance_type: str) -> list[dict[str, Any]]:
    selector = f"node.kubernetes.io/instance-type={instance_type}"
    items: list[dict[str, Any]] = cluster.api.get("/api/v1/nodes", labelSelector=selector)["items"]
    return items


def test_nodes_carry_the_labels_taints_and_devices_of_their_instance_type(cluster: KindCluster) -> None:
    nodes = nodes_of_type(cluster, NODE_TYPE)
    assert len(nodes) == 3
    for node in nodes:
        assert node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "us-west-2a"
        assert node["spec"]["taints"] == [
            {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
        ]
        for offer in (node["status"]["capacity"], node["status"]["allocatable"]):
            assert (offer["nvidia.com/gpu"], offer["vpc.amazonaws.com/efa"]) == ("1", "1")
    (control_plane,) = nodes_of_type(cluster, "m7i.2xlarge")
    assert "node-role.kubernetes.io/control-plane" in control_plane["metadata"]["labels"]
    assert "taints" not in control_plane["spec"], "it takes pods without accelerators"
