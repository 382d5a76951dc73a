"""Supervisors of a Paddle job as real processes, with scripts that do not communicate."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bireme_runtime.dispatcher import Dispatcher
from bireme_runtime.etcd import client as etcd
from bireme_runtime.paddle.job import Job
from bireme_runtime.paddle.run import Client, Report, Rules, Run, Unreadable, View, last_save, serve
from bireme_runtime.paddle.supervisor import Server
from bireme_runtime.process.disk import write_whole
from bireme_runtime.process.errors import Unreachable
from bireme_runtime.process.http import Address, Connection
from tests.runtime.dispatcher_replicas import Dispatchers
from tests.runtime.etcd_servers import EtcdServer, free_port
from tests.runtime.paddle_pods import SECONDS, SOURCE, PaddleJob
from tests.runtime.web_hook import WebHook
from tests.support.waiting import until

# A script for both roles: pservers listen until they are killed, trainers follow the arguments.
SCRIPT = """
import os, socket, sys, time
from pathlib import Path
from bireme_runtime.dispatcher import Dispatcher
if os.environ["TRAINING_ROLE"] == "PSERVER":
    listener = socket.create_server((os.environ["POD_IP"], int(os.environ["PADDLE_PORT"])))
    while True:
        listener.accept()
for address in os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(","):
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=5).close()
hand = Dispatcher().shards() if os.environ.get("BIREME_DISPATCHER") else iter(())
shard = next(hand, None)
print("trains", os.environ["BIREME_PADDLE_ATTEMPT"], os.environ["PADDLE_TRAINERS_NUM"],
      os.environ["BIREME_PADDLE_RESTORE"].rpartition("/")[2], flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
for shard in hand:
    pass
sys.exit(int(Path(sys.argv[1]).read_text() or 0))
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[PaddleJob]:
    one = PaddleJob(tmp_path, SCRIPT)
    yield one
    one.stop()


def test_trainers_start_after_all_pservers_and_pservers_end_after_all_trainers(job: PaddleJob) -> None:
    job.start("trainer", 0)
    job.start("trainer", 1)
    job.start("server", 0)
    job.until(lambda: (job.output / "run.json").exists(), "pserver 0 to keep the run")
    assert job.trained(0) == job.trained(1) == []
    job.start("server", 1)
    job.until_both_train()
    assert job.end() == {0}
    assert (job.output / "done").exists()


def test_a_job_that_is_done_is_not_repeated(job: PaddleJob) -> None:
    write_whole(job.output / "done", "{}")
    job.start_all()
    assert job.codes() == {0}
    assert job.trained(0) == []


def test_after_the_loss_of_pserver_0_all_restart_from_the_last_save(job: PaddleJob) -> None:
    job.train()
    write_whole(job.output / "pass-00004/done", json.dumps({"passes": 5}))
    write_whole(job.output / "last-save", "pass-00004\n")
    job.kill("server", 0)
    job.start("server", 0)
    job.until_both_train(times=2)
    assert job.trained(0)[1][1:] == job.trained(1)[1][1:] == ["2", "pass-00004"]
    assert job.end() == {0}


@pytest.fixture(scope="module")
def replicas(shared_etcd: EtcdServer) -> Iterator[Dispatchers]:
    with Dispatchers(shared_etcd.endpoint, "/test/paddle/", count=1) as one:
        yield one


@pytest.fixture
def env(replicas: Dispatchers, prefix: str) -> dict[str, str]:
    """The variables of a job with a dataset of its own."""
    dataset = prefix.strip("/").replace("/", "-")
    return {"BIREME_DISPATCHER": replicas.addresses, "BIREME_DISPATCHER_DATASET": dataset}


def test_the_loss_of_a_pserver_is_not_counted_as_a_failure_of_shards(
    job: PaddleJob, env: dict[str, str]
) -> None:
    dispatcher = Dispatcher(env=env, wait_seconds=60)
    dispatcher.add(["a", "b"], failures=1)
    job.train(**env)
    job.kill("server", 1)
    job.start("server", 1, **env)
    job.until_both_train(times=2)
    assert job.end() == {0}
    (dataset,) = (each for each in dispatcher.status()["datasets"] if each["dataset"] == dispatcher.dataset)
    assert (dataset["redispatched"], dataset["failedShards"]) == ({"released": 2}, [])


@pytest.mark.parametrize(("restarts", "code"), [("3", 0), ("1", 70)])
def test_of_a_run_that_is_over_etcd_keeps_nothing(
    tmp_path: Path, replicas: Dispatchers, env: dict[str, str], restarts: str, code: int
) -> None:
    """Each attempt has a dataset of its own. A run ends with success, or when its restarts are used up."""
    own = SCRIPT.replace(
        "hand = Dispatcher().shards() if",
        "name = os.environ['BIREME_DISPATCHER_DATASET'] + '-' + os.environ['BIREME_PADDLE_ATTEMPT']\n"
        "mine = Dispatcher(dataset=name)\nmine.add(['a', 'b', 'c'])\nhand = mine.shards() if",
    )
    job = PaddleJob(tmp_path, own)
    client = etcd.Client(etcd.parse_endpoints(replicas.etcd))
    env |= {"BIREME_MAX_RESTARTS": restarts, "BIREME_LOST_SECONDS": "15"}

    def kept(name: str) -> list[str]:
        keys = client.range(replicas.prefix).keys
        return [each.key for each in keys if name in each.key and not each.lease]

    try:
        job.train(**env)
        assert kept(f"{env['BIREME_DISPATCHER_DATASET']}-1")
        job.kill("server", 1)
        job.start("server", 1, **env)
        job.until_both_train(times=2)
        assert kept(f"{env['BIREME_DISPATCHER_DATASET']}-2")
        if code:
            job.kill("server", 1)
        else:
            job.go.write_text("")
        assert job.codes() == {code}
        assert ("all 1 restarts are used up" in job.log("trainer", 1)) == bool(code)
        assert kept(env["BIREME_DISPATCHER_DATASET"]) == []
    finally:
        job.stop()


def test_pserver_0_reports_the_end_to_the_others_even_after_sigterm(job: PaddleJob) -> None:
    job.train()
    keeper, other = job.pods["server", 0], job.pods["server", 1]
    other.send_signal(signal.SIGSTOP)
    job.go.write_text("")
    job.until((job.output / "done").exists, "the end of the job")
    keeper.terminate()
    other.send_signal(signal.SIGCONT)
    assert other.wait(SECONDS) == 0
    assert "all trainers are done" in job.log("server", 1)


def test_paddles_launcher_gets_the_addresses_only_as_arguments(job: PaddleJob, tmp_path: Path) -> None:
    # A replacement for Paddle's launcher that prints its arguments.
    launcher = tmp_path / "with" / "paddle" / "distributed" / "launch.py"
    launcher.parent.mkdir(parents=True)
    launcher.write_text("import os, sys; print(sys.argv[1:], sorted(os.environ))")
    told = {"PADDLE_TRAINER_ENDPOINTS": "worker-0:7164,worker-1:7164", "PADDLE_TRAINER_ID": "0"}
    for index in (0, 1):
        path = f"{SOURCE}:{tmp_path / 'with'}"
        job.start("collective", index, PYTHONPATH=path, BIREME_PADDLE_PSERVERS="0", **told)
    assert job.codes() == {0}
    arguments = (job.output / "node_0" / "train.log").read_text()
    assert "'--master', '127.0.0.1:" in arguments
    assert "'--nnodes', '2', '--rank', '0'" in arguments
    assert "PADDLE_TRAINER" not in arguments


@pytest.mark.parametrize(("ends", "outcome"), [("", "succeeded"), ("78", "failed")])
def test_one_pod_tells_a_web_hook_how_the_run_has_ended(
    job: PaddleJob, hook: WebHook, ends: str, outcome: str
) -> None:
    job.train(**hook.environment())
    write_whole(job.go, ends)
    assert {job.pods["trainer", index].wait(SECONDS) for index in (0, 1)} == {int(ends or 0)}
    until(lambda: hook.messages, what="the message of the pod that was first")
    (message,) = hook.messages
    assert message["outcome"] == outcome
    assert len(job.trained(0)) == len(job.trained(1)) == 1, "no retry can help after 78"


def test_trainers_that_failed_or_that_an_upgrade_adds_join_the_running_job(job: PaddleJob) -> None:
    job.train()
    job.kill("trainer", 1)
    job.start("trainer", 1)
    job.until(lambda: len(job.trained(1)) == 2, "trainer 1 to train again")
    job.release(revision=2, trainers=3)
    job.start("trainer", 2)
    job.until(lambda: len(job.trained(2)) == 1, "the new trainer to train")
    assert job.trained(2)[0][1] == "3"
    assert len(job.trained(0)) == 1
    assert job.end() == {0}


@pytest.mark.parametrize(
    ("argv", "env", "code"),
    [([], {}, 64), (["server"], {}, 64), (["trainer", "--", "a.py"], {}, 78)],
)
def test_a_supervisor_that_cannot_start_reports_why(argv: list[str], env: dict[str, str], code: int) -> None:
    command = [sys.executable, "-m", "bireme_runtime.paddle.supervisor", *argv]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(SOURCE), **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert "usage" in done.stderr or "is not set" in done.stderr


@pytest.fixture
def run(tmp_path: Path) -> Run:
    one = Run(Rules(servers=1, trainers=2, dynamic=False, max_restarts=3, lost_seconds=60), tmp_path, "run")
    one.begin()
    return one


def report(role: str, index: int, run: Run, state: str, trainers: int = 2, revision: int = 1) -> Report:
    return Report(role, index, f"{role}{index}", "10.0.0.1:7164", run.attempt, state, trainers, revision)


def test_synchronous_trainers_wait_for_the_slowest(run: Run) -> None:
    run.size(0)
    assert run.reach(1, 0, (0, 1), seconds=0) == [1]
    assert run.reach(1, 1, (0, 1), seconds=0) == []
    assert run.reach(1, 0, (0, 1), seconds=0) == []
    # A trainer without further batches in this pass does not delay the others.
    run.reach(1, 1, (1, 0), seconds=0)
    assert run.reach(1, 0, (0, 2), seconds=0) == []


def test_a_claim_that_is_slow_for_a_save_delays_no_report(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole(tmp_path / "pass-00000/done", json.dumps({"passes": 1}))
    writes, goes_on = threading.Event(), threading.Event()

    def slowly(path: Path, content: str) -> None:
        writes.set()
        goes_on.wait(60)
        write_whole(path, content)

    monkeypatch.setattr("bireme_runtime.paddle.run.write_whole", slowly)
    with ThreadPoolExecutor(2) as pool:
        saving = pool.submit(run.point_to, run.attempt, "pass-00000")
        assert writes.wait(60)
        try:
            assert pool.submit(run.report, report("server", 0, run, "serving")).result(30).attempt == 1
        finally:
            goes_on.set()
        assert saving.result(60) == ""
    assert last_save(tmp_path) is not None


def leaving(saver: str) -> View:
    """What pserver 0 says to a pserver that leaves."""
    return View(1, "running", "", (), True, 2, True, "", 0, saver, True)


def pserver(*told: View | None) -> Any:
    """A pserver of attempt 1 that hears this of pserver 0, one after another; None: it does not answer."""
    server: Any = object.__new__(Server)
    server.attempt, server.options, server.script = 1, mock.Mock(), mock.Mock(runs=True)
    server.options.rules.lost_seconds = 15.0
    server.script.ends_within.return_value = False
    server._tell, server.start_script = mock.Mock(side_effect=told), mock.Mock()
    return server


def test_a_pserver_that_is_asked_to_go_serves_on_where_pserver_0_stands_still_while_a_trainer_saves() -> None:
    server = pserver(leaving("leaving"), None, leaving("leaving"), leaving("broken"))
    server._leave(time.monotonic() + 60)
    assert server._tell.call_count == 4
    server.script.terminate.assert_called_once()


def test_a_pserver_that_hears_no_answer_when_it_starts_asks_again() -> None:
    server = pserver(None, leaving("training"))
    server._start(leaving("training"))
    server.start_script.assert_called_once()
    assert server.attempt == 1


def test_the_timeout_of_each_request_applies_on_a_kept_connection(run: Run) -> None:
    port = free_port()
    server = serve(run, port)
    client = Client(f"127.0.0.1:{port}", seconds=4)
    assert client.size(0) == 2
    assert client.reach(run.attempt, 0, 0, 1, seconds=5) == [1]
    server.close()


def test_whoever_has_not_the_token_of_the_release_changes_nothing_of_a_run(run: Run, tmp_path: Path) -> None:
    port = free_port()
    server = serve(run, port, "secret")
    address = f"127.0.0.1:{port}"
    stranger, mine = Client(address, seconds=60), Client(address, seconds=60, token="secret")
    write_whole(tmp_path / "pass-00000/done", json.dumps({"passes": 1}))
    for index in range(2):
        with pytest.raises(Unreachable, match="needs the token of the release"):
            stranger.report(report("trainer", index, run, "finished"))
    with pytest.raises(Unreachable, match="needs the token of the release"):
        stranger.point_to(run.attempt, "pass-00000")
    assert (run.outcome, last_save(tmp_path)) == ("running", None)
    assert mine.point_to(run.attempt, "pass-00000") == ""
    for index in range(2):
        mine.report(report("trainer", index, run, "finished"))
    assert run.outcome == "done"
    server.close()


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"seconds": "x"}', b'{"role": "trainer"}', b"\xff"])
@pytest.mark.parametrize("path", ["/report", "/reach", "/point-to", "/"])
def test_a_request_that_cannot_be_used_is_refused(run: Run, path: str, body: bytes) -> None:
    server = serve(run, 0)
    connection = Connection(Address("127.0.0.1", server.port), 60)
    assert connection.ask("POST", path, body).status == 400
    assert connection.ask("GET", path).status == 405
    connection.close()
    server.close()


def test_a_pass_is_divided_by_the_number_of_trainers_at_its_start(run: Run) -> None:
    assert run.size(0) == 2
    run.report(report("trainer", 0, run, "training", trainers=4, revision=2))
    assert (run.size(0), run.size(1)) == (2, 4)
    # A later report of an older revision changes nothing.
    run.report(report("trainer", 1, run, "training", trainers=2, revision=1))
    assert run.size(2) == 4


def test_a_trainer_has_its_part_of_other_files_too(run: Run, tmp_path: Path) -> None:
    server = serve(run, port := free_port())
    env = {"BIREME_PADDLE_COORDINATOR": f"127.0.0.1:{port}", "BIREME_PADDLE_OUTPUT": str(tmp_path),
           "BIREME_PADDLE_ATTEMPT": "1", "BIREME_PADDLE_FIRST_PASS": "0"}  # fmt: skip
    trainers = [Job({**env, "PADDLE_TRAINER_ID": str(index)}) for index in range(3)]
    parts = [each.part(["a", "b", "c", "d", "e"], 0) for each in trainers]
    assert list(map(list, parts)) == [["a", "c", "e"], ["b", "d"], []], "the pass began with two trainers"
    server.close()


def test_trainers_that_scaling_removed_are_not_waited_for(run: Run) -> None:
    run.size(0)
    assert run.reach(1, 0, (0, 1), seconds=0) == [1]
    run.report(report("trainer", 0, run, "training", trainers=1, revision=2))
    assert run.reach(1, 0, (0, 1), seconds=0) == []


@pytest.mark.parametrize("mark", [None, "", "null", "{}"], ids=["none", "empty", "null", "no passes"])
def test_a_last_save_that_cannot_be_read_is_not_the_same_as_none(tmp_path: Path, mark: str | None) -> None:
    assert last_save(tmp_path) is None
    write_whole(tmp_path / "last-save", "pass-00001\n")
    if mark is not None:
        write_whole(tmp_path / "pass-00001/done", mark)
    with pytest.raises(Unreadable, match=r"pass-00001, cannot be read .*write the name of another save into"):
        last_save(tmp_path)
    write_whole(tmp_path / "pass-00001/done", json.dumps({"passes": 2}))
    found = last_save(tmp_path)
    assert found is not None
    assert found.passes == 2


def test_a_run_whose_state_cannot_be_read_does_not_begin(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("")
    with pytest.raises(Unreadable, match=r"run\.json cannot be read .*start another run"):
        Run(run.rules, tmp_path, "run").begin()


def test_an_attempt_begins_only_when_the_claim_has_its_number(run: Run, tmp_path: Path) -> None:
    attempt, port = run.attempt, free_port()
    server = serve(run, port)
    client = Client(f"127.0.0.1:{port}")
    client.report(report("server", 1, run, "serving"))
    again = replace(report("server", 1, run, "waiting"), boot="another", attempt=0)
    # As a full claim does, this keeps the file from being written.
    obstacle = tmp_path / ".run.json.partial"
    obstacle.mkdir()
    for _ in range(2):
        with pytest.raises(Unreachable, match=r"Is a directory: .*run\.json"):
            client.report(again)
        assert (run.attempt, run.restarts) == (attempt, 0)
    obstacle.rmdir()
    assert client.report(again).attempt == attempt + 1
    assert json.loads((tmp_path / "run.json").read_text())["attempt"] == attempt + 1
    server.close()


def test_a_pserver_that_gave_up_an_attempt_has_lost_its_parameters(run: Run) -> None:
    attempt = run.attempt
    run.report(report("server", 1, run, "serving"))
    view = run.report(replace(report("server", 1, run, "waiting"), attempt=0))
    assert view.attempt == attempt + 1
    assert view.reason == "pserver 1 has left: restart 1 of 3"


def test_without_pserver_0_a_request_fails_as_unreachable() -> None:
    with pytest.raises(Unreachable, match=r"127\.0"):
        Client(f"127.0.0.1:{free_port()}").size(0)


def test_a_script_of_an_attempt_that_is_over_changes_the_last_save_no_more(run: Run, tmp_path: Path) -> None:
    write_whole(tmp_path / "pass-00000/done", json.dumps({"passes": 1}))
    assert run.point_to(run.attempt, "pass-00000") == ""
    begun, lost = run.attempt, report("server", 0, run, "broken")
    run.report(lost)
    write_whole(tmp_path / "steps-1-9/done", json.dumps({"passes": 1}))
    assert run.point_to(begun, "steps-1-9") == "attempt 1 is over"
    assert run.point_to(run.attempt, "steps-2-1") == "steps-2-1 is not complete"
    save = last_save(tmp_path)
    assert save is not None
    assert run.begun_from() == (begun + 1, save)
    assert Path(save.folder).name == "pass-00000"


def test_of_two_pservers_0_on_one_claim_the_older_moves_the_last_save_no_more(
    run: Run, tmp_path: Path
) -> None:
    for name in ("steps-1-120", "steps-2-500"):
        write_whole(tmp_path / name / "done", json.dumps({"passes": 1}))
    newer = Run(run.rules, tmp_path, "run")
    newer.begin()
    assert newer.point_to(newer.attempt, "steps-2-500") == ""
    assert run.point_to(run.attempt, "steps-1-120") == "attempt 1 is over: attempt 2 of run run has begun"
    assert newer.point_to(newer.attempt, "../elsewhere") == "'../elsewhere' is not the name of a save"
    save = last_save(tmp_path)
    assert save is not None
    assert Path(save.folder).name == "steps-2-500"


def test_a_pserver_that_comes_back_after_it_was_asked_to_go_has_lost_its_parameters(run: Run) -> None:
    attempt = run.attempt
    assert run.report(report("server", 0, run, "leaving")).server_leaves
    run.report(replace(report("server", 0, run, "waiting"), boot="another", attempt=0))
    assert run.attempt == attempt + 1


def test_a_job_with_dispatched_shards_is_not_done_without_trainer_0(tmp_path: Path) -> None:
    rules = Rules(servers=1, trainers=2, dynamic=True, max_restarts=3, lost_seconds=0.05)
    run = Run(rules, tmp_path, "run")
    run.begin()
    run.report(report("trainer", 0, run, "leaving"))
    time.sleep(0.1)
    assert run.report(report("trainer", 1, run, "finished")).outcome == "running"
    run.report(report("trainer", 0, run, "finished"))
    assert run.report(report("trainer", 1, run, "finished")).outcome == "done"


def test_a_file_that_there_is_no_space_for_leaves_the_old_one(tmp_path: Path) -> None:
    write_whole(tmp_path / "last-save", "pass-00001\n")
    (tmp_path / ".last-save.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        write_whole(tmp_path / "last-save", "pass-00002\n")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["pass-00001\n"]
