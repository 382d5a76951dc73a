"""Snapshots in memory and at the neighbour, with real torchrun: one step at most is made again."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bireme_runtime.process.children import descendants

pytestmark = pytest.mark.whole

Make = Callable[..., Any]
NAMES = "abc"


class Kept:
    """A run of three workers whose memory, a folder each, ends with the pod."""

    def __init__(self, job: Any, memory: Path, script: str, **env: str) -> None:
        self.job, self._memory, self._script, self._env = job, memory, script, env
        shutil.copy(Path(__file__).with_name(script), job.folder)

    def start(self, name: str, steps: int = 30, pause: float = 0.1) -> None:
        self.job.script = [f"/mnt/{self._script}", "/mnt", name, str(steps), str(pause)]
        env = {"BIREME_SNAPSHOTS": f"/dev/shm/{self._memory.name}/{name}", "BIREME_STOP_SECONDS": "0"}
        self.job.start(name, "abcde".index(name), BIREME_NODE=name, **env, **self._env)

    def kill_pod(self, name: str) -> None:
        """All its processes and its memory."""
        worker = self.job.workers[name]
        for pid in (worker.pid, *descendants(worker.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        worker.wait()
        shutil.rmtree(self._memory / name, ignore_errors=True)

    def digests(self) -> set[str]:
        """The parameters at the end, by all ranks."""
        return {self.job.wait_for(name, "done")["digest"] for name in NAMES}


@pytest.fixture
def kept(job: Make, prefix: str) -> Iterator[Callable[..., Kept]]:
    made: list[Path] = []

    def make(script: str = "kept.py", nodes: str = "3:3", **env: str) -> Kept:
        made.append(Path(f"/dev/shm/bireme-{os.getpid()}-{len(made)}"))
        run = job(PET_NNODES=nodes, PET_RDZV_ID=f"run-{len(made)}")
        return Kept(run, made[-1], script, **env)

    yield make
    for each in made:
        shutil.rmtree(each, ignore_errors=True)


def check_one_step_again(job: Any, since: float) -> None:
    """The start after a loss at this time makes one step again at most."""
    again = job.wait_for("a", "start", since)
    done = [note["step"] for note in job.notes("a", "step") if note["time"] < again["time"]]
    assert again["step"] >= max(done) - 1


@pytest.mark.parametrize("script", ["kept.py", "fsdp.py"])
def test_a_lost_process_and_a_lost_pod_cost_one_step_at_most(kept: Callable[..., Kept], script: str) -> None:
    quiet, run = kept(script), kept(script)
    for each in (quiet, run):
        for part in ("llm.py", "elastic.py"):
            shutil.copy(Path(__file__).parents[3] / "images/torch" / part, each.job.folder)
    for name in NAMES:
        quiet.start(name, pause=0)
    expected = quiet.digests()
    for name in NAMES:
        run.start(name)
    job = run.job
    job.wait_for("a", "step", step=8)
    since = time.time()
    os.kill(job.notes("a", "start")[-1]["pid"], signal.SIGKILL)
    check_one_step_again(job, since)
    job.wait_for("a", "step", since, step=16)
    since = time.time()
    run.kill_pod("b")
    run.start("b")
    check_one_step_again(job, since)
    assert run.digests() == expected
    assert len(expected) == 1


def test_a_sharded_state_goes_on_in_worlds_of_4_then_3_then_5(kept: Callable[..., Kept]) -> None:
    run = kept("sharded.py", "3:5", BIREME_WORKERS_FILE="/mnt/workers")
    job = run.job
    (job.folder / "workers").write_text("4")
    for name in "abcd":
        run.start(name, 600)
    job.wait_for("a", "step", step=5, world=4)
    since = time.time()
    run.kill_pod("d")
    job.wait_for("a", "step", since, world=3)
    for name in "de":
        run.start(name, 600)
    job.wait_for("a", "step", since, world=5)
    starts = [note for name in "abcde" for note in job.notes(name, "start")]
    assert {note["world"] for note in starts} >= {4, 3, 5}
    assert all(note["right"] for note in starts)
    assert all(note["step"] > 0 for note in starts if note["world"] != 4)


@pytest.mark.parametrize("seed", range(10))
def test_ten_random_losses_leave_the_parameters_of_an_undisturbed_run(
    kept: Callable[..., Kept], seed: int
) -> None:
    choose, quiet, run = random.Random(seed), kept(), kept()
    for name in NAMES:
        quiet.start(name, 200, 0)
    expected = quiet.digests()
    for name in NAMES:
        run.start(name, 200, 0.02)
    for loss in range(10):
        run.job.wait_for("a", "step", step=10 + loss * 18 + choose.randrange(8))
        since, name = time.time(), choose.choice(NAMES)
        if choose.random() < 0.5:
            os.kill(run.job.notes(name, "start")[-1]["pid"], signal.SIGKILL)
        else:
            run.kill_pod(name)
            run.start(name, 200, 0.02)
        check_one_step_again(run.job, since)
    assert run.digests() == expected
    assert len(expected) == 1
