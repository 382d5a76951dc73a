"""Elastic jobs that really train, and continue when workers join, leave and are killed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from itertools import groupby

import pytest

from bireme.testing.pytest_plugin import InstalledRelease
from tests.kind.shell import Shell, until
from tests.kind.training import ANYWHERE, Training

pytestmark = pytest.mark.usefixtures("torch_images")


def accuracy_of_one_process(steps: int) -> float:
    """The accuracy of digits.py in one process without faults."""
    script = ["python3", "/opt/bireme/digits.py", "--checkpoints=/tmp/run", f"--steps={steps}"]
    done = subprocess.run(
        ["docker", "run", "--rm", "bireme/torch:0.1.0", *script], capture_output=True, text=True, check=True
    )
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return next(float(event["accuracy"]) for event in events if event["event"] == "done")


def test_three_workers_lose_process_agent_and_pod_and_learn_as_much_as_one(
    train: Callable[..., Training],
) -> None:
    training = train(workers=3)
    training.until_trained(30, world_size=3)
    training.kill(1, agent=False)
    training.until_trained(30, world_size=3)
    training.kill(2, agent=True)
    training.until_trained(30, world_size=3)
    training.delete(0)
    training.until_trained(30, world_size=3)
    done = training.complete()
    # Sums in another order round differently; one of the 360 test samples counts 0.003.
    assert done["accuracy"] == pytest.approx(accuracy_of_one_process(done["step"]), abs=0.01)


def curve(shell: Shell, job: InstalledRelease, tag: str) -> dict[int, float]:
    """The values by step in the job's TensorBoard; empty while it has none."""
    service = f"/api/v1/namespaces/{job.namespace}/services/{job.name}-tensorboard:6006/proxy"
    query = f"run={job.name}/tensorboard&tag={tag}"
    points = shell.attempt("get", "--raw", f"{service}/data/plugin/scalars/scalars?{query}")
    return {int(step): value for _, step, value in json.loads(points or "[]")}


@pytest.mark.whole
def test_two_workers_become_four_and_one_while_training_and_tensorboard_shows_it(
    train: Callable[..., Training], shell: Shell
) -> None:
    values = {**ANYWHERE, "monitoring": {"tensorboard": {"enabled": True, "logDir": "/runs"}}}
    training = train(workers=2, values=values)
    training.until_trained(30, world_size=2)
    training.scale(4)
    training.until_trained(30, world_size=4)
    training.scale(1)
    training.until_trained(30, world_size=1)
    done = training.complete()
    job = training.job
    until(lambda: done["step"] in curve(shell, job, "world_size"), what="TensorBoard to show the last step")
    sizes = curve(shell, job, "world_size")
    assert list(sizes) == sorted(sizes)
    # Workers do not join or leave at the same moment, so a world of another size may train for some steps.
    worlds = [int(world) for world, _ in groupby(sizes.values())]
    full = worlds.index(4)
    assert worlds[: full + 1] == sorted(worlds[: full + 1]), worlds
    assert worlds[full:] == sorted(worlds[full:], reverse=True), worlds
    assert 2 in worlds[:full], worlds
    assert worlds[-1] == 1, worlds
