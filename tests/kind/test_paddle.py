"""Paddle jobs that really train, on parameter servers, while their parts are killed."""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from bireme.clusters.kind import KindCluster
from bireme.live.logs import main_log
from bireme.testing.pytest_plugin import ReleaseFactory
from tests.kind.paddle import DYNAMIC, Jobs, PaddleJob
from tests.kind.shell import NODE_TYPE, until
from tests.kind.training import outcome
from tests.support.tiers import core

# Tolerance of the test loss: gradients arrive at the pservers late and in any order.
TOLERANCE = 0.2
# The loss before any training: of digits.py a guess among ten classes, of quick_start.py one among two.
CHANCE, CHANCE_OF_TWO = 2.3, 0.69
LEASE = 12
COLLECTIVE = {"paddle": {"mode": "collective"}, "data": {"prep": {"enabled": False}}}


@pytest.fixture(scope="session")
def loss_of_one_process() -> Callable[[str], float]:
    """The test loss of a script in one process."""

    def _loss(*command: str) -> float:
        alone = ["docker", "run", "--rm", "bireme/paddle:0.1.0", "python3", *command]
        done = subprocess.run(alone, capture_output=True, text=True, check=True)
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return next(float(event["loss"]) for event in events if event["event"] == "done")

    return _loss


def assert_saved(job: PaddleJob, passes: int, script: str, servers: int) -> None:
    """Each pass left sparse and dense parameters of all pservers, and says so."""
    for number in range(passes):
        folder = job.output / f"pass-{number:05d}"
        assert (folder / "done").exists()
        assert (folder / "path.txt").read_text().strip() == script
        assert (folder / script).exists()
        for table in ("000", "001"):
            parts = {each.name[:8] for each in (folder / table).iterdir()}
            assert parts == {f"part-{server:03d}" for server in range(servers)}
    assert (job.output / "done").exists()


@pytest.mark.parametrize("mode", core("async", of=["async", "sync"]))
def test_three_trainers_on_two_pservers_learn_as_much_as_one_process_and_all_end(
    paddle: Jobs, loss_of_one_process: Callable[..., float], mode: str
) -> None:
    # Long, because the machine may be busy; a pod that is deleted signs off by itself.
    job = paddle("--passes=20", paddle={"mode": mode}, recovery={"lostSeconds": 30})
    job.until_ended()
    (done,) = job.events("done", 0)
    assert done["loss"] <= loss_of_one_process("/opt/bireme/digits.py") + TOLERANCE
    logs = {str(each.relative_to(job.output)) for each in job.output.glob("node_*/*")}
    servers = {f"node_{index}/server.log" for index in range(2)}
    assert logs == {f"node_{index}/train.log" for index in range(3)} | servers
    assert_saved(job, 20, "digits.py", servers=2)
    assert_tested(job, 20)


def assert_tested(job: PaddleJob, passes: int) -> None:
    """After each pass each of three trainers has measured its shard of the test data."""
    measured = Counter((event["pass"], event["trainer"], *event["shards"]) for event in job.events("test"))
    parts = [(number, index, f"test.txt-{index:05d}") for number in range(passes) for index in range(3)]
    assert measured == Counter(parts)
    first, last = (
        [event["loss"] for event in job.events("test") if event["pass"] == number]
        for number in (0, passes - 1)
    )
    assert sum(last) < sum(first)


def by_shards(paddle: Jobs, passes: int, shards: int) -> PaddleJob:
    """A dynamic job with steps that take long enough to lose a trainer in the middle of a shard."""
    return paddle(
        f"--passes={passes}",
        "--batch-size=8",
        "--step-seconds=0.25",
        shards=shards,
        recovery={"lostSeconds": 30},
        **DYNAMIC,
    )


@pytest.mark.whole
def test_the_shards_of_a_killed_trainer_are_done_by_others_and_each_counts_once(paddle: Jobs) -> None:
    passes, shards = 3, 12
    job = by_shards(paddle, passes, shards)
    job.until(lambda: len(job.events("step", 1)) > 0, 180, "trainer 1 to train")
    killed = job.kill(job.pod("trainer", 1), "trainer", when=lambda: job.is_in_the_middle(1))
    lost = job.events("step", 1)[-1]

    def taken_over() -> bool:
        later = [event for event in job.events("step") if event["time"] > killed]
        return (lost["pass"], lost["shard"]) in {(event["pass"], event["shard"]) for event in later}

    # The lease has to end, and another trainer has to finish its current shard.
    job.until(taken_over, LEASE + 120, f"somebody to take {lost['shard']}")
    # Asked now, because the next leader would count from zero.
    job.until(lambda: job.dispatcher().get("redispatched") == {"lost": 1}, 120, "the reason to be counted")
    job.until(lambda: len(job.events("start", 1)) == 2, 120, "its replacement to start")
    joined = job.events("start", 1)[1]["time"]
    job.until_ended()
    assert [event for event in job.events("shard", 1) if event["time"] > joined], "the replacement trained"
    counted = Counter((event["pass"], event["shard"]) for event in job.events("shard"))
    assert counted == {(n, f"digits-{i:05d}"): 1 for n in range(passes) for i in range(shards)}
    assert job.ended_passes() == [(shards, 0)] * passes
    (done,) = job.events("done", 0)
    assert done["loss"] < CHANCE / 2


@pytest.mark.whole
def test_training_survives_lost_leader_etcd_and_pserver_a_poisoned_shard_and_scaling(
    paddle: Jobs,
) -> None:
    passes, shards, poison = 5, 12, "digits-00007"
    arguments = [f"--passes={passes}", "--batch-size=8", "--step-seconds=0.3", f"--poison={poison}"]
    job = paddle(*arguments, shards=shards, **DYNAMIC)
    job.until_progress(4, 240)

    job.until(lambda: job.leader() != "", 120, "a dispatcher that leads")
    leader = job.leader()
    job.kill(leader, "dispatcher")
    # A killed container would be restarted and might become the leader again.
    job.release.delete_pod(leader)
    job.until(lambda: job.leader() not in ("", leader), 120, "the other replica to lead")
    job.until_progress(4)

    etcd = f"{job.release.name}-etcd-0"
    ready, namespace = job.shell.uid_when_ready, job.release.namespace
    gone = ready(namespace, etcd)
    job.release.delete_pod(etcd)
    job.until(lambda: ready(namespace, etcd) not in ("", gone), 120, "another etcd")
    job.until_progress(4)

    job.scale(5)
    job.until(lambda: bool(job.events("shard", 3) and job.events("shard", 4)), 120, "shards of new trainers")

    job.until(lambda: len(job.passes) > 0, 240, "the first pass to be saved")
    before = job.attempt
    lost = job.kill(job.pod("pserver", 1), "pserver")
    job.until(lambda: job.attempt > before, 25, "the loss to be noticed and a new attempt to begin")
    everybody = set(range(5))
    job.until(lambda: job.restored(since=lost) == everybody, 240, "all trainers to begin again from the save")
    job.until_ended(600)

    again, *_ = (event for event in job.events("restored", 0) if event["time"] > lost)
    assert again["loss"] < CHANCE / 2, "what was learnt before is not lost"
    (done,) = job.events("done", 0)
    assert done["loss"] < CHANCE / 2
    # The poisoned shard failed in every pass without delaying it; all others were done.
    assert job.ended_passes() == [(shards - 1, 1)] * passes
    assert job.dispatcher()["failedShards"] == [poison]
    trained = {(event["pass"], event["shard"]) for event in job.events("shard")}
    names = [name for name in (f"digits-{index:05d}" for index in range(shards)) if name != poison]
    assert trained == {(number, name) for number in range(passes) for name in names}


@pytest.mark.whole
def test_the_tutorials_job_restarts_from_its_save_when_a_pserver_dies(
    install_paddle: Jobs, cluster: KindCluster, test_namespace: str, loss_of_one_process: Callable[..., float]
) -> None:
    cluster.add_claim("efsvol", test_namespace)
    folder = cluster.claim_folder("efsvol", test_namespace) / "paddle-cluster-job"
    job = install_paddle("tutorial", folder / "output", workload="paddle-tutorial")
    job.until(lambda: "pass-00001" in job.passes, 180, "two passes to be saved")
    lost = job.kill(job.pod("trainer", 1), "pserver")
    job.until(lambda: job.attempt == 2, 25, "the loss to be noticed and a new attempt to begin")
    job.until_ended()

    assert job.restored(since=lost) == {0, 1, 2}
    (again,) = job.events("restored", 0)
    assert again["loss"] < CHANCE_OF_TWO * 0.8, "what was learnt before is not lost"
    (done,) = job.events("done", 0)
    assert done["loss"] <= loss_of_one_process("/opt/bireme/quick_start.py") + TOLERANCE
    assert done["accuracy"] > 0.9, "reviews for and against a product"
    assert sorted(each.name for each in (folder / "data").glob("t*.txt-*")) == [
        f"{part}.txt-{index:05d}" for part in ("test", "train") for index in range(3)
    ]
    logs = {str(each.relative_to(job.output)) for each in job.output.glob("node_*/*")}
    assert logs == {f"node_{i}/{role}.log" for i in range(3) for role in ("server", "train")}
    assert_saved(job, 20, "quick_start.py", servers=3)


@pytest.mark.whole
def test_word_vectors_learn_as_much_as_in_one_process(
    install_paddle: Jobs, cluster: KindCluster, test_namespace: str, loss_of_one_process: Callable[..., float]
) -> None:
    job = install_paddle("w2v", Path(), workload="paddle-word2vec")
    claim = f"/api/v1/namespaces/{test_namespace}/persistentvolumeclaims/w2v-job"
    job.output = cluster.shared / cluster.api.get(claim)["spec"]["volumeName"] / "word2vec/output"
    job.until_ended()
    (done,) = job.events("done", 0)
    alone = ["--passes=3", "--batch-size=64", "--learning-rate=0.003"]
    assert done["loss"] <= loss_of_one_process("/opt/bireme/word2vec.py", *alone) + TOLERANCE
    assert_saved(job, 3, "word2vec.py", servers=2)


@pytest.mark.whole
def test_three_workers_without_pservers_train_one_model_together(
    paddle: Jobs, loss_of_one_process: Callable[..., float]
) -> None:
    script, checkpoints = "/opt/bireme/collective.py", "--checkpoints=$(JOB_PATH)/$(JOB_NAME)/kept"
    job = paddle(**COLLECTIVE, args=[script, checkpoints])
    job.until_ended()
    assert {(event["rank"], event["size"]) for event in job.events("start")} == {(n, 3) for n in range(3)}
    done = job.events("done")
    assert len(done) == 3
    assert len({(event["loss"], event["sum"]) for event in done}) == 1, f"the same parameters: {done}"
    assert done[0]["loss"] <= loss_of_one_process(script, "--checkpoints=/tmp/kept") + TOLERANCE
    assert (job.output / "done").exists()


@pytest.mark.whole
@pytest.mark.parametrize("lost", [1, 0])
def test_workers_without_pservers_start_again_together_when_one_is_killed(paddle: Jobs, lost: int) -> None:
    arguments = ["/opt/bireme/collective.py", "--checkpoints=$(JOB_PATH)/$(JOB_NAME)/kept", "--passes=200"]
    job = paddle(**COLLECTIVE, workers=2, args=arguments)
    killed = job.kill(job.pod("trainer", lost), "trainer", when=lambda: len(job.events("pass", 0)) > 5)

    def resumed() -> set[int]:
        return {event["rank"] for event in job.events("start") if event["trained"] > 0}

    # A worker may start again before the command that killed the other has returned.
    job.until(lambda: resumed() == {0, 1}, 180, "both workers to start again from the checkpoint")
    assert all(event["trained"] > 0 for event in job.events("start") if event["time"] > killed)
    job.until_ended()
    done = job.events("done")
    assert len({event["sum"] for event in done}) == 1, f"the same parameters: {done}"


@pytest.mark.whole
def test_a_workspace_of_several_files_trains_on_data_that_its_release_writes_and_stages(paddle: Jobs) -> None:
    workspace = yaml.safe_load((Path(__file__).parent / "workspace.yaml").read_text())
    known = ("the", "of", "and", "to", "a", "in", "is", "from", "as", "not", "for", "with", "data", "sklearn")
    words = pickle.dumps({word: number for number, word in enumerate(known, 1)})
    job = paddle(
        instance={"type": NODE_TYPE},
        args=["--data=/staged", "--passes=3"],
        script=workspace["script"],
        launch={
            "files": {
                **workspace["launch"]["files"],
                "word_dict.pickle": {"base64": base64.b64encode(words).decode()},
            }
        },
        data={
            "jobName": "workspace",
            "prep": {"enabled": True, "args": ["/bireme/script/train.py", "--prepare", "$(OUT_DIR)"]},
            "staging": {"claimName": "jobs", "subPath": "workspace/data", "size": "1Gi"},
        },
    )
    job.output = job.output.parents[1] / "workspace/output"
    job.until_ended()
    assert_tested(job, 3)
    assert_saved(job, 3, "train.py", servers=2)


@pytest.mark.whole
def test_the_guides_launch_by_mpi_trains(
    release: ReleaseFactory, cluster: KindCluster, load: Callable[..., None], test_namespace: str,
    loss_of_one_process: Callable[..., float],
) -> None:  # fmt: skip
    load("paddle")
    cluster.add_claim("efsvol", test_namespace)
    image = {"registry": "", "repository": "bireme/paddle", "tag": "0.1.0"}
    values = {"image": image, "tolerations": [{"operator": "Exists"}]}
    on_kind = ["values/kind-mpi.yaml"]
    job = release("mpi-training", workload="paddle-mpi", files=on_kind, values=values, timeout=180)
    until(lambda: outcome(job) is not None, 300, "the end of the ranks")
    log = main_log(cluster, job.plan)
    assert outcome(job) == "Complete", log
    events = [json.loads(line) for line in log.splitlines() if line.startswith('{"event"')]
    starts = [event for event in events if event["event"] == "start"]
    assert {(event["rank"], event["size"]) for event in starts} == {(rank, 3) for rank in range(3)}
    done = [event for event in events if event["event"] == "done"]
    assert len(done) == 3
    (sum_of_all,) = {event["sum"] for event in done}
    one = loss_of_one_process("/opt/bireme/collective.py", "--checkpoints=/tmp/kept")
    assert done[0]["loss"] <= one + TOLERANCE, f"the ranks train one model, whose sum is {sum_of_all}"
