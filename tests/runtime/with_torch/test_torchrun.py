"""Training that survives, with real torchrun on the rendezvous `bireme-etcd`."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.etcd_servers import EtcdServer, free_port
from tests.support.tiers import core

Make = Callable[..., Any]
NAMES = ("a", "b", "c")


def three_workers(make: Make, **env: Any) -> Any:
    """A run of three that has begun. It is held before its end."""
    job = make(**env)
    job.hold()
    for index, name in enumerate(NAMES):
        job.start(name, index)
    job.wait_for("c", "step", world=3)
    return job


def test_three_workers_finish_and_a_late_one_has_nothing_to_do(job: Make) -> None:
    run = three_workers(job, steps=30, pause=0.1, PET_NNODES="3:3")
    ranks = {run.wait_for(name, "start", world=3)["rank"] for name in NAMES}
    assert ranks == {0, 1, 2}
    run.let_go()
    assert [run.end(name) for name in NAMES] == [0, 0, 0]
    run.check_steps(30)
    run.start("late")
    assert run.end("late") == 0
    assert "the run has already succeeded" in run.words("late")


def test_the_example_of_the_readme_learns_to_add(job: Make) -> None:
    run = job()
    (run.folder / "train.py").write_bytes((Path(__file__).parents[3] / "examples/train.py").read_bytes())
    run.script = ["/mnt/train.py"]
    for index, name in enumerate(NAMES):
        run.start(name, index)
    assert [run.end(name) for name in NAMES] == [0, 0, 0]
    losses = re.findall(r"step 100 loss (\S+)", "".join(run.words(name) for name in NAMES))
    assert losses
    assert all(float(loss) < 0.01 for loss in losses)


@pytest.mark.parametrize("victim", core("pid b", of=["agent a", "agent b", "agent c", "pid b"]))
def test_a_killed_agent_or_training_process_restarts_and_the_run_finishes(job: Make, victim: str) -> None:
    run = three_workers(job)
    since = time.time()
    what, name = victim.split()
    os.kill(run.wait_for(name, "start", world=3)[what], signal.SIGKILL)
    run.wait_for_training("c" if name == "b" else "b", since, 3)
    run.let_go()
    assert [run.end(name) for name in NAMES] == [0, 0, 0]
    run.check_steps(60)


@pytest.mark.parametrize("warm", core("", of=["", "true"]))
def test_a_worker_that_receives_sigterm_saves_and_the_others_continue(job: Make, warm: str) -> None:
    run = three_workers(job, BIREME_WARM_START=warm)
    since = time.time()
    run.workers["a"].send_signal(signal.SIGTERM)
    run.wait_for_training("b", since, 2)
    assert run.end("a") == 143
    assert not warm or "1 training processes have 10 s to save" in run.words("a")
    saved = run.wait_for("a", "saved", since)
    again = run.wait_for("b", "start", since, world=2)
    assert again["step"] >= saved["step"]
    assert again["failures"] == 0, "a change of membership is none"
    since = time.time()
    run.start("a", 0)
    run.wait_for_training("b", since, 3)
    run.let_go()
    assert [run.end(name) for name in NAMES] == [0, 0, 0]
    run.check_steps(60)


FINAL_SAVE = """
import os, pathlib, sys, time
folder, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[4])
with (folder / "starts").open("a") as starts:
    starts.write("x")
while not pathlib.Path(folder / "two").exists():
    os.environ["WORLD_SIZE"] == "2" and (folder / "two").touch()
    time.sleep(0.1)
if os.environ["RANK"] == "0":
    time.sleep(seconds)
    %s
    (folder / "final").write_text("model")
"""
# Beyond 300 seconds torch's own exit barrier has given up.
SAVE_SECONDS = float(os.environ.get("BIREME_SAVE_SECONDS", "8"))


def c10d() -> dict[str, str]:
    endpoint = f"127.0.0.1:{free_port()}"
    return {
        "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": endpoint, "PET_RDZV_CONF": "last_call_timeout=2",
    }  # fmt: skip


def two_that_save(make: Make, failure: str, pause: float, **env: str) -> Any:
    run = make(PET_NNODES="1:2", pause=pause, **env)
    (run.folder / "train.py").write_text(FINAL_SAVE % failure)
    run.start("a", 0)
    run.start("b", 1)
    return run


def first_success(run: Any, seconds: float) -> None:
    """Wait until a worker exits with 0, upon which the Job would end all others."""
    deadline = time.monotonic() + seconds
    while not any(worker.poll() == 0 for worker in run.workers.values()):
        assert time.monotonic() < deadline, "no worker has succeeded"
        time.sleep(0.02)
    assert (run.folder / "final").exists(), "a worker has succeeded before the final checkpoint was there"


@pytest.mark.whole
def test_no_worker_succeeds_while_another_of_its_round_still_saves(job: Make) -> None:
    run = two_that_save(job, "", SAVE_SECONDS)
    first_success(run, SAVE_SECONDS + 180)
    assert [run.end(name) for name in ("a", "b")] == [0, 0]
    assert len((run.folder / "starts").read_text()) <= 3, "a member that has finished interrupts nobody"


@pytest.mark.whole
@pytest.mark.parametrize("backend", ["etcd", "c10d"])
def test_a_failed_final_save_is_made_again_before_any_worker_succeeds(job: Make, backend: str) -> None:
    fails_once = '(folder / "failed").exists() or ((folder / "failed").touch(), sys.exit(3))'
    run = two_that_save(job, fails_once, 3, **(c10d() if backend == "c10d" else {}))
    first_success(run, 180)
    assert [run.end(name) for name in ("a", "b")] == [0, 0]


@pytest.mark.whole
def test_with_c10d_the_loss_of_worker_0_before_its_final_save_is_no_success(job: Make) -> None:
    run = two_that_save(job, "", 6, **c10d())
    run.wait_for_file("two")
    run.workers["a"].send_signal(signal.SIGTERM)
    assert run.end("a") == 143
    run.start("a", 0)
    first_success(run, 180)
    assert [run.end(name) for name in ("a", "b")] == [0, 0]


@pytest.mark.whole
def test_when_a_worker_goes_before_its_final_save_the_others_make_it(job: Make) -> None:
    run = two_that_save(job, "", 6)
    run.wait_for_file("two")
    time.sleep(2)
    run.workers["a"].send_signal(signal.SIGTERM)
    first_success(run, 180)
    assert (run.end("a"), run.end("b")) == (143, 0)


@pytest.mark.parametrize("empty", core(True, of=[True, False]))
def test_a_run_survives_a_restart_and_the_loss_of_etcds_data(
    job: Make, new_etcd: Callable[..., EtcdServer], empty: bool
) -> None:
    server = new_etcd().start()
    run = three_workers(job, PET_RDZV_ENDPOINT=server.endpoint)
    server.stop()
    time.sleep(2)
    if empty:
        new_etcd(port=server.port, peer_port=server.peer_port).start()
    else:
        server.start()
    since = time.time()
    run.let_go()
    assert [run.end(name) for name in NAMES] == [0, 0, 0]
    run.check_steps(60)
    if not empty:
        assert not run.notes("a", "start", since), "a short outage interrupts no training"


COUNTS = """
import os, pathlib, sys
counts = pathlib.Path("/mnt/counts")
counts.write_text((counts.read_text() if counts.exists() else "") + os.environ["TORCHELASTIC_RESTART_COUNT"])
starts = len(counts.read_text())
print("step", 1 if starts < 3 else 2, flush=True)
sys.exit(starts < 4)
"""


def test_torch_counts_the_failures_of_a_worker_since_the_last_new_step(job: Make) -> None:
    run = job(PET_NNODES="1:1")
    (run.folder / "train.py").write_text(COUNTS)
    run.start("a")
    assert run.end("a") == 0
    assert (run.folder / "counts").read_text() == "0121", "the third start has made a new step"


@pytest.mark.whole
def test_the_exit_code_of_a_script_that_always_fails_is_returned(job: Make) -> None:
    run = job(PET_NNODES="1:1", PET_MAX_RESTARTS="1")
    (run.folder / "train.py").write_text("import sys; sys.exit(42)")
    run.start("a")
    assert run.end("a") == 42
    assert "the script failed for good, with code 42" in run.words("a")


@pytest.mark.whole
def test_with_c10d_a_worker_that_receives_sigterm_does_not_close_the_run(job: Make) -> None:
    run = job(PET_NNODES="1:2", **c10d())
    run.start("a", 0)
    run.start("b", 1)
    run.wait_for("b", "step", world=2)
    since = time.time()
    run.workers["b"].send_signal(signal.SIGTERM)
    assert run.end("b") == 143
    run.wait_for("a", "step", since, world=1)
    assert run.end("a") == 0
    run.check_steps(60)


@pytest.mark.whole
def test_a_run_survives_random_kills_of_agents_and_training_processes(job: Make) -> None:
    kills = int(os.environ.get("BIREME_KILLS", "5"))
    run = three_workers(job, steps=40 * (kills + 1))
    chance = random.Random(7)
    for _ in range(kills):
        since = time.time()
        name, victim = chance.choice(NAMES), chance.choice(["agent", "pid"])
        os.kill(run.notes(name, "start")[-1][victim], signal.SIGKILL)
        for each in NAMES:
            run.wait_for_training(each, since, 3)
        time.sleep(chance.uniform(0, 4))
    run.let_go()
    assert [run.end(name, 300) for name in NAMES] == [0, 0, 0]
    run.check_steps(40 * (kills + 1))


@pytest.mark.whole
def test_a_newcomer_leaves_healthy_processes_the_time_to_save(job: Make) -> None:
    run = job(steps=30, pause=2)
    run.env["PET_RDZV_CONF"] += ",settle_timeout=0"
    run.start("a", 0)
    run.wait_for("a", "step", world=1)
    since = time.time()
    run.start("b", 1)
    saved = run.wait_for("a", "saved", since)
    assert run.wait_for("a", "start", since, world=2)["step"] == saved["step"]
