"""Workers without pservers as real supervisors, with a stand-in for Paddle's launcher."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bireme_runtime.paddle.supervisor import Script
from bireme_runtime.process.disk import write_whole
from tests.runtime.paddle_pods import SOURCE, PaddleJob
from tests.support import waiting

# Like Paddle's: workers meet at the master, make steps together, and wait for a lost one for ever. It makes
# no more steps while the file `hang` is there, exits with what `fail-RANK` says, and ends when `go` is there.
LAUNCHER = """
import argparse, os, pathlib, socket, sys, time
parser = argparse.ArgumentParser()
for name in ("master", "job_id", "nnodes", "rank", "host", "nproc_per_node", "log_dir"):
    parser.add_argument("--" + name)
args, rest = parser.parse_known_args()
folder, world, rank = pathlib.Path(rest[1]).parent, int(args.nnodes), int(args.rank)
host, _, port = args.master.rpartition(":")
if rank == 0:
    listener = socket.create_server((host, int(port)))
    peers = [listener.accept()[0] for _ in range(world - 1)]
else:
    while True:
        try:
            peers = [socket.create_connection((host, int(port)))]
            break
        except OSError:
            time.sleep(0.05)
print("trains", os.environ["BIREME_PADDLE_ATTEMPT"], world, args.job_id, flush=True)
for step in range(100000):
    failed = folder / f"fail-{rank}"
    if failed.exists():
        code = int(failed.read_text())
        failed.unlink()
        sys.exit(code)
    over = (folder / "go").exists()
    for peer in peers if rank == 0 else ():
        try:
            peer.sendall(b"1" if over else b"0")
        except OSError:
            time.sleep(600)
    if rank:
        told = peers[0].recv(1)
        while not told:
            time.sleep(600)
        over = told == b"1"
    if over:
        break
    while (folder / "hang").exists() and step > 5:
        time.sleep(600)
    print("step", step, flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[PaddleJob]:
    folder = tmp_path / "with" / "paddle" / "distributed"
    folder.mkdir(parents=True)
    (folder / "launch.py").write_text(LAUNCHER)
    one = PaddleJob(tmp_path, "")
    yield one
    one.stop()


Start = Callable[..., None]


@pytest.fixture
def start(job: PaddleJob, tmp_path: Path) -> Start:
    def start(index: int, **more: str) -> None:
        path = f"{SOURCE}:{tmp_path / 'with'}"
        job.start(
            "collective", index, PYTHONPATH=path, BIREME_PADDLE_PSERVERS="0", TMPDIR=str(tmp_path), **more
        )

    return start


def both_train(job: PaddleJob, attempts: int) -> Callable[[], bool]:
    """Whether both workers train, in the attempt with this number."""
    return lambda: all([attempts] == [int(each[0]) for each in job.trained(index)[-1:]] for index in (0, 1))


def both_start(job: PaddleJob, start: Start, **more: str) -> None:
    for index in (0, 1):
        start(index, **more)
    job.until(both_train(job, 1), "both workers to train")


def test_after_the_loss_of_worker_0_all_start_again_together(job: PaddleJob, start: Start) -> None:
    both_start(job, start)
    job.kill("collective", 0)
    start(0)
    job.until(both_train(job, 2), "both workers to train again")
    assert "worker 0" in job.log("collective", 1)
    assert job.end() == {0}
    assert (job.output / "done").exists()


def test_a_script_that_fails_starts_again_with_all_others(
    job: PaddleJob, start: Start, tmp_path: Path
) -> None:
    both_start(job, start)
    write_whole(tmp_path / "fail-1", "3")
    job.until(both_train(job, 2), "both workers to train again")
    assert "the script ended with 3" in job.log("collective", 1)
    assert job.end() == {0}


def test_workers_that_hang_start_again(job: PaddleJob, start: Start, tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    start(0, BIREME_HANG_SECONDS="5")
    start(1)
    job.until(lambda: all(job.trained(index) for index in (0, 1)), "both workers to train")
    job.until(
        lambda: "no worker has printed anything for 5 s" in job.log("collective", 1), "the hang to be seen"
    )
    (tmp_path / "hang").unlink()
    assert job.end() == {0}


def test_when_the_restarts_of_workers_are_used_up_all_end_with_the_reason(
    job: PaddleJob, start: Start, tmp_path: Path
) -> None:
    both_start(job, start, BIREME_MAX_RESTARTS="0")
    (tmp_path / "fail-0").write_text("1")
    assert job.codes() == {70}
    assert "the process of worker 0 ended, and all 0 restarts are used up" in job.log("collective", 1)


def test_a_worker_that_is_asked_to_go_lets_the_others_wait_for_its_replacement(
    job: PaddleJob, start: Start
) -> None:
    both_start(job, start)
    pod = job.pods.pop(("collective", 1))
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(120) == 143
    start(1)
    job.until(both_train(job, 2), "both workers to train again")
    assert job.end() == {0}


def test_a_clock_that_jumps_makes_no_script_look_hung_or_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, logs = Script(tmp_path / "train.log"), tmp_path / "logs"
    logs.mkdir()
    (logs / "worker.0").write_text("step 1")
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert script.quiet(logs) < 1800
    os.utime(logs / "worker.0", (4e9, 4e9))
    monkeypatch.setattr(time, "time", lambda: 1e9)
    first = script.quiet(logs)
    waiting.until(lambda: script.quiet(logs) > first)
