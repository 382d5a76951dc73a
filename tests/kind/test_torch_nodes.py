"""Training continues when the node of a worker dies, and takes the replacement in."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bireme.clusters.kind import KindCluster
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
        cluster.stop_node(node)

    yield _stop
    for node in stopped:
        if node not in cluster.containers(running=True):
            cluster.start_node(node)
        out_of_service(cluster, node, False)


def is_ready(cluster: KindCluster, node: str) -> bool:
    conditions = cluster.api.get(f"/api/v1/nodes/{node}")["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def out_of_service(cluster: KindCluster, node: str, lost: bool) -> None:
    """Taint the node as out of service, or remove the taint."""
    path = f"/api/v1/nodes/{node}"
    taints = cluster.api.get(path)["spec"].get("taints", [])
    others = [taint for taint in taints if taint["key"] != OUT_OF_SERVICE["key"]]
    cluster.api.patch(path, {"spec": {"taints": others + [OUT_OF_SERVICE] * lost}})


def test_a_worker_whose_node_dies_is_replaced_on_another_and_rejoins(
    train: Callable[..., Training], cluster: KindCluster, stop: Callable[[str], None]
) -> None:
    steps = 3000
    # Two of three nodes have workers; the replacement goes to the third.
    training = train(workers=2, steps=steps)
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
    cluster.start_node(first)
    out_of_service(cluster, first, False)

    stop(second)
    training.until_trained(30, world_size=1)
    until(lambda: not is_ready(cluster, second), what=f"{second} to be seen as lost")
    faults.remove_node(cluster, second)
    training.until_trained(30, world_size=2, seconds=180)
    assert training.worker(1).node == first
    cluster.start_node(second)
    node = cluster.api.get(f"/api/v1/nodes/{second}")
    assert node["metadata"]["labels"]["node.kubernetes.io/instance-type"] == NODE_TYPE
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "1"
    training.until_complete(steps, seconds=600)
