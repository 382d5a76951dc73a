"""A script of the image with snapshots on kind: one step is made again at most, whoever is lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.kind.shell import Shell, until
from tests.kind.training import CHECKPOINT_EVERY, Training

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("torch_images")]

SNAPSHOTS = {"recovery": {"snapshots": {"enabled": True}}}


def test_a_killed_process_and_a_killed_pod_cost_one_step_at_most(
    train: Callable[..., Training], shell: Shell
) -> None:
    training = train(workers=3, values=SNAPSHOTS)

    def kill_pod() -> None:
        pod = training.worker(2).name
        # Without a moment to save, as when a node is lost.
        shell.kubectl("delete", "pod", pod, "-n", training.job.namespace, "--force", "--grace-period=0")

    for harm in (partial(training.kill, 1, agent=False), kill_pod):
        training.until_trained(CHECKPOINT_EVERY + 5, world_size=3)
        before = len(training.of("resume"))
        harm()
        until(lambda before=before: len(training.of("resume")) > before, what="a resume")  # type: ignore[misc]
    training.complete()
    # A process that gets SIGTERM saves a checkpoint, which is newer than its snapshot.
    assert any(event.get("snapshot") for event in training.of("resume"))
    training.assert_nothing_was_lost(most=1)
