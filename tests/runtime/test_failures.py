"""Starts that bring no progress: who failed first, what ends, and with which last words."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bireme_runtime.elastic import progress
from bireme_runtime.elastic.agent import report
from bireme_runtime.elastic.agent.observer import Limits, Observer, Said
from bireme_runtime.elastic.monitor import failures
from bireme_runtime.elastic.monitor.last_words import bug_of
from bireme_runtime.etcd import client as etcd
from bireme_runtime.process.output import Copier
from tests.runtime.etcd_servers import RUNTIME, EtcdServer, free_port
from tests.runtime.workers import Start
from tests.support.waiting import until

# Written beside and renamed, because a start can be killed at any moment.
COUNT = """\
n = pathlib.Path('n')
starts = int(n.read_text()) + 1 if n.exists() else 1
pathlib.Path('new').write_text(str(starts))
pathlib.Path('new').replace(n)
"""
LIMIT = {"BIREME_FAILURES_WITHOUT_PROGRESS": "3", "PET_MAX_RESTARTS": "100"}


def failure(
    round: int, node: str, rank: int = 0, words: str = "ValueError: no", time: float = 0
) -> failures.Failure:
    return failures.Failure(round, 2, f"worker-{node}", node, rank, 1, time, words)


# --- the whole worker ---


def test_a_deterministic_bug_ends_the_run_with_its_traceback_as_the_last_words(
    start: Start, on_etcd: dict[str, str], tmp_path: Path
) -> None:
    script = COUNT + "print('step 7', flush=True)\nraise ValueError('the shape is wrong')"
    last_words = [tmp_path / "a", tmp_path / "b"]
    workers = []
    for index, path in enumerate(last_words):
        path.touch()
        env = {**on_etcd, **LIMIT, "JOB_COMPLETION_INDEX": str(index), "BIREME_NODE": f"node-{path.name}"}
        workers.append(start(script, **env, BIREME_TERMINATION_LOG=str(path)))
    codes = {worker.end() for worker in workers}
    # Where one is always faster to fail, only it seems to be bad, until the other is alone.
    assert 70 in codes
    assert codes <= {70, 75}
    # The first start brought step 7; with two workers some starts end because the other one failed.
    assert max(int(worker.file("n")) for worker in workers) <= 12
    assert all("ValueError: the shape is wrong\n" in path.read_text() for path in last_words)
    ends = [path.read_text() for path in last_words]
    assert any("ValueError at train.py:" in each and "has ended two rounds" in each for each in ends)


def test_what_fails_on_one_node_only_ends_that_worker_and_the_node_is_excluded_for_a_while(
    start: Start, on_etcd: dict[str, str], client: etcd.Client, prefix: str
) -> None:
    env = {**on_etcd, **LIMIT, "BIREME_EXCLUDE_NODE_SECONDS": "3600"}
    trains = "pathlib.Path('world').write_text(os.environ['WORLD_SIZE']); time.sleep(600)"
    port = free_port()
    stays = start(trains, **env, JOB_COMPLETION_INDEX="0", BIREME_NODE="good",
                  BIREME_METRICS_PORT=str(port))  # fmt: skip
    stays.file("world")
    goes = start(COUNT + "raise RuntimeError('an ECC error')", **env, JOB_COMPLETION_INDEX="1",
                 BIREME_NODE="bad")  # fmt: skip
    assert (goes.end(), goes.file("n"), stays.process.poll()) == (75, "3", None)
    assert "3 failures without a new step, all of them on bad" in goes.words

    def left_out() -> list[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        return re.findall(r'^bireme_node_excluded\{node="(.*)"\} 1.0$', text, re.MULTILINE)

    until(lambda: left_out() == ["bad"], what="the metric of the node")
    again = start(trains, **env, JOB_COMPLETION_INDEX="1", BIREME_NODE="bad")
    assert again.end() == 69
    assert "no worker starts on bad for a while: rank 1 on bad failed" in again.words
    assert not (again.folder / "world").exists()
    elsewhere = start(trains, **env, JOB_COMPLETION_INDEX="1", BIREME_NODE="other")
    assert elsewhere.file("world") == "2"
    excluded = client.get(f"{prefix}.failures/run/excluded/bad")
    assert excluded, "the lease of the exclusion lives for an hour"
    client.lease_revoke(excluded.lease)
    until(lambda: left_out() == [], what="the metric to forget the node")
    back = start(trains, **env, JOB_COMPLETION_INDEX="2", BIREME_NODE="bad")
    assert back.file("world") == "3"


def test_failures_between_which_there_is_a_new_step_do_not_add_up_and_use_up_no_restarts(
    start: Start, on_etcd: dict[str, str]
) -> None:
    script = COUNT + "print('{\"step\": %d}' % (starts // 2), flush=True)\nsys.exit(starts < 6)"
    worker = start(script, **{**on_etcd, **LIMIT, "PET_MAX_RESTARTS": "2"})
    assert worker.end() == 0
    assert worker.file("n") == "6"


@pytest.mark.parametrize(("step", "code"), [("print('step 7', flush=True)", 69), ("pass", 75)])
def test_a_pod_that_ends_after_new_steps_is_not_counted(
    start: Start, on_etcd: dict[str, str], client: etcd.Client, prefix: str, step: str, code: int
) -> None:
    go = "while not pathlib.Path('go').exists():\n    time.sleep(0.02)"
    script = f"{step}\n{go}\nos.kill(int(os.environ['AGENT_PID']), 9)\ntime.sleep(600)"
    worker = start(script, **on_etcd, BIREME_AGENT_RESTARTS="1")
    if code == 69:
        until(lambda: failures.EtcdLedger(client, prefix, "run").marks(), what=lambda: worker.words)
    (worker.folder / "go").touch()
    assert worker.end() == code


def test_without_etcd_a_lone_worker_counts_for_itself(start: Start) -> None:
    worker = start(COUNT + "sys.exit(3)", **LIMIT)
    assert worker.end() == 70
    assert worker.file("n") == "3"


def test_what_processes_print_arrives_unchanged(start: Start) -> None:
    script = "out = sys.stderr.buffer; out.write(b'\\xff half a line'); out.flush(); time.sleep(0.1)\n"
    worker = start(script + "out.write(b' and its end\\r' + b'x' * 200000 + b'\\n')")
    assert worker.end() == 0
    printed = worker.errors.read_bytes()
    assert b"\xff half a line and its end\r" + b"x" * 200000 + b"\n" in printed


# --- steps in lines ---


@pytest.mark.parametrize(
    ("lines", "rises"),
    [
        (["step 1", "step 2"], True),
        (["step 2", "step 1"], False),
        (['{"event": "step", "step": 9}', '{"event": "step", "step": 10}'], True),
        (["[rank0]: iteration 10/ 500", "[rank0]: iteration 20/ 500"], True),
        (["Epoch: [3][  10/5004] loss 1", "Epoch: [3][  20/5004] loss 1"], True),
        (["Epoch: [3][  20/5004] loss 1", "Epoch: [4][  10/5004] loss 1"], True),
        (["Epoch: [3][  20/5004] loss 1", "Epoch: [3][  10/5004] loss 1"], False),
        (["epoch 1/90", "epoch 2/90"], True),
        (["epoch 1, step 900", "epoch 2, step 3"], True),
        (["global_step=100 loss=3", "global_step=101 loss=3"], True),
        ([" iteration      301/  500000 |", " iteration      302/  500000 |"], True),
        ([f"Epoch 0:  3%|#  | {n}/1000 [00:31<01:10, loss=1, global_step={n}.0]" for n in (31, 32)], True),
        ([f"Epoch 0:  3%|#  | {n}/1000 [00:31<01:10]" for n in (31, 32)], True),
        ([f"  3%|#  | {n}/1000 [00:31<01:10, 1.9it/s]" for n in (31, 32)], True),
        (["  3%|#  | 31/1000 [00:31<01:10]", " 10%|#  | 29/300 [00:31<01:10]"], True),
        ([f"Map:  3%|#  | {n}/1000 [00:31<01:10]" for n in (31, 32)], False),
        ([f"Epoch(train)  [3][ {n}/500]  lr: 1" for n in (10, 20)], True),
        ([f"Epoch(val)  [3][ {n}/500]" for n in (10, 20)], False),
        ([f"Iter(train) [  {n}/ 500]" for n in (10, 20)], True),
        ([f"\x1b[31mstep:  {n}  \x1b[32mloss:  8.1" for n in (1, 2)], True),
        ([f"epoch 001:  {n} / 1000 loss=8, num_updates={n}" for n in (1, 2)], True),
        ([f"{n}/500 [====>....] - ETA: 1:00 - loss: 2.3" for n in (31, 32)], True),
        ([f"\x1b[1m{n}/500\x1b[0m \x1b[32m━━\x1b[0m\x1b[37m━━\x1b[0m 9s 20ms/step" for n in (31, 32)], True),
        ([f"steps: {n} loss: 2.3456 iter time (s): 0.3 samples/sec: 99.7" for n in (10, 20)], True),
        ([f"[INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped=0, lr=[1e-05]" for n in (1, 2)], True),
        ([f"Training epoch 0, iteration {n}/999 | lr: 5e-06 | global_step: {n} |" for n in (9, 10)], True),
        (["step 10", "steps: 5000"], False),
        (["step 10", "+ torchrun train.py --steps 20 step 20"], False),
        (["step 10", "Namespace(batch_size=64, step=1000000, lr=0.1)"], False),
        (["step 10", "the model is saved every step 5000"], False),
        (["step 10", "running train.py --save-step 1000000"], False),
        (["step 10", "step " + "9" * 400], False),
        (["loss 1", "loss 2"], False),
        (["a stepping stone 1", "a stepping stone 2"], False),
    ],
)
def test_steps_are_found_in_lines(lines: list[str], rises: bool) -> None:
    seen = progress.Progress()
    seen.take(lines[0].encode())
    before = progress.merged({}, seen.look())
    seen.take(lines[1].encode())
    assert (progress.merged(before, seen.look()) != before) == rises


def test_an_evaluation_with_a_bar_of_its_own_hides_no_later_step() -> None:
    seen = progress.Progress()
    for number, total in ((10, 100), (500, 500), (11, 100)):
        seen.take(f" 10%|#  | {number}/{total} [00:31<01:10]".encode())
    assert seen.step == 11


def test_a_gradient_that_is_no_number_counts_like_a_loss() -> None:
    seen = progress.Progress()
    for _ in range(3):
        seen.take(b" iteration      303/  500000 | lm loss: 0.0E+00 | grad norm: nan |")
    assert seen.bad_losses == 3
    seen.take(b" iteration      304/  500000 | lm loss: 2.0E+00 | grad norm: 1.2 |")
    assert seen.bad_losses == 0


def test_a_script_may_tell_a_step_that_is_no_whole_number() -> None:
    seen = progress.Progress()
    script = "from bireme_runtime.elastic import progress; progress.step(7.5)"
    env = {**os.environ, "PYTHONPATH": str(RUNTIME), progress.BOARD: seen.board.path}
    subprocess.run([sys.executable, "-c", script], env=env, check=True, timeout=120)
    assert seen.look() == {"told": [7]}


def test_output_is_copied_on_when_reading_it_fails(capfd: pytest.CaptureFixture[str]) -> None:
    def fail(line: bytes) -> None:
        raise OverflowError("int too large")

    copier = Copier(fail)
    copier.start()
    for text in (b"one\n", b"two\n"):
        os.write(copier.writers[0], text)
        with copier.drained(60):
            pass
    copier.close(60)
    printed = capfd.readouterr()
    assert printed.out == "one\ntwo\n"
    assert printed.err.count("reading the output failed") == 1


def test_steps_that_are_printed_while_etcd_is_slow_count_for_the_new_round() -> None:
    seen = progress.Progress()

    class SlowLedger(failures.Ledger):
        def marks(self) -> progress.Marks:
            # The agent does not wait for its supervisor: the processes have begun.
            os.write(observer.copier.writers[0], b"step 1\n")
            time.sleep(0.5)
            return {}

    observer = Observer(SlowLedger(), seen, "0", "node", Limits(), lambda _: None)
    observer.copier.start()
    observer.starting({"round": 1, "rank": 0, "world": 1})
    until(lambda: seen.first is not None, 30, "the first step to be seen")


# --- blame ---


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: Connection closed by peer [10.0.0.2]:3333",
        "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting",
        "NCCL communicator was aborted on rank 3.",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)",
        "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, …",
        "NCCL WARN socketStartConnect: Connect to 10.0.0.2<45013> failed : Connection timed out",
        "NCCL WARN NET/IB : Got completion from peer 10.0.0.2 with error 12, opcode 0, len 0",
        "NCCL WARN NET/OFI Request 0x7f completed with error. RC: 103. Error: Unresponsive receiver",
        "RuntimeError: Rank 1 failed to pass monitoredBarrier in 30000 ms",
        "OSError: [Errno 113] No route to host",
        "UCX ERROR ucp_ep_h 0x7f: Endpoint timeout",
    ],
)
def test_who_lost_a_peer_did_not_fail_first(words: str) -> None:
    lost = failure(1, "a", words=words, time=1)
    cause = failure(1, "b", words="ValueError: no", time=2)
    assert failures.first_of([lost, cause]) == cause
    assert failures.first_of([lost]) == lost
    assert failures.first_of([]) is None


@pytest.mark.parametrize(
    ("who", "rank", "for_all", "counts"),
    [
        ({}, 3, False, True),
        ({}, 0, False, False),
        ({}, 0, True, True),
        ({"code": -9, "outside": True}, 3, False, True),
        ({"code": -15, "outside": True}, 3, False, False),
        ({"words": "RuntimeError: Connection closed by peer [10.0.0.2]:3333"}, 3, True, False),
    ],
    ids=["its own rank", "another rank", "any rank, for all", "killed", "told to end", "has lost a peer"],
)
def test_a_shard_is_to_blame_only_for_those_who_failed_first_while_they_worked_on_it(
    who: dict[str, object], rank: int, for_all: bool, counts: bool
) -> None:
    cause = replace(failure(1, "a", rank=3), **who)  # type: ignore[arg-type]
    assert failures.blame_of_shard(cause, rank, for_all) == (cause.sentence if counts else "")
    assert failures.blame_of_shard(None, rank, for_all) == "", "nobody has failed"


def test_a_process_that_takes_long_to_end_has_still_lost_its_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    said = Said()
    for line in (
        "Traceback (most recent call last):",
        "  somewhere",
        "RuntimeError: Connection closed by peer",
    ):
        said.take(line.encode())
    now += 60
    said.take(b"E1125 api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 5) of binary: python3")
    assert not failure(1, "a", words=said.words()).by_itself
    said.take(b"step 7")
    assert said.words().endswith("step 7"), "an old traceback explains no other end"


def test_an_exception_of_c_that_ends_a_process_is_what_it_said() -> None:
    said = Said()
    what = "  what():  [enforce fail at pair.cc:456] Received data size doesn't match expected size."
    for line in (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
        what,
        "[./gloo/transport/tcp/pair.cc:538] Read error [127.0.0.1]:9623: Connection reset by peer",
        "E1130 api.py:1002] failed (exitcode: -6) local_rank: 0 (pid: 5) of binary: python3",
    ):
        said.take(line.encode())
    found = failure(1, "a", words=said.words())
    assert found.by_itself
    assert found.last_line == what.strip()


@pytest.mark.parametrize(
    ("nodes", "failed_on", "mine", "verdict"),
    [
        (["a", "b"], ["a", "b"], "a", ""),
        (["a", "b"], ["a", "b", "a"], "a", "run"),
        (["a", "b"], ["b", "b", "b"], "b", "worker"),
        (["a", "b"], ["b", "b", "b"], "a", ""),
        (["a", "a"], ["a", "a", "a"], "a", "run"),
    ],
)
def test_the_run_ends_only_when_several_nodes_fail(
    nodes: list[str], failed_on: list[str], mine: str, verdict: str
) -> None:
    found = [failure(number, node) for number, node in enumerate(failed_on)]
    assert failures.judge(found, mine, nodes, 3) == verdict


def crash(said: str, line: int = 12) -> str:
    inside = '  File "/usr/lib/python3.11/site-packages/torch/nn/functional.py", line 9, in linear'
    return (
        f'Traceback (most recent call last):\n  File "/code/train.py", line {line}, in main\n{inside}\n{said}'
    )


def test_a_bug_that_ends_two_rounds_on_two_nodes_ends_the_run_at_once() -> None:
    def met(round: int, node: str, said: str) -> failures.Failure:
        return replace(failure(round, node), bug=bug_of(crash(said)))

    found = [met(1, "a", "KeyError: 'weight'"), met(2, "b", "KeyError: 'weight'")]
    assert failures.repeated_bug(found) == "KeyError at train.py:12"
    assert failures.judge(found, "a", ["a", "b"], 5) == "run"
    assert failures.judge(found, "a", ["a", "b"], 0) == "", "0 switches it off"
    once = [found[0], replace(found[1], round=1)]
    assert failures.judge(once, "a", ["a", "b"], 5) == "", "one round may have met bad luck"
    same_node = [found[0], replace(found[1], node="a")]
    assert failures.judge(same_node, "a", ["a", "b"], 5) == "", "the node may be bad"
    other = [found[0], met(2, "b", "IndexError: out of range")]
    assert failures.judge(other, "a", ["a", "b"], 5) == ""


@pytest.mark.parametrize(
    "said",
    [
        "OSError: [Errno 5] Input/output error",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/1'",
        "torch.OutOfMemoryError: CUDA out of memory",
        "MemoryError",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: [Rank 3] Watchdog caught collective operation timeout",
        "RuntimeError: Connection closed by peer",
        "requests.exceptions.ConnectionError: Max retries exceeded",
        "botocore.exceptions.ClientError: An error occurred (SlowDown)",
        "torch.distributed.DistBackendError: NCCL error",
        "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
    ],
)
def test_what_may_pass_is_no_bug(said: str) -> None:
    assert bug_of(crash(said)) == ""


def test_rounds_in_which_all_have_lost_a_peer_blame_no_node() -> None:
    words = "Watchdog caught collective operation timeout"
    found = [failure(number, "healthy", words=words) for number in range(5)]
    assert failures.judge(found, "healthy", ["healthy", "bad"], 5) == "run"
    assert failures.judge([*found, failure(5, "bad")], "healthy", ["healthy", "bad"], 5) == ""


def test_kills_from_outside_count_half() -> None:
    found = [replace(failure(number, "a"), outside=True) for number in range(6)]
    assert failures.judge(found[:5], "a", ["a"], 3) == ""
    assert failures.judge(found, "a", ["a"], 3) == "run"
    assert failures.judge([*found[:4], failure(4, "a")], "a", ["a"], 3) == "run"


def test_kills_from_outside_do_not_count_while_no_step_is_known() -> None:
    seen, killed = progress.Progress(), {"round": 1, "world": 1, "rank": 0, "code": -9}
    watcher = Observer(failures.Ledger(), seen, "0", "a", Limits(1, 300), lambda line: None)
    watcher.starting(killed)
    assert [watcher.failed(killed) for _ in range(5)] == [report.GO_ON] * 5
    seen.take(b"step 1")
    # The first one after a step follows progress, and brings all restarts back.
    assert [watcher.failed(killed) for _ in range(2)] == [report.REFILL, report.STOP]
    assert watcher.verdict == "run"


@pytest.mark.parametrize(
    ("steps", "lasted", "verdict"),
    [("", 295, "run"), ("", 305, ""), ("step 7", 3595, "run"), ("step 7", 3605, "")],
)
def test_a_start_that_lasts_300_s_is_progress_and_of_an_hour_where_steps_are_known(
    steps: str, lasted: float, verdict: str
) -> None:
    seen, failed = progress.Progress(), {"round": 1, "world": 1, "rank": 0, "code": 1}
    watcher = Observer(failures.Ledger(), seen, "0", "a", Limits(failures=2), lambda line: None)
    watcher.starting(failed)
    seen.take(steps.encode())
    watcher.failed(failed)
    seen.since = time.monotonic() - lasted
    watcher.failed(failed)
    assert watcher.verdict == verdict


def test_without_etcd_a_worker_that_is_not_alone_ends_without_the_run() -> None:
    for world, verdict in ((1, "run"), (2, "worker")):
        ledger = failures.Ledger()
        for number in range(3):
            ledger.add(replace(failure(number, "a"), world=world))
        assert ledger.verdict("a", 3) == verdict


def test_the_ledger_in_etcd_keeps_the_last_rounds(client: etcd.Client, prefix: str) -> None:
    ledger = failures.EtcdLedger(client, prefix, "run")
    for number in range(1, 31):
        ledger.add(failure(number, "a"))
    assert [each.round for each in ledger.all()] == list(range(10, 31))
    other = failures.EtcdLedger(client, prefix, "run")
    other.advance({"step": [5]})
    assert ledger.recent() == []
    ledger.advance({"step": [4]})
    ledger.add(failure(31, "a"))
    other.advance({"step": [5]})
    assert [each.round for each in other.recent()] == [31]


# --- an etcd that stands still at the wrong moment ---

NO_ANSWER = etcd.Unavailable("no answer")


def stalling(**answers: Any) -> Any:
    """A ledger that answers these calls so, one after another. An exception stands for no answer."""
    ledger = mock.Mock(wraps=failures.Ledger(), shared=True)
    for name, told in answers.items():
        getattr(ledger, name).side_effect = told
    return ledger


def observing(ledger: Any, **limits: Any) -> Observer:
    watcher = Observer(ledger, progress.Progress(), "0", "a", Limits(5, 300, **limits), lambda line: None)
    watcher.starting({"round": 1, "rank": 0, "world": 2})
    return watcher


FAILED = {"round": 1, "world": 2, "rank": 0, "code": 1}


def test_a_run_that_is_over_ends_also_when_etcd_is_silent_from_then_on() -> None:
    watcher = observing(stalling(verdict=["run"], recent=NO_ANSWER))
    assert (watcher.failed(FAILED), watcher.verdict) == (report.STOP, "run")
    assert "5 failures without a new step" in watcher.sentence


def test_a_failure_that_etcd_does_not_hear_of_at_once_is_told_at_the_next_tick() -> None:
    ledger = stalling(add=[NO_ANSWER, NO_ANSWER, None])
    watcher = observing(ledger)
    assert watcher.failed(FAILED) == report.GO_ON
    for _ in range(3):
        watcher.tick()
    assert ledger.add.call_count == 3


def test_a_worker_that_starts_tells_its_node_and_asks_whether_it_may_until_etcd_answers() -> None:
    ledger = stalling(enter=[NO_ANSWER, None], excluded=[NO_ANSWER, {"a": "five failures"}, {}])
    watcher = Observer(ledger, progress.Progress(), "0", "a", Limits(5, 300), lambda line: None)
    watcher.enter()
    assert watcher.excluded() == "five failures"
    watcher.tick()
    assert ledger.enter.call_count == 2


def test_a_worker_tells_where_it_stands_until_etcd_hears_it() -> None:
    ledger = stalling(stand=[NO_ANSWER, None], asked=lambda: failures.StackRequest(1))
    watcher = observing(ledger)
    for _ in range(4):
        watcher.tick()
        time.sleep(0.2)  # longer than a worker of two waits between two questions
    assert ledger.stand.call_count == 2


def test_a_node_is_excluded_also_where_its_worker_ends_before_etcd_answers() -> None:
    ledger = stalling(exclude=[NO_ANSWER, None], asked=lambda: failures.StackRequest(1, "a"))
    watcher = observing(ledger, exclude_seconds=60.0)
    watcher.copier.start()
    watcher.tick()
    assert watcher.verdict == "worker"
    watcher.close()
    assert ledger.exclude.call_count == 2


def test_a_hang_that_is_found_when_its_round_has_ended_blames_nobody_of_the_next() -> None:
    ledger = stalling(stands=lambda round: (2, []))
    watcher = observing(ledger, hang_seconds=1.0)
    watcher._hang = "no step for 600 s"
    watcher.starting({"round": 2, "rank": 0, "world": 2})
    watcher.failed(FAILED | {"round": 2})
    (added,) = ledger.add.call_args.args
    assert "no step" not in added.words


class LosesAnAnswer(etcd.Client):
    """Its first transaction is carried out, or not, and its answer is lost."""

    def __init__(self, server: EtcdServer, is_done: bool) -> None:
        super().__init__(etcd.parse_endpoints(server.endpoint))
        self.is_done: bool | None = is_done

    def txn(self, *arguments: Any, **more: Any) -> Any:
        is_done, self.is_done = self.is_done, None
        if is_done is not False:
            answer = super().txn(*arguments, **more)
        if is_done is not None:
            raise etcd.Ambiguous("no answer")
        return answer


@pytest.mark.parametrize("is_done", [True, False])
def test_who_asked_for_stacks_and_heard_no_answer_leads(
    shared_etcd: EtcdServer, prefix: str, is_done: bool
) -> None:
    ledger = failures.EtcdLedger(LosesAnAnswer(shared_etcd, is_done), prefix, "run")
    with pytest.raises(etcd.Ambiguous):
        ledger.ask_for_stacks(1)
    assert ledger.ask_for_stacks(1)
    assert ledger.asked().round == 1
    assert not failures.EtcdLedger(LosesAnAnswer(shared_etcd, True), prefix, "run").ask_for_stacks(1)
