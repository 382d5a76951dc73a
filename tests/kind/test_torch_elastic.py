"""Elastic jobs that really train."""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from on_kind import NODE_TYPE, Shell, eventually
from training import Training

from bireme.clusters.kind_cluster import KindCluster
from bireme.pytest_plugin import InstalledRelease, ReleaseFactory

pytestmark = pytest.mark.usefixtures("torch_images")

KIND = "values/kind.yaml"
CHECKPOINT_EVERY = 20


def logs(shell: Shell, job: InstalledRelease) -> str:
    return shell.logs(
        f"app.kubernetes.io/instance={job.name},app.kubernetes.io/component=worker", job.namespace
    )


def is_finished(job: InstalledRelease) -> bool:
    (found,) = job.objects("jobs")
    return any(
        each["type"] in ("Complete", "Failed") and each["status"] == "True"
        for each in found["status"].get("conditions", [])
    )


def outcome(job: InstalledRelease) -> str:
    (found,) = job.objects("jobs")
    return next(
        each["type"]
        for each in found["status"]["conditions"]
        if each["type"] in ("Complete", "Failed") and each["status"] == "True"
    )


def test_two_workers_on_two_nodes_all_reduce(release: ReleaseFactory, shell: Shell) -> None:
    job = release(
        "torch-elastic",
        instance=NODE_TYPE,
        files=[KIND],
        sets=["workers=2", "minWorkers=2"],
        timeout=180,
    )
    assert len({pod.node for pod in job.pods() if pod.role == "worker"}) == 2
    eventually(lambda: is_finished(job), 240, "the job to finish")
    said = logs(shell, job)
    assert outcome(job) == "Complete", said
    ranks = re.findall(r"rank (\d+) of world size (\d+) on cpu: all-reduce agrees", said)
    assert sorted(ranks) == [("0", "2"), ("1", "2")], said


@pytest.fixture
def train(
    release: ReleaseFactory, cluster: KindCluster, shell: Shell, test_namespace: str
) -> Iterator[Callable[..., Training]]:
    """``train(workers=3, steps=200)``: digits.py on elastic workers, whose logs are read from the start."""
    cluster.add_claim("checkpoints", test_namespace)
    with ExitStack() as followed:

        def _train(workers: int, steps: int, step_seconds: float = 0.1) -> Training:
            name = f"digits-{uuid.uuid4().hex[:4]}"
            arguments = {"checkpoints": f"/runs/{name}", "steps": steps, "step-seconds": step_seconds}
            arguments["checkpoint-every"] = CHECKPOINT_EVERY
            values = {
                "workers": workers,
                "args": ["/opt/bireme/digits.py", *(f"--{key}={value}" for key, value in arguments.items())],
                "claims": [{"claimName": "checkpoints", "mountPath": "/runs"}],
            }
            said = {"instance": NODE_TYPE, "files": [KIND], "timeout": 180}
            job = release("torch-elastic", name=name, values=values, **said)
            return followed.enter_context(Training(job, shell, said | {"values": values}).followed())

        yield _train


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
    training.job.delete_pod(training.pod(0))
    training.until_trained(30, world_size=3)
    done = training.until_done()
    training.assert_nothing_was_lost(CHECKPOINT_EVERY)
    assert done["step"] == steps
    # Sums in another order round differently; one of the 360 test samples is 0.003.
    assert done["accuracy"] == pytest.approx(accuracy_of_one_process(steps), abs=0.01)
    eventually(lambda: is_finished(training.job), 60, "the job to finish")
    assert outcome(training.job) == "Complete"


def test_workers_come_and_go_while_training(train: Callable[..., Training]) -> None:
    steps = 600
    training = train(workers=2, steps=steps)
    training.until_trained(30, world_size=2)
    training.scale(3)
    training.until_trained(30, world_size=3)
    training.scale(1)
    training.until_trained(30, world_size=1)
    assert training.until_done()["step"] == steps
    training.assert_nothing_was_lost(CHECKPOINT_EVERY)
    eventually(lambda: is_finished(training.job), 60, "the job to finish")
    assert outcome(training.job) == "Complete"
