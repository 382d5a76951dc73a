"""A worker on a node that falls ill saves, leaves and trains on elsewhere: no step is made again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from bireme.clusters.kind import KindCluster
from bireme.testing.pytest_plugin import InstalledRelease
from tests.kind.shell import Values, until
from tests.kind.training import ANYWHERE, Training

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("torch_images")]

XID = {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NvidiaXID79Error"}


@pytest.fixture(scope="module")
def controller_values() -> Values:
    """Its controller watches the nodes too."""
    return {"illNodes": {"enabled": True}}


@pytest.fixture
def fall_ill(cluster: KindCluster) -> Iterator[Callable[[str], None]]:
    """``fall_ill(node)``: its agent reports a GPU that has failed, until the end of the test."""
    ill: list[str] = []

    def report(node: str, status: str) -> None:
        path = f"/api/v1/nodes/{node}/status"
        others = [
            each for each in cluster.api.get(path)["status"]["conditions"] if each["type"] != XID["type"]
        ]
        cluster.api.patch(path, {"status": {"conditions": [*others, {**XID, "status": status}]}})

    def fall(node: str) -> None:
        ill.append(node)
        report(node, "False")

    yield fall
    for node in ill:
        report(node, "True")


def test_a_worker_on_a_node_that_falls_ill_goes_on_elsewhere_where_it_was(
    controller: InstalledRelease, train: Callable[..., Training], fall_ill: Callable[[str], None]
) -> None:
    training = train(workers=3, values=ANYWHERE)
    training.until_trained(10, world_size=3)
    worker = training.worker(1)
    began = time.monotonic()
    fall_ill(str(worker.node))
    until(lambda: training.worker(1).name != worker.name and training.worker(1).ready, what="another pod")
    print(f"ready elsewhere after {time.monotonic() - began:.1f} s")
    assert training.worker(1).node != worker.node
    training.complete()
    training.assert_nothing_was_lost(most=0)
