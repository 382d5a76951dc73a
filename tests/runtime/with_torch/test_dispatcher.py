"""Shards of the dispatcher in torchrun jobs whose workers are lost."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bireme_runtime.dispatcher import Dispatcher
from bireme_runtime.process import children
from tests.runtime.dispatcher_replicas import Dispatchers
from tests.runtime.etcd_servers import EtcdServer

pytestmark = pytest.mark.whole

NAMES = ("a", "b", "c")
SHARDS = 24
DOCS = Path(__file__).parents[3] / "docs" / "dispatcher.md"
IMPORT = "from bireme_runtime.dispatcher import Dispatcher"


@pytest.fixture
def replicas(shared_etcd: EtcdServer, prefix: str) -> Iterator[Dispatchers]:
    # A supervisor on a busy machine sees late that a trainer has ended; its lease must not end before.
    mine = Dispatchers(shared_etcd.endpoint, f"{prefix}dispatcher/", trainer_seconds=30).start()
    yield mine
    mine.stop()


@pytest.fixture
def run(job: Callable[..., Any], replicas: Dispatchers) -> Callable[..., Any]:
    """Start workers with the script of docs/dispatcher.md in which a shard may fail so often."""

    def start(failures: int, names: Sequence[str] = NAMES, **env: str) -> Any:
        run = job(PET_NNODES="2:3", BIREME_DISPATCHER=replicas.addresses, **env)
        _, shown = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
        assert "dispatcher.add(names)" in shown
        shown = shown.replace("dispatcher.add(names)", f"dispatcher.add(names, failures={failures})")
        before = Path(__file__).with_name("shards.py").read_text()
        (run.folder / "shards.py").write_text(f"{before}\n{IMPORT}\n{shown}")
        for name in names:
            start_worker(run, name)
        for name in names:
            run.wait_for(name, "begun", seconds=180, world=len(names))
        return run

    return start


def start_worker(run: Any, name: str) -> None:
    run.script = ["/mnt/shards.py", "/mnt", name, str(SHARDS)]
    run.start(name, NAMES.index(name))


def lose(run: Any, name: str) -> None:
    """Kill all processes of a worker, as the loss of its node does."""
    worker = run.workers[name].pid
    children.send([worker, *children.descendants(worker)], signal.SIGKILL)


def ranks(run: Any, names: Sequence[str] = NAMES) -> dict[int, str]:
    """The worker that has each rank."""
    return {run.notes(name, "begun")[-1]["rank"]: name for name in names}


def end(run: Any, replicas: Dispatchers, names: Sequence[str], failed: Sequence[str] = ()) -> dict[str, int]:
    """Wait for these workers' success with each shard; how often shards were handed out again, and why."""
    assert [run.end(name, 240) for name in names] == [0] * len(names)
    (status,) = Dispatcher(replicas.addresses, wait_seconds=30).status()["datasets"]
    assert (status["over"], status["done"]) == (True, SHARDS - len(failed))
    assert status["failedShards"] == list(failed)
    trained = {note["shard"] for name in NAMES for note in run.notes(name, "trained")}
    assert {f"shard-{number:03d}" for number in range(SHARDS)} - set(failed) <= trained
    again: dict[str, int] = status["redispatched"]
    return again


def test_a_shard_does_not_fail_because_a_peer_is_lost(run: Callable[..., Any], replicas: Dispatchers) -> None:
    here = run(failures=1)
    gone = ranks(here)[2]
    lose(here, gone)
    end(here, replicas, [name for name in NAMES if name != gone])


def test_a_shard_that_makes_any_rank_fail_is_given_up_and_the_others_are_done(
    run: Callable[..., Any], replicas: Dispatchers
) -> None:
    here = run(failures=2, BAD_SHARD="shard-003")
    assert end(here, replicas, NAMES, failed=["shard-003"])["lost"] == 1
    assert "ValueError: shard-003 cannot be read" in "".join(map(here.words, NAMES))


def test_a_shard_does_not_fail_because_a_worker_joins(run: Callable[..., Any], replicas: Dispatchers) -> None:
    here = run(failures=1, names=NAMES[:2])
    start_worker(here, NAMES[2])
    end(here, replicas, NAMES)


def test_a_shard_does_not_fail_because_the_worker_that_has_it_is_told_to_end(
    run: Callable[..., Any], replicas: Dispatchers
) -> None:
    here = run(failures=1)
    gone = ranks(here)[0]
    here.workers[gone].send_signal(signal.SIGTERM)
    end(here, replicas, [name for name in NAMES if name != gone])


@pytest.mark.parametrize("lost", ["rank", "worker"])
def test_a_kill_of_the_rank_that_has_a_shard_counts_one_failure_and_loses_no_shard(
    run: Callable[..., Any], replicas: Dispatchers, lost: str
) -> None:
    here = run(failures=2)
    first = ranks(here)[0]
    if lost == "rank":
        os.kill(here.notes(first, "begun")[-1]["pid"], signal.SIGKILL)
    else:
        lose(here, first)
    again = end(here, replicas, [name for name in NAMES if lost == "rank" or name != first])
    assert again.get("lost", 0) == 1
