"""Devices by dynamic resource allocation: the real scheduler gives each worker what its claim asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bireme.clusters.base import Cluster
from bireme.clusters.waiting import until
from bireme.helm import Render
from tests.embedded.addons import OwnCluster
from tests.support.rendered import the

DRA = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.example.com"
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = f"{DRA}/namespaces/default/resourceclaims"
VALUES: dict[str, Any] = {
    "workers": 3,
    "image": {"repository": "team/train", "tag": "1"},
    "pod": {
        "resourceClaimTemplates": {
            "gpu": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER, "count": 4}}]}
        }
    },
}


@pytest.fixture
def devices(own_cluster: OwnCluster) -> Iterator[Cluster]:
    """A cluster of three nodes, two of which have four devices: the stand-in for the slices of a driver."""
    with own_cluster("dra", {"cpu": 3}) as cluster:
        device_class = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
        cluster.api.create(f"{DRA}/deviceclasses", dra("DeviceClass", DRIVER, device_class))
        nodes = sorted(node["metadata"]["name"] for node in cluster.api.get("/api/v1/nodes")["items"])
        for node in nodes[:2]:
            slice_ = {
                "driver": DRIVER,
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": f"gpu-{number}"} for number in range(4)],
            }
            cluster.api.create(f"{DRA}/resourceslices", dra("ResourceSlice", f"{node}-gpus", slice_))
        yield cluster


def dra(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.mark.whole
def test_each_worker_has_a_node_whose_devices_are_its_own_and_others_wait(
    devices: Cluster, render: Callable[..., Render]
) -> None:
    made = render("mpi-training", values=VALUES, release="dra", namespace="default")
    devices.api.create(
        f"{DRA}/namespaces/default/resourceclaimtemplates", the(made, "ResourceClaimTemplate").thaw()
    )
    devices.api.create("/apis/batch/v1/namespaces/default/jobs", the(made, "Job").thaw())

    def allocated() -> dict[str, list[str]]:
        """The node, by its pool, of each device that a claim has."""
        return {
            claim["metadata"]["name"]: [
                result["pool"] for result in claim["status"]["allocation"]["devices"]["results"]
            ]
            for claim in devices.api.get(CLAIMS)["items"]
            if claim.get("status", {}).get("allocation")
        }

    def why_unscheduled() -> list[str]:
        """What the scheduler says of pods without a node."""
        return [
            condition.get("message", "")
            for pod in devices.api.get(PODS)["items"]
            for condition in pod["status"].get("conditions", [])
            if condition["type"] == "PodScheduled" and condition["status"] == "False"
        ]

    until(
        lambda: len(allocated()) == 2 and any("claim" in each for each in why_unscheduled()),
        180,
        "two claims and a pod without",
    )
    pools = [set(each) for each in allocated().values()]
    assert all(len(each) == 4 for each in allocated().values())
    assert [len(each) for each in pools] == [1, 1], "a claim has the devices of one node"
    assert pools[0] != pools[1], "two claims share no device"
    placed = {pod["spec"]["nodeName"] for pod in devices.api.get(PODS)["items"] if "nodeName" in pod["spec"]}
    assert placed == pools[0] | pools[1]
