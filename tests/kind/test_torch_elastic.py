"""Elastic jobs that really train, and go on when workers come, go and are killed."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from itertools import groupby

import pytest

from bireme.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.kind.shell import NODE_TYPE, Shell, until
from tests.kind.training import ANYWHERE, KIND, Training, outcome

pytestmark = pytest.mark.usefixtures("torch_images")


def test_two_workers_on_two_nodes_all_reduce(release: ReleaseFactory, shell: Shell) -> None:
    job = release(
        "torch-elastic",
        instance=NODE_TYPE,
        files=[KIND],
        sets=["workers=2", "minWorkers=2"],
        timeout=180,
    )
    assert len({pod.node for pod in job.pods() if pod.role == "worker"}) == 2
    until(lambda: outcome(job) is not None, 240, "the job to finish")
    workers = f"app.kubernetes.io/instance={job.name},app.kubernetes.io/component=worker"
    said = shell.logs(workers, job.namespace)
    assert outcome(job) == "Complete", said
    ranks = re.findall(r"rank (\d+) of world size (\d+) on cpu: all-reduce agrees", said)
    # Who succeeds first ends the job, and the other's pod may go with its log; the sum has both.
    assert ranks, said
    assert set(ranks) <= {("0", "2"), ("1", "2")}, said


def accuracy_of_one_process(steps: int) -> float:
    """What digits.py reaches by itself, with nothing in its way."""
    script = ["python3", "/opt/bireme/digits.py", "--checkpoints=/tmp/run", f"--steps={steps}"]
    done = subprocess.run(
        ["docker", "run", "--rm", "bireme/torch:0.1.0", *script], capture_output=True, text=True, check=True
    )
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return next(float(event["accuracy"]) for event in events if event["event"] == "done")


def test_three_workers_lose_a_process_an_agent_and_a_pod_and_learn_as_much_as_one_left_alone(
    train: Callable[..., Training],
) -> None:
    steps = 600
    training = train(workers=3, steps=steps)
    training.until_trained(30, world_size=3)
    training.kill(1, agent=False)
    training.until_trained(30, world_size=3)
    training.kill(2, agent=True)
    training.until_trained(30, world_size=3)
    training.delete(0)
    training.until_trained(30, world_size=3)
    done = training.until_complete(steps)
    # Sums in another order round differently; one of the 360 test samples is 0.003.
    assert done["accuracy"] == pytest.approx(accuracy_of_one_process(steps), abs=0.01)


def curve(shell: Shell, job: InstalledRelease, tag: str) -> dict[int, float]:
    """The values by step that the job's TensorBoard has of its run; none while it has nothing to show."""
    service = f"/api/v1/namespaces/{job.namespace}/services/{job.name}-tensorboard:6006/proxy"
    query = f"run={job.name}/tensorboard&tag={tag}"
    points = shell.attempt("get", "--raw", f"{service}/data/plugin/scalars/scalars?{query}")
    return {int(step): value for _, step, value in json.loads(points or "[]")}


def test_two_workers_become_four_and_one_while_training_and_tensorboard_shows_it(
    train: Callable[..., Training], shell: Shell
) -> None:
    steps = 500
    values = {**ANYWHERE, "tensorboard": {"enabled": True, "logDir": "/runs"}}
    training = train(workers=2, steps=steps, values=values)
    training.until_trained(30, world_size=2)
    training.scale(4)
    training.until_trained(30, world_size=4)
    training.scale(1)
    training.until_trained(30, world_size=1)
    training.until_complete(steps)
    job = training.job
    until(lambda: steps in curve(shell, job, "world_size"), 60, "TensorBoard to show the last step")
    sizes = curve(shell, job, "world_size")
    assert list(sizes) == sorted(sizes)
    # Newcomers start apart and leavers end apart, so a world in between may train for some steps.
    worlds = [int(world) for world, _ in groupby(sizes.values())]
    full = worlds.index(4)
    assert worlds[: full + 1] == sorted(worlds[: full + 1]), worlds
    assert worlds[full:] == sorted(worlds[full:], reverse=True), worlds
    assert 2 in worlds[:full], worlds
    assert worlds[-1] == 1, worlds
