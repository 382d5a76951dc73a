"""Training that makes no step: its stacks are printed, the slowest rank is named, and it starts again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from bireme_runtime.elastic import progress
from bireme_runtime.elastic.agent.observer import Limits, Observer
from bireme_runtime.elastic.monitor import failures, hang
from bireme_runtime.elastic.monitor.why import Cause, RankState, explain, slowest
from bireme_runtime.etcd import client as etcd
from tests.runtime.etcd_servers import RUNTIME, free_port
from tests.runtime.workers import Start
from tests.support import waiting

# Ranks that wait for each other in files; the last one hangs in its second step, on the first start only.
HANGS = """
import threading
folder, rank, world = pathlib.Path(sys.argv[0]).parent.parent, int(os.environ['RANK']), 4
again = (folder / f'again-{rank}').exists()
(folder / f'again-{rank}').touch()
def all_reduce(step):
    start = 'again' if again else 'first'
    (folder / f'{start}-{step}-{rank}').touch()
    while len(list(folder.glob(f'{start}-{step}-*'))) < world:
        time.sleep(0.01)
def load_batch(step):
    if step == 2 and rank == 3 and not again:
        time.sleep(600)
for step in range(1, 5):
    load_batch(step)
    all_reduce(step)
    if rank == 0:
        print(f'step {step}', flush=True)
"""


# A stand-in for the Flight Recorder of torch 2.14, which is not installed here.
RECORDS = """
import pickle, sys, types
made = []
recorder = types.ModuleType('torch._C._distributed_c10d')
recorder._dump_fr_trace = lambda: pickle.dumps({'entries': made})
sys.modules[recorder.__name__] = recorder
""" + HANGS.replace(
    "def all_reduce(step):",
    """def all_reduce(step):
    frames = [{'name': 'all_reduce', 'filename': sys.argv[0], 'line': 7}]
    made.append({
        'process_group': ('0', 'default_pg'), 'collective_seq_id': step, 'frames': frames,
        'profiling_name': 'gloo:all_reduce', 'input_sizes': [[3]],
        'state': 'scheduled', 'retired': False, 'time_created_ns': step,
    })
    wait_for_all(step)
    made[-1]['retired'] = True
def wait_for_all(step):""",
)


# There is no recorder, or what it writes is torn.
UNRECORDED = RECORDS.replace("sys.modules[recorder.__name__] = recorder", "pass")
TORN = RECORDS.replace("pickle.dumps({'entries': made})", "pickle.dumps({'entries': made})[:-9]")


def test_the_slowest_rank_is_named_and_the_processes_start_again(
    start: Start, on_etcd: dict[str, str]
) -> None:
    env = {
        **on_etcd, "PET_NNODES": "2:2", "PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "9",
        "BIREME_HANG_SECONDS": "5", "BIREME_FIRST_STEP_SECONDS": "120",
    }  # fmt: skip
    workers = [
        start(script, **env, JOB_COMPLETION_INDEX=str(index), BIREME_NODE=f"node-{index}")
        for index, script in enumerate((UNRECORDED, TORN))
    ]
    assert [worker.end(180) for worker in workers] == [0, 0]
    words = [worker.words for worker in workers]
    slow = next(index for index, text in enumerate(words) if "the stacks of rank 3" in text)
    failed = next(line for line in "".join(words).splitlines() if "failed in round 1" in line)
    assert f"rank 3 on node-{slow} failed in round 1" in failed
    assert f"all wait for rank 3 on node-{slow} in load_batch (train.py:" in failed
    assert "in all_reduce" in words[1 - slow]
    assert "in load_batch" in words[slow]
    assert "has recorded no collectives: it is no dump of torch's Flight Recorder" in words[1]


def test_workers_tell_on_request_which_collective_a_rank_has_not_entered(
    start: Start, on_etcd: dict[str, str]
) -> None:
    env = {**on_etcd, "PET_NNODES": "2:2", "PET_NPROC_PER_NODE": "2"}
    ports = [free_port(), free_port()]
    for index, port in enumerate(ports):
        place = {"JOB_COMPLETION_INDEX": str(index), "BIREME_NODE": f"node-{index}"}
        worker = start(RECORDS, **env, **place, BIREME_METRICS_PORT=str(port))
    found: list[Cause] = []

    def is_seen() -> bool:
        states = []
        for port in ports:
            # A worker may not listen yet.
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/ranks", timeout=60) as answer,
            ):
                states += [RankState(**each) for each in json.load(answer)["ranks"]]
        found[:] = [explain(states)]
        # Before that, others may be late.
        return found[0].certain and found[0].ranks == (3,) and "all_reduce 2 of" in found[0].sentence

    waiting.until(is_seen, what=lambda: worker.words)
    (cause,) = found
    assert cause.sentence.startswith("rank 3 on node-")
    assert "has not entered all_reduce 2 of the default group" in cause.sentence
    assert "where ranks 0, 1, 2 wait: rank 3 on node-" in cause.sentence
    assert "is in load_batch (train.py:" in cause.sentence


RECORDER = """
import sys, time, types
recorder = types.ModuleType('torch._C._distributed_c10d')
recorder._dump_fr_trace = lambda: b'recorded'
sys.modules[recorder.__name__] = recorder
time.sleep(600)
"""


def test_a_process_that_is_stopped_or_has_an_earlier_ones_number_is_asked_in_bounded_time(
    tmp_path: Path,
) -> None:
    told = hang.environment({}, str(tmp_path))
    env = {"PATH": os.environ["PATH"], "RANK": "0", "PYTHONPATH": told["PYTHONPATH"], **told}
    # The shell becomes Python under one process number, by which an earlier process has left a file.
    command = f'touch "$BIREME_RECORDS/$$" && exec "{sys.executable}" -c "$0"'
    with subprocess.Popen(["sh", "-c", command, RECORDER], env=env) as process:
        try:
            waiting.until(lambda: hang.dumps(str(tmp_path), [process.pid]) == {process.pid: b"recorded"})
            process.send_signal(signal.SIGSTOP)
            # Its threads stop one after the other, and one that still runs would answer.
            os.waitpid(process.pid, os.WUNTRACED)
            began = time.monotonic()
            assert hang.dumps(str(tmp_path), [process.pid, 1]) == {}
            assert time.monotonic() - began < 60
            process.send_signal(signal.SIGCONT)
            waiting.until(lambda: hang.dumps(str(tmp_path), [process.pid]) == {process.pid: b"recorded"})
        finally:
            process.kill()
    assert hang.dumps(str(tmp_path), [process.pid]) == {}


def test_without_a_limit_a_long_pause_is_only_told() -> None:
    now = 0.0
    seen = progress.Progress(clock=lambda: now)
    assert hang.overdue(seen, 0, 1800, 5000) == hang.overdue(seen, 200, 1800, 5000) == 0, "no step was seen"
    for number in (1, 2, 3):
        now += 100
        seen.take(b"step %d" % number)
    assert hang.overdue(seen, 0, 1800, now + 999) == 0
    assert hang.overdue(seen, 0, 1800, now + 1001) == 1001
    assert hang.overdue(seen, 200, 1800, now + 201) == 201
    seen.start()
    assert hang.overdue(seen, 200, 1800, now + 1799) == 0
    assert hang.overdue(seen, 200, 1800, now + 1801) == 1801
    assert hang.overdue(seen, 0, 1800, now + 9999) == 0


def test_without_a_limit_a_pause_of_less_than_ten_minutes_is_not_told() -> None:
    now = 0.0
    seen = progress.Progress(clock=lambda: now)
    for number in (1, 2, 3):
        now += 1
        seen.take(b"step %d" % number)
    assert hang.overdue(seen, 0, 1800, now + 599) == 0
    assert hang.overdue(seen, 0, 1800, now + 601) == 601


def test_the_recorder_keeps_2000_collectives_where_the_job_does_not_say_how_many() -> None:
    size = "TORCH_FR_BUFFER_SIZE"
    assert hang.environment({}, "")[size] == "2000"
    assert hang.environment({size: "9"}, "")[size] == "9"


def test_who_asks_again_within_5_seconds_gets_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = Observer(failures.Ledger(), progress.Progress(), "0", "node", Limits(), lambda _: None)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    first = observer.ranks()
    now += 4.9
    assert observer.ranks() is first
    now += 0.2
    assert observer.ranks() is not first


class Ledger(failures.Ledger):
    """Etcd for one worker. It does not answer so many times, and remembers who asked for stacks."""

    def __init__(self, silent: int) -> None:
        super().__init__()
        self._silent, self._is_asked = silent, False

    def ask_for_stacks(self, round: int) -> bool:
        is_asked, self._is_asked = self._is_asked, True
        return not is_asked

    def stand(self, round: int, worker: str, stands: Iterable[RankState]) -> None:
        self._silent -= 1
        if self._silent >= 0:
            raise etcd.Unavailable("no answer")
        super().stand(round, worker, stands)


@pytest.mark.parametrize(("learnt", "silent"), [(True, 0), (True, 2), (False, 0)])
def test_after_a_learnt_time_processes_start_again_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, learnt: bool, silent: int
) -> None:
    monkeypatch.setattr(hang, "_TOLD_SECONDS", 1.0)
    monkeypatch.setattr(hang, "_TOLD_TIMES", 0.0)
    seen = progress.Progress()
    said: list[str] = []
    limits = Limits(5, 300, hang_learnt=learnt)
    observer = Observer(Ledger(silent), seen, "0", "node", limits, said.append)
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            observer.starting({"round": 1, "rank": 0, "world": 1})
            observer.started({"processes": [[process.pid, 0, 0]]})
            seen.take(b"step 1")

            def told() -> bool:
                observer.tick()
                return any("have told where they stand" in sentence for sentence in said)

            waiting.until(told, what=lambda: "\n".join(said))
            if learnt:
                assert process.wait(120) == -9
            else:
                assert process.poll() is None
        finally:
            process.kill()


def stand(rank: int, frames: str, step: int | None = None) -> RankState:
    return RankState(rank, f"node-{rank}", step, frames.split())


@pytest.mark.parametrize(
    ("stands", "rank"),
    [
        ([stand(0, "all_reduce"), stand(1, "load"), stand(2, "all_reduce")], 1),
        ([stand(0, "all_reduce", 7), stand(1, "all_reduce", 6)], 1),
        ([stand(0, "all_reduce", 7), stand(1, "all_reduce", 7)], None),
        ([stand(0, "all_reduce"), stand(1, "load")], None),
        ([stand(0, "train all_reduce(distributed_c10d.py:9)"), stand(1, "train load")], 1),
        ([stand(0, "all_reduce(distributed_c10d.py:9)"), stand(1, "barrier(distributed_c10d.py:8)")], None),
        ([stand(0, "all_reduce")], None),
        ([stand(0, "reduce glob"), stand(1, "reduce"), stand(2, "reduce"), stand(3, "load")], 3),
        ([stand(0, "load"), stand(1, "load read"), stand(2, "load")], 1),
        ([], None),
    ],
)
def test_the_slowest_is_behind_or_does_something_else(stands: list[RankState], rank: int | None) -> None:
    slow = slowest(stands)
    assert (slow.rank if slow else None) == rank


def test_hangs_for_which_nobody_is_to_blame_end_the_run() -> None:
    found = [
        failures.Failure(number, 2, "0", failures.UNKNOWN, 0, -9, 0, "no step for 9 s")
        for number in (1, 2, 3)
    ]
    assert failures.judge(found, "a", ["a", "b"], 3) == "run"
    assert found[0].sentence == "round 1 was ended, and no rank is to blame: no step for 9 s"


def test_the_images_own_sitecustomize_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.of_the_image = True")
    env = {
        "PATH": os.environ["PATH"],
        **hang.environment({"PYTHONPATH": f"{tmp_path}:{RUNTIME}"}, str(tmp_path)),
    }
    code = "import json, faulthandler; print(json.dumps([of_the_image, faulthandler.unregister(41)]))"
    code = code.replace("41", str(hang.STACKS_SIGNAL))
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [True, True]


def test_a_process_that_is_stopped_is_told_so_at_once() -> None:
    command = "import faulthandler, time; faulthandler.register({}); print(flush=True); time.sleep(600)"
    script = command.format(hang.STACKS_SIGNAL)
    with subprocess.Popen([sys.executable, "-S", "-c", script], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            assert hang.held(process.pid) == []
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            assert hang.print_stacks(process.pid, list) == []
            assert hang.held(process.pid) == ["state T (stopped)"]
        finally:
            process.kill()
    assert hang.held(process.pid) == []


def test_counters_of_errors_are_read_of_each_device_and_of_tcp(tmp_path: Path) -> None:
    """A made-up sysfs with the names of Ethernet's, InfiniBand's and EFA's counters."""
    counters = {
        "sys/class/net/eth0/statistics/rx_dropped": 3,
        "sys/class/net/eth0/statistics/rx_bytes": 4096,
        "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error": 1,
        "sys/class/infiniband/mlx5_0/ports/2/counters/symbol_error": 1,
        "sys/class/infiniband/mlx5_0/ports/1/hw_counters/local_ack_timeout_err": 5,
        "sys/class/infiniband/rdmap0/ports/1/hw_counters/retrans_pkts": 7,
        "sys/class/infiniband/rdmap0/ports/1/hw_counters/tx_pkts": 9,
    }
    for name, number in counters.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{number}\n")
    (tmp_path / "sys/class/net/eth0/statistics/tx_errors").write_text("not supported\n")
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/snmp").write_text("Ip: Forwarding\nIp: 1\nTcp: MaxConn RetransSegs\nTcp: -1 11\n")
    assert hang.counters(tmp_path) == {
        "eth0 rx_dropped": 3, "mlx5_0 symbol_error": 2, "mlx5_0 local_ack_timeout_err": 5,
        "rdmap0 retrans_pkts": 7, "TCP RetransSegs": 11,
    }  # fmt: skip


def test_counters_of_this_machine_are_read() -> None:
    assert {"lo rx_dropped", "TCP RetransSegs"} <= hang.counters().keys()


SMI = {"ends": "echo '0, 0'; echo '1, 2'", "hangs": "exec sleep 600"}


def test_counters_that_do_not_answer_hold_one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answers = list[float](), threading.Event()

    def counters() -> Counter[str]:
        asked.append(time.monotonic())
        answers.wait(60)
        return Counter()

    monkeypatch.setattr(hang, "counters", counters)
    for name in ("_PUBLISH_SECONDS", "_RANKS_SECONDS", "_SIGN_SECONDS"):
        monkeypatch.setattr(f"bireme_runtime.elastic.agent.observer.{name}", 0.0)
    observer = Observer(failures.Ledger(), progress.Progress(), "0", "node", Limits(), lambda _: None)
    observer.starting({"round": 1, "rank": 0, "world": 1})
    try:
        for _ in range(5):
            observer.tick()
            observer.ranks()
            time.sleep(0.06)
        waiting.until(lambda: len(asked) > 1)
        assert len(asked) == 2
    finally:
        answers.set()
        observer.close()


def signs(monkeypatch: pytest.MonkeyPatch, folder: Path, smi: str) -> dict[str, int]:
    """The signs that a worker tells of a node whose counters rise and whose nvidia-smi is ``smi``."""
    numbers = iter([100, 103])
    monkeypatch.setattr(hang, "counters", lambda: Counter({"eth0 rx_dropped": next(numbers)}))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(
        "bireme_runtime.elastic.agent.observer._SIGN_SECONDS", 0.2 if smi == "hangs" else 60.0
    )
    if smi:
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{SMI[smi]}\n")
        (folder / "nvidia-smi").chmod(0o755)
    observer = Observer(failures.Ledger(), progress.Progress(), "0", "node", Limits(), lambda _: None)
    with subprocess.Popen(["env", "RANK=5", "LOCAL_RANK=5", "sleep", "600"]) as process:
        try:
            observer.starting({"round": 1, "rank": 0, "world": 1})
            observer.started({"processes": [[process.pid, 0, 0]]})
            observer.tick()
            waiting.until(lambda: "bireme-act" not in [each.name for each in threading.enumerate()])
            (state,) = observer.ranks()
        finally:
            process.kill()
    return dict(state.signs)


def test_a_rank_tells_which_counters_have_risen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert signs(monkeypatch, tmp_path, "") == {"eth0 rx_dropped rose by 3": 3}


def test_a_rank_tells_of_gpus_with_errors_and_of_those_that_do_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = "GPU 1 has uncorrected memory errors since the driver was loaded"
    assert [*signs(monkeypatch, tmp_path, "ends")] == [broken]
    assert [*signs(monkeypatch, tmp_path, "hangs")] == ["its GPUs or network devices do not answer"]


@pytest.mark.parametrize(("launcher", "rank"), [("torchrun", 7), ("node", 0)])
def test_what_a_process_has_started_is_a_rank_only_below_a_launcher(
    monkeypatch: pytest.MonkeyPatch, launcher: str, rank: int
) -> None:
    """A rank that was forked has its variables from the template, and what it starts has a rank's."""
    monkeypatch.setenv("BIREME_LAUNCHER", launcher)
    observer = Observer(failures.Ledger(), progress.Progress(), "0", "node", Limits(), lambda _: None)
    command = ["env", "-u", "RANK", "sh", "-c", "RANK=0 LOCAL_RANK=0 sh -c 'echo; exec sleep 600' & wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            observer.started({"processes": [[process.pid, 7, 0]]})
            assert [state.rank for state in observer.ranks()] == [rank]
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_process_without_the_handler_is_not_killed_by_the_question() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    try:
        assert hang.print_stacks(process.pid, list) == []
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
