"""The shards of a torch job whose ranks make each step together, while its pods are killed."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bireme.clusters.api import ApiError
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.kind.shell import NODE_TYPE, Shell, until
from tests.kind.training import ANYWHERE, KIND, outcome

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("torch_images")]

ROOT = Path(__file__).parents[2]
SHARDS = 500
DISPATCHER = {
    "enabled": True,
    "image": {"registry": "", "repository": "bireme/python", "tag": "3.13"},
    "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
}


def script() -> str:
    """The one of docs/dispatcher.md for ranks that make each step together."""
    _, shown = re.findall(r"```python\n(.*?)```", (ROOT / "docs/dispatcher.md").read_text(), re.S)
    assert "dispatcher.add(names)" in shown
    before = (ROOT / "tests/runtime/with_torch/shards.py").read_text()
    return f"{before}\nfrom bireme_runtime.dispatcher import Dispatcher\n{shown}"


@dataclass(frozen=True)
class Job:
    """The job, the folder in which its ranks note what they train, and kubectl."""

    release: InstalledRelease
    folder: Path
    shell: Shell

    def notes(self, event: str) -> list[dict[str, Any]]:
        file = self.folder / "all.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        notes = [json.loads(line) for line in lines if line.endswith("}")]
        return [note for note in notes if note["event"] == event]

    def until_trained(self, shards: int, world: int) -> None:
        """Wait until a world of this size has begun so many shards from now on."""

        def begun() -> int:
            return len([n for n in self.notes("begun") if n["rank"] == 0 and n["world"] == world])

        wanted = begun() + shards
        until(lambda: begun() >= wanted, 240, f"{shards} more shards of a world of {world}")

    def status(self) -> dict[str, Any]:
        """What the dispatcher says; empty while it does not answer."""
        release = self.release
        try:
            status = release.cluster.api.proxied(
                release.namespace, f"{release.name}-dispatcher", 7190, "v1/status", 5
            )
        except ApiError:
            return {}
        (dataset,) = status["datasets"]
        return {"leader": status["leader"], **dataset}

    def pods(self) -> dict[str, str]:
        """The pods that run, by their addresses."""
        found = [pod for pod in self.release.objects("pods") if pod["status"]["phase"] == "Running"]
        return {pod["status"]["podIP"]: pod["metadata"]["name"] for pod in found}

    def leader(self) -> str:
        """The pod whose dispatcher leads; empty while there is none."""
        return self.pods().get(self.status().get("leader", "").rpartition(":")[0], "")

    def worker_of(self, rank: int) -> str:
        """The pod whose process has this rank now."""
        host = [note["host"] for note in self.notes("begun") if note["rank"] == rank][-1]
        return next(pod for pod in self.pods().values() if pod == host or pod.startswith(f"{host}-"))

    def kill(self, pod: str, container: str) -> None:
        """SIGKILL all of the pod's processes, and delete it."""
        self.shell.kill_container(self.release.namespace, pod, container)
        self.release.delete_pod(pod)


@pytest.fixture
def job(release: ReleaseFactory, runs: Path, shell: Shell) -> Job:
    name = f"shards-{uuid.uuid4().hex[:4]}"
    folder = runs / name
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "shards.py").write_text(script())
    values = {
        **ANYWHERE,
        "workers": 3,
        "args": [f"/runs/{name}/shards.py", f"/runs/{name}", "all", str(SHARDS)],
        "claims": [{"claimName": "runs", "mountPath": "/runs"}],
        "data": {"dispatcher": DISPATCHER},
        "etcd": {"persistence": {"enabled": True, "whenDeleted": "Delete"}},
    }
    installed = release(
        "torch-elastic", name=name, instance=NODE_TYPE, files=[KIND], timeout=240, values=values
    )
    return Job(installed, folder, shell)


def test_each_shard_is_done_once_while_workers_and_the_leader_are_killed(job: Job) -> None:
    job.until_trained(5, world=3)
    job.kill(job.worker_of(2), "trainer")
    job.until_trained(5, world=3)
    job.kill(job.worker_of(0), "trainer")
    job.until_trained(5, world=3)
    until(lambda: job.leader() != "", what="a dispatcher that leads")
    leader = job.leader()
    job.kill(leader, "dispatcher")
    until(lambda: job.leader() not in ("", leader), what="the other replica to lead")
    job.until_trained(5, world=3)
    until(lambda: outcome(job.release) is not None, 600, "the job to finish")
    assert outcome(job.release) == "Complete"

    until(lambda: bool(job.status()), what="the dispatcher's status")
    status = job.status()
    assert (status["over"], status["done"], status["failedShards"]) == (True, SHARDS, [])
    first = [note for note in job.notes("trained") if note["rank"] == 0]
    times = Counter(note["shard"] for note in first)
    assert set(times) == {f"shard-{number:03d}" for number in range(SHARDS)}
    # A world that ends between a shard's last step and its acknowledgement leaves that one to the next.
    worlds = {(note["host"], note["pid"]) for note in first}
    assert sum(times.values()) - SHARDS < len(worlds)
    print(f"{len(worlds)} worlds, {sum(times.values()) - SHARDS} shards trained again")
