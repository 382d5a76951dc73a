"""What a worker tells of its run over HTTP, to Prometheus and to `bireme status`."""

from __future__ import annotations

import contextlib
import io
import json
import re
import socket
import threading
import time
from http.server import ThreadingHTTPServer

import pytest
from rich.console import Console

from bireme.cli.views import worker_status_view
from bireme.live.worker_status import WorkerStatus
from bireme_runtime.elastic import progress
from bireme_runtime.elastic.monitor import failures
from bireme_runtime.elastic.monitor import status as monitor
from tests.runtime.told import Told, ToPods
from tests.runtime.workers import KNOWN, Start
from tests.support import waiting

FAILS_TWICE = (
    KNOWN
    + """
n = pathlib.Path('n')
starts = int(n.read_text()) + 1 if n.exists() else 1
n.write_text(str(starts))
for step in range(1 if starts == 1 else 8, 10 + starts):
    print(f'step {step}', flush=True)
    time.sleep(0.02)
if starts < 3:
    raise ValueError('the shape is wrong')
pathlib.Path('trains').touch()
time.sleep(600)
"""
)


def test_status_and_metrics_tell_who_failed_first_and_what_was_lost(
    start: Start, on_etcd: dict[str, str], told: Told
) -> None:
    start(FAILS_TWICE, **on_etcd, PET_MAX_RESTARTS="9", BIREME_NODE="node-a", **told.env)
    found = told.status(lambda found: found.step == 12 and len(found.failures) == 2)
    assert found.round == 3
    assert found.world == 1
    assert found.restarts == {"failure": 2}
    # The first start made 1 to 10, the second 8 to 11, the third 8 to 12.
    assert found.lost_steps == 2 + 3
    assert found.nodes == {"node-a": 2}
    assert found.failures[0] == (
        "rank 0 on node-a failed in round 1 (exit code 1): ValueError: the shape is wrong"
    )
    assert not found.waits
    console = Console(file=io.StringIO(), width=200)
    console.print(worker_status_view(found))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "round 3, 1 workers, step 12" in printed
    assert "first failures by node: node-a 2" in printed
    lines = told.get("metrics").splitlines()
    assert 'bireme_restarts_total{cause="failure"} 2.0' in lines
    assert "bireme_step 12" in lines
    assert "bireme_lost_steps_total 5" in lines
    assert all(line.startswith(("# HELP bireme_", "# TYPE bireme_", "bireme_")) for line in lines)


def test_a_worker_tells_of_its_checkpoint_while_etcd_is_silent() -> None:
    """The autoscaler asks for that, and waits two seconds."""

    answers = threading.Event()

    class Silent(failures.Ledger):
        def all(self) -> list[failures.Failure]:
            answers.wait(60)
            return []

    seen = progress.Progress()
    seen.board.mark_saving(0, True)
    status = monitor.WorkerStatus(monitor.Starts(), seen, Silent(), lambda: "nobody")
    answer = status.status()
    assert (answer["saving"], answer["waits"]) == (True, "etcd does not answer")
    answers.set()
    waiting.until(lambda: status.status()["waits"] == "nobody")


def test_a_second_run_tells_for_which_it_waits(start: Start, on_etcd: dict[str, str], told: Told) -> None:
    # The first run waits as long as a lease lives, too.
    on_etcd["PET_RDZV_CONF"] += ",keep_alive_max_attempt=10"
    first = start("pathlib.Path('trains').write_text('x'); time.sleep(600)", **on_etcd, BIREME_LOCK="ns/job")
    first.file("trains")
    start("", **{**on_etcd, "PET_RDZV_ID": "run-2"}, BIREME_LOCK="ns/job", **told.env)
    words = "run run to end: it trains with 1 workers"
    told.status(lambda found: found.waits == words)


def test_a_worker_that_is_left_over_is_named_as_a_spare(
    start: Start, on_etcd: dict[str, str], told: Told
) -> None:
    units = {**on_etcd, "PET_NNODES": "2:8", "BIREME_WORKERS_PER_UNIT": "2"}
    trains = "pathlib.Path('trains').write_text('x'); time.sleep(600)"
    first = start(trains, **units, JOB_COMPLETION_INDEX="0", **told.env)
    second = start(trains, **units, JOB_COMPLETION_INDEX="1")
    first.file("trains")
    second.file("trains")
    assert not told.status(lambda found: found.world == 2).spares
    start(trains, **units, JOB_COMPLETION_INDEX="2")
    found = told.status(lambda found: found.spares)
    assert found.spares == (socket.gethostname(),)
    console = Console(file=io.StringIO(), width=200)
    console.print(worker_status_view(found, unit=2))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "round 1, 2 workers in units of 2" in printed
    assert f"spare: {socket.gethostname()}" in printed


def test_a_port_that_is_taken_costs_only_the_metrics(start: Start, on_etcd: dict[str, str]) -> None:
    server = ThreadingHTTPServer(("", 0), ToPods)
    worker = start("", **on_etcd, BIREME_METRICS_PORT=str(server.server_port))
    assert worker.end() == 0
    assert f"no metrics at port {server.server_port}" in worker.words
    server.server_close()


def test_lost_steps_and_seconds_end_with_the_next_new_step() -> None:
    now = 100.0
    seen = progress.Progress(clock=lambda: now)
    seen.start()
    for number in (1, 2, 3):
        now += 1
        seen.take(b"step %d" % number)
    assert seen.rate == 1
    now += 10
    seen.start()
    for number in (2, 3, 4, 5):
        now += 1
        seen.take(b"step %d" % number)
    assert (seen.lost_steps, seen.lost_seconds, seen.step) == (1, 13, 5)


def test_the_throughput_is_what_the_script_has_printed_since_its_start() -> None:
    seen = progress.Progress()
    for rate in (3, 100, 101.5, 99):
        seen.take(b'{"event": "step", "step": 1, "samples_per_second": %s}' % str(rate).encode())
    assert seen.samples_per_second == 0, "the first steps are slow, so a few are waited for"
    seen.take(b"step 9, samples_per_second=1.0e2")
    assert seen.samples_per_second == 100
    seen.start()
    assert seen.samples_per_second == 0


def test_goodput_falls_with_what_restarts_cost_and_while_no_step_is_new() -> None:
    now = 100.0
    seen = progress.Progress(clock=lambda: now)
    assert seen.goodput is None
    for number in range(11):
        now += 1
        seen.take(b"step %d" % number)
    assert seen.goodput == 1
    now += 5
    seen.start()
    for number in range(6, 16):
        now += 1
        seen.take(b"step %d" % number)
    # 25 seconds since the first new step, 11 of them from step 10 to step 11.
    assert seen.goodput == pytest.approx(14 / 25)
    now += 25
    assert seen.goodput == pytest.approx(14 / 50)


def test_the_step_of_each_rank_and_the_printed_throughput_are_in_the_metrics(
    start: Start, on_etcd: dict[str, str], told: Told
) -> None:
    script = """
from bireme_runtime.elastic import progress
last = 7 if os.environ['RANK'] == '1' else 11
while True:
    for step in range(3 if last == 11 else 0):
        print(f'samples_per_second: {643 + step}', flush=True)
    progress.step(last)
    with progress.saving():
        time.sleep(2)
"""
    worker = start(script, **on_etcd, PET_NPROC_PER_NODE="2", **told.env)
    lines = (
        'bireme_rank_step{rank="0"} 11.0',
        'bireme_rank_step{rank="1"} 7.0',
        'bireme_rank_step_age_seconds{rank="1"}',
        'bireme_events_total{event="nan"} 0.0',
        "bireme_saving 1",
        "bireme_samples_per_second 644.0",
    )

    def are_told() -> bool:
        with contextlib.suppress(OSError):
            metrics = told.get("metrics")
            return all(line in metrics for line in lines)
        return False

    waiting.until(are_told, what=worker.errors.read_text)
    assert json.loads(told.get("v1/status"))["samplesPerSecond"] == 644


def test_a_script_that_tells_its_total_gets_an_estimated_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    seen = progress.Progress(r"iter (\d+) of (?P<total>\d+)", clock=lambda: now)
    assert seen.seconds_left is None, "no total was told"
    for number in range(1, 11):
        now += 2
        seen.take(b"iter %d of 40" % number)
    assert [seen.step, seen.board.total, seen.seconds_left] == [10, 40, 60]
    monkeypatch.setattr(progress, "_board", seen.board)
    progress.step(10, total=25)
    assert seen.seconds_left == 30
    progress.step(11)
    assert seen.board.total == 25, "a step without a total leaves it"


def test_status_shows_how_much_of_a_run_is_left() -> None:
    answer = {"round": 1, "world": 8, "step": 1200, "stepsPerSecond": 0.5, "restarts": {}, "lostSteps": 0,
              "waits": "", "failures": [], "nodes": {}}  # fmt: skip
    assert WorkerStatus.of("job", answer).pace == "step 1200, 0.50 a second", "of an older worker"
    told = answer | {"totalSteps": 5000, "secondsLeft": 7600.0}
    assert WorkerStatus.of("job", told).pace == "step 1200 of 5000 (24%), 0.50 a second, 2 h 6 min left"


def test_the_newest_snapshot_is_in_the_metrics_and_a_line_of_the_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    kept = {"step": 70, "time": now - 30, "MiB": 12, "copies": 1, "flushed": 60, "count": 9}
    seen, starts = progress.Progress(), monitor.Starts()
    told = monitor.WorkerStatus(
        starts, seen, failures.Ledger(), str, snapshots=lambda: {**kept, "blockedSeconds": 2.5}
    )
    metrics = re.findall(r"^bireme_snapshot_(\w+) ([\d]+)", told.metrics(), re.MULTILINE)
    assert dict(metrics) == {"step": "70", "age_seconds": "30", "copies": "1", "blocked_seconds_total": "2"}
    told.snapshots = dict
    assert "bireme_snapshot" not in told.metrics()
    told.snapshots = lambda: {**kept, "blockedSeconds": 2.5}
    console = Console(file=io.StringIO(), width=200)
    console.print(worker_status_view(WorkerStatus.of("job", told.status())))
    assert (
        "newest snapshot: step 70, 30 s ago, 12 MiB, copies at other workers: 1, step 60 on the claim; "
        "ranks waited 2.5 s for 9"
    ) in console.file.getvalue()  # type: ignore[attr-defined]
