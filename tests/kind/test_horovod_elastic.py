"""Elastic Horovod goes on while workers join, leave, are deleted and are killed, under one launcher."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bireme.cli import cli
from bireme.clusters.kind import KindCluster
from bireme.live.logs import main_log, main_pod
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.kind.shell import NODE_TYPE, Shell, until
from tests.kind.training import Event, outcome

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("image", "runs")]

STEPS, SHARDS = 1000, 150
FILE = "values/kind-mpi.yaml"
VALUES: dict[str, Any] = {
    "workers": 2,
    "elastic": {"minWorkers": 2, "maxWorkers": 3},
    "image": {"tag": "0.1.0"},
    "claims": [{"claimName": "runs", "mountPath": "/runs"}],
    "accelerators": 0,
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
}


@pytest.fixture(scope="module")
def image(load: Callable[..., None]) -> None:
    load("mpi", "etcd", "python")


@dataclass
class Digits:
    """A job that trains on the digits, elastically; ``launcher`` is the name of its first launcher's pod."""

    job: InstalledRelease
    cluster: KindCluster
    launcher: str
    worlds_before: int = 0

    @property
    def log(self) -> str:
        """What the launcher has printed."""
        return main_log(self.cluster, self.job.plan)

    def events(self, name: str) -> list[Event]:
        """The events of that name, of all ranks; horovodrun prints each line after `[RANK]<stdout>:`."""
        lines = (line.partition(">:")[2] for line in self.log.splitlines())
        events = [json.loads(line) for line in lines if line.startswith('{"event"')]
        return [event for event in events if event["event"] == name]

    def until_trained(self, world_size: int) -> None:
        """Wait until a world of that size has formed, since the last wait, and made steps."""

        def trained() -> bool:
            assert outcome(self.job) is None, self.log
            formed = self.worlds()[self.worlds_before :]
            sizes = [event["world_size"] for event in self.events("step")[-3:]]
            return world_size in formed[-1:] and sizes == [world_size] * 3

        until(trained, 240, lambda: f"{world_size} workers to train:\n{self.log[-3000:]}")
        self.worlds_before = len(self.worlds())

    def worlds(self) -> list[int]:
        """The sizes of the worlds so far, in order."""
        return [event["world_size"] for event in self.events("world") if event["rank"] == 0]

    def scale(self, workers: int) -> None:
        """`bireme scale` to another number of workers, which waits for them."""
        where = ["--namespace", self.job.namespace, "--kubeconfig", str(self.cluster.kubeconfig)]
        done = CliRunner().invoke(cli, ["scale", self.job.name, str(workers), *where])
        assert done.exit_code == 0, f"{done.output}{done.exception}"

    def pod(self, index: int) -> str:
        """The pod of a worker."""
        label = "batch.kubernetes.io/job-completion-index"
        found = [
            pod["metadata"]["name"]
            for pod in self.job.objects("pods")
            if pod["metadata"]["labels"].get(label) == str(index) and pod["status"]["phase"] == "Running"
        ]
        assert len(found) == 1, found
        return str(found[0])

    def assert_complete(self) -> None:
        """Wait until the job is complete: it made each step, has learnt, and its launcher was one pod."""
        until(lambda: outcome(self.job) is not None, 480, lambda: f"the end:\n{self.log[-3000:]}")
        assert outcome(self.job) == "Complete", self.log
        assert main_pod(self.cluster, self.job.plan).name == self.launcher
        assert {event["step"] for event in self.events("step")} == set(range(1, STEPS + 1))
        assert {event["accuracy"] >= 0.95 for event in self.events("done")} == {True}


@pytest.fixture
def digits(release: ReleaseFactory, cluster: KindCluster, request: pytest.FixtureRequest) -> Digits:
    """Two workers of two to three."""
    folder = f"--checkpoints=/runs/{request.node.name.replace('_', '-')[:40]}"
    script = ["python3", "/opt/bireme/horovod_elastic_digits.py", folder]
    values = {**VALUES, "args": [*script, f"--steps={STEPS}", "--step-seconds=0.2"]}
    job = release("mpi-training", instance=NODE_TYPE, files=[FILE], timeout=240, values=values)
    return Digits(job, cluster, main_pod(cluster, job.plan).name)


def test_a_job_grows_goes_on_when_a_pod_is_deleted_and_shrinks(digits: Digits) -> None:
    digits.until_trained(2)
    digits.scale(3)
    digits.until_trained(3)
    digits.job.delete_pod(digits.pod(1))
    digits.until_trained(3)
    digits.scale(2)
    digits.until_trained(2)
    digits.assert_complete()
    steps = [event["step"] for event in digits.events("step")]
    assert steps == sorted(set(steps)), "workers that left in peace cost no step"


def test_no_shard_fails_when_other_workers_come_go_and_are_killed(
    release: ReleaseFactory, cluster: KindCluster, shell: Shell, runs: Path
) -> None:
    shutil.copy(Path(__file__).with_name("horovod_shards.py"), runs)
    python = {"registry": "", "repository": "bireme/python", "tag": "3.13"}
    images = {"image": {"registry": "", "repository": "bireme/etcd"}, "joinImage": python}
    values = {
        **VALUES,
        "args": ["python3", "/runs/horovod_shards.py", str(SHARDS)],
        "data": {"dispatcher": {"enabled": True, "image": python}},
        "etcd": {**images, "enabled": True, "persistence": {"enabled": True, "whenDeleted": "Delete"}},
    }
    job = release("mpi-training", instance=NODE_TYPE, files=[FILE], timeout=240, values=values)
    digits = Digits(job, cluster, main_pod(cluster, job.plan).name)

    def until_trained(world_size: int) -> None:
        """Wait until a world of that size has trained three more shards."""

        def trained() -> int:
            assert outcome(job) is None, digits.log
            return digits.log.count(f"in a world of {world_size}")

        wanted = trained() + 3
        until(lambda: trained() >= wanted, 240, lambda: f"{world_size} workers:\n{digits.log[-3000:]}")

    until_trained(2)
    digits.scale(3)
    until_trained(3)
    shell.kill_container(job.namespace, digits.pod(2), "trainer")
    until_trained(3)
    digits.scale(2)
    until_trained(2)
    until(lambda: outcome(job) is not None, 480, lambda: f"the end:\n{digits.log[-3000:]}")
    assert outcome(job) == "Complete", digits.log
    status = cluster.api.proxied(job.namespace, f"{job.name}-dispatcher", 7190, "v1/status", 5)
    (dataset,) = status["datasets"]
    assert (dataset["over"], dataset["done"], dataset["failedShards"]) == (True, SHARDS, [])
    assert set(re.findall(r"trained (\S+) in", digits.log)) == {f"shard-{n}" for n in range(SHARDS)}
