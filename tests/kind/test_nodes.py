"""Nodes of kind clusters are shaped as their instance type."""

from __future__ import annotations

from typing import Any

from bireme.clusters.kind import KindCluster
from bireme.clusters.kind.cluster import NETWORK_FILE, SHARED, STANDARD_CLASS
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


def test_a_claim_is_one_folder_of_this_machine_on_every_node(
    cluster: KindCluster, test_namespace: str
) -> None:
    cluster.add_claim("data", test_namespace)
    folder = cluster.claim_folder("data", test_namespace)
    assert folder.stat().st_mode & 0o777 == 0o777, "every user id may write"
    for node in cluster.containers():
        cluster.on_node(node, "touch", f"{SHARED}/{folder.name}/{node}")
    assert {file.name for file in folder.iterdir()} == set(cluster.containers())
    standard = cluster.api.get(f"/apis/storage.k8s.io/v1/storageclasses/{STANDARD_CLASS}")
    volumes = cluster.api.items("/api/v1/persistentvolumes")
    made = [each for each in volumes if each["metadata"]["name"].startswith(f"{STANDARD_CLASS}-")]
    is_built_here = standard["provisioner"] == "kubernetes.io/no-provisioner"
    assert len(made) == (24 if is_built_here else 0)


def test_each_node_has_a_range_of_pod_addresses_and_routes_to_the_others(cluster: KindCluster) -> None:
    ranges = {
        each["metadata"]["name"]: each["spec"]["podCIDR"] for each in cluster.api.items("/api/v1/nodes")
    }
    assert len(set(ranges.values())) == len(ranges) == 4
    for node in cluster.containers():
        assert '"type": "ptp"' in cluster.on_node(node, "cat", NETWORK_FILE)
        routes = cluster.on_node(node, "ip", "route")
        assert [to for name, to in ranges.items() if name != node and f"{to} via" not in routes] == []
