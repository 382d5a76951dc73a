"""A loss that is no number, and steps that take twice as long: told, a restart, or the end."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bireme_runtime.elastic import progress
from bireme_runtime.elastic.agent.observer import Limits, Observer
from bireme_runtime.elastic.monitor import failures
from tests.runtime.test_failures import COUNT
from tests.runtime.workers import Start

# The first start comes to a loss that is no number, and trains on.
BECOMES_NAN = (
    COUNT
    + """
for step in range(1, 1200 if starts == 1 else 20):
    print(f'step {step} loss: {"nan" if step > 9 and starts == 1 else 1.5}', flush=True)
    time.sleep(0.05)
"""
)


def test_a_loss_that_is_no_number_starts_the_processes_again(start: Start, on_etcd: dict[str, str]) -> None:
    worker = start(
        BECOMES_NAN, **on_etcd, BIREME_ON_NAN="restart", PET_MAX_RESTARTS="3", BIREME_NODE="node-a"
    )
    assert worker.end() == 0
    assert worker.file("n") == "2"
    assert "rank 0 on node-a failed in round 1 (signal 9): the loss is NaN or infinite" in worker.words


def test_a_loss_that_is_never_a_number_again_ends_the_run_after_some_restarts(
    start: Start, on_etcd: dict[str, str]
) -> None:
    script = BECOMES_NAN.replace("starts == 1", "starts")
    env = {**on_etcd, "BIREME_ON_NAN": "restart", "BIREME_FAILURES_WITHOUT_PROGRESS": "2"}
    worker = start(script, **env, PET_MAX_RESTARTS="99")
    assert worker.end() == 70
    assert "2 failures without a new step" in worker.words


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("step 3 loss: nan", 1),
        ("step 3, train_loss=-inf", 1),
        ('{"step": 3, "loss": NaN}', 1),
        ("loss: tensor(nan, device='cuda:0')", 1),
        ("{'loss': 'nan', 'epoch': '1'}", 1),
        ("loss=nan.0", 1),
        ("step 3 Loss 1.25", 0),
        ("step 3 closs: nan", 0),
        ("step 3 loss: nanoseconds", 0),
        ("step 3 no loss in information", 0),
    ],
)
def test_losses_are_found_in_lines(line: str, count: int) -> None:
    seen = progress.Progress()
    seen.take(line.encode())
    assert seen.bad_losses == count
    assert seen.step == (None if count else 3)


def test_a_script_may_tell_its_loss_by_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = progress.Progress()
    monkeypatch.setattr(progress, "_board", seen.board)
    for number, loss in enumerate((1.5, float("nan"), float("-inf"))):
        progress.step(number, loss)
    assert seen.bad_losses == 2


def test_a_pattern_may_name_the_loss() -> None:
    seen = progress.Progress(r"tokens (\d+) perplexity (?P<loss>\S+)")
    seen.take(b"tokens 12 perplexity 4.5")
    seen.take(b"tokens 13 perplexity inf")
    assert (seen.step, seen.bad_losses) == (12, 1)
    seen.take(b"tokens 14 perplexity 4.4")
    assert (seen.step, seen.bad_losses) == (14, 0)


# --- steps that take longer; a clock of the test's own, because minutes have to pass ---


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


class Clock:
    """Ahead of the real one, by which no step is overdue."""

    def __init__(self) -> None:
        self.now = time.monotonic() + 1e7

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def observer(clock: Clock, pid: int, **limits: Any) -> tuple[Observer, progress.Progress, list[str]]:
    said: list[str] = []
    seen = progress.Progress(clock=clock)
    made = Observer(failures.Ledger(), seen, "0", "node-a", Limits(5, 300, **limits), said.append)
    made.starting({"round": 1, "rank": 0, "world": 1})
    made.started({"processes": [[pid, 0, 0]]})
    return made, seen, said


def train(clock: Clock, seen: progress.Progress, steps: range, seconds: float) -> None:
    for step in steps:
        clock.now += seconds
        seen.take(b"step %d" % step)


@pytest.mark.parametrize(("policy", "verdict"), [({"on_nan": "fail"}, "run"), ({}, "")])
def test_a_loss_that_is_no_number_ends_the_run_or_is_only_told(
    clock: Clock, process: subprocess.Popen[bytes], policy: dict[str, str], verdict: str
) -> None:
    made, seen, said = observer(clock, process.pid, **policy)
    for _ in range(3):
        seen.take(b"step 9 loss: nan")
    made.tick()
    (sentence,) = said
    assert sentence.startswith("the loss is NaN or infinite, 3 times in a row")
    assert (made.verdict, made.sentence.endswith("which ends the run")) == (verdict, verdict == "run")
    assert process.poll() is None


def test_steps_that_take_twice_as_long_start_the_processes_again(
    clock: Clock, process: subprocess.Popen[bytes]
) -> None:
    made, seen, said = observer(clock, process.pid, on_slow="restart")
    train(clock, seen, range(1, 200), 4.0)
    made.tick()
    assert said == []
    train(clock, seen, range(200, 220), 9.0)
    made.tick()
    assert said == ["a step takes 9 s instead of 4 s"]
    assert process.wait(120) == -9
    made.failed({"round": 1, "world": 1, "rank": 0, "code": -9})
    made.starting({"round": 2, "rank": 0, "world": 1})
    assert made.starts.restarts == {"slow": 1}


def test_slow_steps_are_only_told_without_a_policy_and_once(
    clock: Clock, process: subprocess.Popen[bytes]
) -> None:
    made, seen, said = observer(clock, process.pid)
    train(clock, seen, range(1, 2000), 0.5)
    train(clock, seen, range(2000, 2200), 1.2)
    made.tick()
    made.tick()
    assert said == ["a step takes 1.2 s instead of 0.5 s"]
    assert process.poll() is None
    assert made.starts.events[0]["event"] == "slow"


def test_pauses_other_worlds_and_the_first_steps_of_a_start_are_not_slow(
    clock: Clock, process: subprocess.Popen[bytes]
) -> None:
    made, seen, said = observer(clock, process.pid)
    train(clock, seen, range(1, 200), 4.0)
    for first in range(200, 300, 10):
        clock.now += 600
        train(clock, seen, range(first, first + 10), 4.0)
    made.tick()
    made.starting({"round": 2, "rank": 0, "world": 2})
    train(clock, seen, range(300, 400), 9.0)
    made.tick()
    made.starting({"round": 3, "rank": 0, "world": 1})
    train(clock, seen, range(400, 403), 100.0)
    train(clock, seen, range(403, 500), 4.0)
    made.tick()
    assert said == []
