"""Lost machines, with Kubernetes' own timeouts."""

from __future__ import annotations

from functools import partial

import pytest

from bireme.clusters.embedded import EmbeddedCluster
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.support import faults, waiting

pytestmark = [pytest.mark.embedded, pytest.mark.slow]
P4D = {"instance": "p4d.24xlarge", "workload": "imagenet-efa"}
until = partial(waiting.until, every=1)


def node_of(job: InstalledRelease, index: int) -> str:
    node = next(pod.node for pod in job.pods() if pod.slot == f"{job.name}-r1-{index}" and pod.is_live)
    assert node is not None
    return node


def is_ready_off(job: InstalledRelease, index: int, lost: tuple[str, ...]) -> bool:
    """Whether the worker of ``index`` is ready on a node that is not lost."""
    slot = f"{job.name}-r1-{index}"
    return any(pod.slot == slot and pod.ready and pod.node not in lost for pod in job.pods())


def test_lost_machines_are_reported_and_their_workers_replaced(
    cluster: EmbeddedCluster, release: ReleaseFactory
) -> None:
    """One job loses two machines: the cloud controller deletes the Node of one, the other stops answering."""
    # The tests that follow on this cluster find as many nodes as before.
    cluster.add_nodes("p4d.24xlarge", 2)
    job = release("torch-elastic", sets=["workers=3"], **P4D)
    deleted, silent, kept = (node_of(job, index) for index in range(3))
    faults.cut_node(job.cluster, silent)
    faults.remove_node(job.cluster, deleted)

    until(lambda: is_ready_off(job, 0, (deleted, silent)))

    until(lambda: any(each.category == "unreachable" for each in job.differences()))
    (report,) = [each for each in job.differences() if each.category == "unreachable"]
    assert silent in report.sentence
    assert "node.kubernetes.io/out-of-service" in report.sentence

    faults.taint_out_of_service(job.cluster, silent)
    until(lambda: is_ready_off(job, 1, (deleted, silent)))
    until(lambda: job.differences() == ())
    assert node_of(job, 2) == kept
    faults.remove_node(cluster, silent)
