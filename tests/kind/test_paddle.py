"""Paddle jobs that really train, on parameter servers."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bireme.clusters.kind_cluster import KindCluster
from bireme.pytest_plugin import InstalledRelease, ReleaseFactory

IMAGE = {"registry": "", "repository": "bireme/paddle", "tag": "0.1.0"}
FOLDER = "/home/jobpath"
# Test loss that may be lacking after 20 passes: what trainers send arrives late, and in any order.
TOLERANCE = 0.2
SMALL = {"requests": {"cpu": "50m", "memory": "384Mi"}, "limits": {"memory": "2Gi"}}
ANYWHERE = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
Event = dict[str, Any]


class PaddleJob:
    """One release of the chart, and its folder on the claim."""

    def __init__(self, release: InstalledRelease, claim: Path) -> None:
        self.release = release
        self.output = claim / release.name / "output"

    def events(self, trainer: int, name: str) -> list[Event]:
        """The events of that name in a trainer's log, in order."""
        log = self.output / f"node_{trainer}" / "train.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        found = [json.loads(line) for line in lines if line.startswith('{"event"') and line.endswith("}")]
        return [event for event in found if event["event"] == name]

    def said(self) -> str:
        logs = sorted(self.output.glob("node_*/*.log"))
        return "\n".join(f"{each}:\n{each.read_text(errors='replace')[-1500:]}" for each in logs)

    def outcomes(self) -> dict[str, str]:
        """How each Job of the release has ended, by name."""
        return {
            job["metadata"]["name"]: each["type"]
            for job in self.release.objects("jobs")
            for each in job["status"].get("conditions", [])
            if each["type"] in ("Complete", "Failed") and each["status"] == "True"
        }

    def until_ended(self) -> None:
        jobs = set(self.release.names("jobs"))
        deadline = time.monotonic() + 420
        while set(self.outcomes()) != jobs:
            assert time.monotonic() < deadline, f"not all of {jobs} have ended:\n{self.said()}"
            time.sleep(1)
        assert set(self.outcomes().values()) == {"Complete"}, self.said()


@pytest.fixture
def paddle(
    release: ReleaseFactory,
    load: Callable[..., None],
    cluster: KindCluster,
    test_namespace: str,
) -> Callable[..., PaddleJob]:
    """``paddle("--passes=3")``: the digits on 2 pservers and 3 trainers."""
    load("paddle")
    cluster.add_claim("jobs", test_namespace)

    def _paddle(*arguments: str) -> PaddleJob:
        name = f"digits-{uuid.uuid4().hex[:4]}"
        data = f"{FOLDER}/{name}/data"
        own = {
            "workers": 3,
            "pservers": {"count": 2, "resources": SMALL, "tolerations": ANYWHERE},
            "resources": SMALL,
            "tolerations": ANYWHERE,
            "shm": {"size": "64Mi"},
            # The machine may be busy; a pod that is deleted says so itself.
            "lostSeconds": 30,
            "image": IMAGE,
            "jobClaim": {"existingClaim": "jobs"},
            "dataPrep": {"enabled": True, "args": ["/opt/bireme/digits.py", "--prepare", data]},
            "args": ["/opt/bireme/digits.py", f"--data={data}", *arguments],
        }
        job = release("paddle", name=name, values=own, timeout=240)
        return PaddleJob(job, cluster.claim_folder("jobs", test_namespace))

    return _paddle


@pytest.fixture(scope="session")
def loss_of_one_process() -> float:
    """What digits.py reaches by itself, on the test images."""
    alone = ["docker", "run", "--rm", "bireme/paddle:0.1.0", "python3", "/opt/bireme/digits.py"]
    done = subprocess.run(alone, capture_output=True, text=True, check=True)
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return next(float(event["loss"]) for event in events if event["event"] == "done")


def test_three_trainers_on_two_pservers_learn_as_much_as_one_process_and_all_end_by_themselves(
    paddle: Callable[..., PaddleJob], loss_of_one_process: float
) -> None:
    job = paddle("--passes=20")
    job.until_ended()
    (done,) = job.events(0, "done")
    assert done["loss"] <= loss_of_one_process + TOLERANCE
    files = {str(each.relative_to(job.output)) for each in job.output.rglob("*")}
    assert {f"node_{index}/train.log" for index in range(3)} <= files
    assert {f"node_{index}/server.log" for index in range(2)} <= files
    for number in range(20):
        folder = job.output / f"pass-{number:05d}"
        assert (folder / "done").exists()
        assert (folder / "path.txt").read_text().strip() == "digits.py"
        # Sparse and dense parameters of both pservers.
        tables = {table: {each.name[:8] for each in (folder / table).iterdir()} for table in ("000", "001")}
        assert tables == {"000": {"part-000", "part-001"}, "001": {"part-000", "part-001"}}
    assert (job.output / "done").exists()
