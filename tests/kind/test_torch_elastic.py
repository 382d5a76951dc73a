"""Elastic jobs that really train, and continue when workers join, leave and are killed."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from itertools import groupby

import pytest

from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.kind.shell import NODE_TYPE, Shell, until
from tests.kind.training import ANYWHERE, KIND, Training, outcome

pytestmark = pytest.mark.usefixtures("torch_images")


@pytest.mark.whole
def test_two_workers_on_two_nodes_all_reduce(release: ReleaseFactory, shell: Shell) -> None:
    job = release(
        "torch-elastic",
        instance=NODE_TYPE,
        files=[KIND],
        sets=["workers=2", "elastic.minWorkers=2"],
        timeout=180,
    )
    assert len({pod.node for pod in job.pods() if pod.role == "worker"}) == 2
    until(lambda: outcome(job) is not None, 240, "the job to finish")
    workers = f"app.kubernetes.io/instance={job.name},app.kubernetes.io/component=worker"
    log = shell.logs(workers, job.namespace)
    assert outcome(job) == "Complete", log
    ranks = re.findall(r"rank (\d+) of world size (\d+) on cpu: all-reduce agrees", log)
    # The first worker to succeed ends the job, so the other's pod and log may be gone; its sum counts both.
    assert ranks, log
    assert set(ranks) <= {("0", "2"), ("1", "2")}, log


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
