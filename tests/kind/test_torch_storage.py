"""Training whose checkpoints are on storage that stands still, or that is full, loses no saved step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from bireme.clusters.kind import KindCluster
from bireme.clusters.kind.cluster import SHARED
from tests.kind.shell import until
from tests.kind.training import Training, outcome

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("torch_images")]

Train = Callable[..., Training]


@pytest.fixture
def disk(cluster: KindCluster, test_namespace: str) -> Iterator[str]:
    """A file system of 16 MiB behind the claim of the checkpoints, one for all nodes: its folder there."""
    cluster.add_claim("checkpoints", test_namespace)
    image, folder = f"{SHARED}/{test_namespace}.img", f"{SHARED}/{test_namespace}-checkpoints"
    first, *_ = nodes = cluster.containers()
    with ExitStack() as stack:
        cluster.on_node(first, "truncate", "--size=16M", image)
        stack.callback(cluster.on_node, first, "rm", image)
        cluster.on_node(first, "mkfs.ext4", "-q", image)
        device = cluster.on_node(first, "losetup", "--find", "--show", image).strip()
        stack.callback(cluster.on_node, first, "losetup", "--detach", device)
        for node in nodes:
            cluster.on_node(node, "mount", device, folder)
            stack.callback(cluster.on_node, node, "umount", "--lazy", folder)
        cluster.on_node(first, "chmod", "777", folder)
        yield folder


@contextmanager
def frozen(cluster: KindCluster, folder: str) -> Iterator[None]:
    """Whoever writes into this file system hangs in the kernel, and does not end on SIGKILL."""
    node = cluster.containers()[0]
    cluster.on_node(node, "fsfreeze", "--freeze", folder)
    try:
        yield
    finally:
        cluster.on_node(node, "fsfreeze", "--unfreeze", folder)


def test_frozen_storage_holds_workers_up_until_it_thaws(
    train: Train, cluster: KindCluster, disk: str
) -> None:
    training = train(workers=3, values={"recovery": {"hang": {"seconds": 15, "firstStepSeconds": 120}}})
    training.until_trained(30, world_size=3)
    with frozen(cluster, disk):
        stuck = "cannot be killed, because it waits in the kernel"
        until(lambda: any(stuck in line for line in training.output), 240, lambda: "\n".join(training.output))
    training.until_trained(20, world_size=3, seconds=300)
    training.complete(seconds=900)


def test_a_full_disk_ends_the_job_and_a_new_run_goes_on_from_the_last_checkpoint(
    train: Train, cluster: KindCluster, disk: str
) -> None:
    training = train(workers=3, values={"recovery": {"failuresWithoutProgress": 2}})
    training.until(lambda event: event["event"] == "checkpoint" and event["step"] >= 40, 120, "step 40")
    node = cluster.containers()[0]
    cluster.on_node(node, "sh", "-c", f"dd if=/dev/zero of={disk}/ballast bs=4k 2>/dev/null; true")
    until(lambda: outcome(training.job) == "Failed", 600, "the job to fail")
    assert "No space left on device" in "\n".join(training.output)
    saved = max(event["step"] for event in training.of("checkpoint"))
    cluster.on_node(node, "rm", f"{disk}/ballast")
    reached, resumed = training.step, len(training.of("resume"))
    training.upgrade({"run": 2})
    until(lambda: len(training.of("resume")) > resumed, 180, "a resume")
    assert training.of("resume")[resumed]["step"] >= saved
    training.until(lambda event: event["event"] == "step" and event["step"] > reached, 180, "a further step")
    training.complete(seconds=300)
