"""Training continues when the node of a worker dies, and takes the replacement in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from bireme.clusters.kind import KindCluster
from bireme.clusters.kind.cluster import NETWORK_FILE
from tests.kind.shell import NODE_TYPE, until
from tests.kind.training import Training
from tests.support import faults

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("torch_images")]

OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}


@pytest.fixture
def stop(cluster: KindCluster) -> Iterator[Callable[[str], None]]:
    """Stop a node; it is started again at the end of the test."""
    stopped: list[str] = []

    def _stop(node: str) -> None:
        stopped.append(node)
        # Like a power failure of the machine.
        cluster.engine("kill", node)

    yield _stop
    for node in stopped:
        if node not in cluster.containers(running=True):
            start(cluster, node)
        out_of_service(cluster, node, False)


def start(cluster: KindCluster, node: str) -> None:
    """Start a stopped node again. One whose Node was deleted registers again, with the same labels."""
    before = heartbeat(cluster, node)
    cluster.engine("start", node)
    # The node may get another address range: without this file, no pod starts before the range is known.
    cluster.on_node(node, "rm", "-f", NETWORK_FILE)
    until(lambda: heartbeat(cluster, node) not in ("", before), 180, f"the kubelet of {node} to register")
    cluster.prepare_nodes()


def ready(cluster: KindCluster, node: str) -> Mapping[str, str]:
    """The condition Ready of the Node; empty where there is none, or none with a pod network."""
    found = cluster.api.find(f"/api/v1/nodes/{node}") or {"spec": {}}
    conditions = found["status"].get("conditions", []) if found["spec"].get("podCIDR") else []
    return next((each for each in conditions if each["type"] == "Ready"), {})


def heartbeat(cluster: KindCluster, node: str) -> str:
    return ready(cluster, node).get("lastHeartbeatTime", "")


def is_ready(cluster: KindCluster, node: str) -> bool:
    return ready(cluster, node).get("status") == "True"


def out_of_service(cluster: KindCluster, node: str, lost: bool) -> None:
    """Taint the node as out of service, or remove the taint."""
    path = f"/api/v1/nodes/{node}"
    taints = cluster.api.get(path)["spec"].get("taints", [])
    others = [taint for taint in taints if taint["key"] != OUT_OF_SERVICE["key"]]
    cluster.api.patch(path, {"spec": {"taints": others + [OUT_OF_SERVICE] * lost}})


def test_a_worker_whose_node_dies_is_replaced_on_another_and_rejoins(
    train: Callable[..., Training], cluster: KindCluster, stop: Callable[[str], None]
) -> None:
    # Two of three nodes have workers; the replacement goes to the third.
    training = train(workers=2)
    training.until_trained(30, world_size=2)

    first = training.worker(1).node
    assert first
    stop(first)
    training.until_trained(30, world_size=1)
    until(lambda: not is_ready(cluster, first), what=f"{first} to be seen as lost")
    out_of_service(cluster, first, True)
    training.until_trained(30, world_size=2, seconds=180)
    second = training.worker(1).node
    assert second
    assert second != first
    start(cluster, first)
    out_of_service(cluster, first, False)

    stop(second)
    training.until_trained(30, world_size=1)
    until(lambda: not is_ready(cluster, second), what=f"{second} to be seen as lost")
    faults.remove_node(cluster, second)
    training.until_trained(30, world_size=2, seconds=180)
    assert training.worker(1).node == first
    start(cluster, second)
    node = cluster.api.get(f"/api/v1/nodes/{second}")
    assert node["metadata"]["labels"]["node.kubernetes.io/instance-type"] == NODE_TYPE
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "1"
    training.complete(seconds=600)
