"""Paddle jobs that really train, on parameter servers that are lost and trainers that are killed."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from on_kind import Shell, Values, eventually

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

    def __init__(self, release: InstalledRelease, claim: Path, folder: str = "") -> None:
        self.release = release
        self.output = claim / (folder or release.name) / "output"

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

    def until_trained(self, trainer: int, steps: int) -> None:
        eventually(
            lambda: len(self.events(trainer, "step")) >= steps, 240, f"step {steps} of trainer {trainer}"
        )

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
    kind_values: Values,
) -> Callable[..., PaddleJob]:
    """``paddle({"mode": "sync"}, "--passes=3")``: the digits on 2 pservers and 3 trainers."""
    load("paddle", "python", "etcd")
    cluster.add_claim("jobs", test_namespace)

    def _paddle(values: Mapping[str, Any], *arguments: str) -> PaddleJob:
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
        job = release("paddle", name=name, values={**own, **values}, timeout=240)
        return PaddleJob(job, cluster.claim_folder("jobs", test_namespace))

    return _paddle


@pytest.fixture
def dynamic(kind_values: Values) -> Values:
    """Values for shards by the dispatcher."""
    image = {"registry": "", "repository": "bireme/python", "tag": "3.13"}
    resources = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
    etcd = {"enabled": True, **kind_values["etcd"]}
    return {"dispatch": "dynamic", "dispatcher": {"image": image, "resources": resources}, "etcd": etcd}


@pytest.fixture(scope="session")
def loss_of_one_process() -> float:
    """What digits.py reaches by itself, on the test images."""
    alone = ["docker", "run", "--rm", "bireme/paddle:0.1.0", "python3", "/opt/bireme/digits.py"]
    done = subprocess.run(alone, capture_output=True, text=True, check=True)
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return next(float(event["loss"]) for event in events if event["event"] == "done")


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_three_trainers_on_two_pservers_learn_as_much_as_one_process_and_all_end_by_themselves(
    paddle: Callable[..., PaddleJob], mode: str, loss_of_one_process: float
) -> None:
    job = paddle({"mode": mode}, "--passes=20")
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


@pytest.mark.whole
@pytest.mark.parametrize(
    ("workload", "folder", "claim"),
    [("paddle-tutorial", "paddle-cluster-job", "efsvol"), ("paddle-word2vec", "word2vec", "jobs")],
)
def test_the_workloads_train_as_they_are(
    paddle: Callable[..., PaddleJob],
    release: ReleaseFactory,
    cluster: KindCluster,
    test_namespace: str,
    workload: str,
    folder: str,
    claim: str,
) -> None:
    cluster.add_claim("efsvol", test_namespace)
    small = {
        "pservers": {"resources": SMALL, "tolerations": ANYWHERE},
        "resources": SMALL,
        "tolerations": ANYWHERE,
        "shm": {"size": "64Mi"},
        "jobClaim": {"existingClaim": claim},
    }
    installed = release("paddle", workload=workload, values=small, timeout=240)
    job = PaddleJob(installed, cluster.claim_folder(claim, test_namespace), folder)
    job.until_ended()
    losses = [event["loss"] for event in job.events(0, "step")]
    assert min(losses[-5:]) < losses[0] - 1
    assert len(job.events(0, "done")) == 1
    assert (job.output.parent / "data/train.list").read_text().split()[-1].endswith("-00002")


@pytest.mark.whole
def test_when_a_pserver_is_lost_the_run_goes_on_from_the_last_save_by_itself(
    paddle: Callable[..., PaddleJob], loss_of_one_process: float
) -> None:
    job = paddle({"saveEverySteps": 50}, "--passes=20", "--step-seconds=0.1")
    for number, lost in enumerate(("ps-r1-1", "ps-r1-0"), 1):
        job.until_trained(0, 80 * number)
        slot = f"{job.release.name}-{lost}"
        job.release.delete_pod(
            next(pod.name for pod in job.release.pods() if pod.slot == slot and pod.is_live)
        )
        eventually(
            lambda number=number: len(job.events(0, "restored")) == number, 180, "trainer 0 to start again"
        )
    job.until_ended()
    restored = job.events(0, "restored")
    # Untrained, it is log 10 = 2.3; a save of trained parameters is what was restored.
    assert all(event["loss"] < 1.5 for event in restored), restored
    (done,) = job.events(0, "done")
    assert done["loss"] <= loss_of_one_process + TOLERANCE


@pytest.mark.whole
def test_when_a_trainer_and_the_dispatchers_leader_are_killed_each_shard_is_done_once_in_each_pass(
    paddle: Callable[..., PaddleJob], dynamic: Values, shell: Shell
) -> None:
    prepare = ["/opt/bireme/digits.py", "--prepare"]
    job = paddle({**dynamic, "saveEverySteps": 50}, "--passes=4", "--step-seconds=0.2")
    assert prepare[0] in str(job.release.objects("jobs"))
    job.until_trained(1, 3)
    name, namespace = job.release.name, job.release.namespace
    victim = next(pod.name for pod in job.release.pods() if pod.slot == f"{name}-r1-1" and pod.is_live)
    shell.kubectl("delete", "pod", "-n", namespace, victim, "--grace-period=0", "--force")
    before = len(job.events(1, "start"))
    eventually(lambda: len(job.events(1, "start")) > before, 120, "the trainer's replacement")
    leaders = ["-l", f"app.kubernetes.io/instance={name},app.kubernetes.io/component=dispatcher"]
    first = shell.kubectl("get", "pods", "-n", namespace, *leaders, "-o", "name").split()[0]
    shell.kubectl("delete", "-n", namespace, first, "--grace-period=0", "--force")
    job.until_ended()
    done = Counter(
        (event["pass"], event["shard"]) for index in range(3) for event in job.events(index, "shard")
    )
    assert set(done) == {(number, f"digits-{shard:05d}") for number in range(4) for shard in range(3)}
    assert set(done.values()) == {1}


@pytest.mark.whole
def test_a_shard_that_always_fails_ends_in_the_failed_list_and_the_passes_go_on(
    paddle: Callable[..., PaddleJob], dynamic: Values, shell: Shell
) -> None:
    job = paddle({**dynamic}, "--passes=2", "--poison=digits-00001")
    job.until_ended()
    done = {(event["pass"], event["shard"]) for index in range(3) for event in job.events(index, "shard")}
    assert done == {(number, f"digits-{shard:05d}") for number in range(2) for shard in (0, 2)}
    pods = f"app.kubernetes.io/instance={job.release.name},app.kubernetes.io/component=dispatcher"
    one = shell.kubectl("get", "pods", "-n", job.release.namespace, "-l", pods, "-o", "name").split()[0]
    status = ["exec", "-n", job.release.namespace, one, "--", "python3", "-m", "bireme_runtime.dispatcher"]
    assert "digits-00001" in shell.kubectl(*status, "status")
