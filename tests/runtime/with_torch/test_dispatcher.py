"""Shards of the dispatcher in torchrun jobs whose workers are lost."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bireme_runtime.dispatcher import Dispatcher
from tests.runtime.dispatcher_replicas import Dispatchers
from tests.runtime.etcd_servers import EtcdServer

NAMES = ("a", "b", "c")
SHARDS = 24
DOCS = Path(__file__).parents[3] / "docs" / "dispatcher.md"
IMPORT = "from bireme_runtime.dispatcher import Dispatcher"


@pytest.fixture
def replicas(shared_etcd: EtcdServer, prefix: str) -> Iterator[Dispatchers]:
    mine = Dispatchers(shared_etcd.endpoint, f"{prefix}dispatcher/", trainer_seconds=4).start()
    yield mine
    mine.stop()


@pytest.mark.parametrize("lost", ["rank", "worker"])
def test_no_shard_is_lost_with_the_rank_that_has_it(
    job: Callable[..., Any], replicas: Dispatchers, lost: str
) -> None:
    run = job(PET_NNODES="2:3", BIREME_DISPATCHER=replicas.addresses)
    _, shown = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    before = Path(__file__).with_name("shards.py").read_text()
    (run.folder / "shards.py").write_text(f"{before}\n{IMPORT}\n{shown}")
    for index, name in enumerate(NAMES):
        run.script = ["/mnt/shards.py", "/mnt", name, str(SHARDS)]
        run.start(name, index)
    run.wait_for("c", "begun", world=3)
    first = next(name for name in NAMES if run.notes(name, "begun")[-1]["rank"] == 0)
    begun = run.notes(first, "begun")[-1]
    if lost == "rank":
        os.kill(begun["pid"], signal.SIGKILL)
    else:
        run.workers[first].kill()
    assert [run.end(name, 180) for name in NAMES if lost == "rank" or name != first] == [0] * len(
        NAMES if lost == "rank" else NAMES[1:]
    )
    (status,) = Dispatcher(replicas.addresses, wait_seconds=30).status()["datasets"]
    assert (status["over"], status["done"], status["failedShards"]) == (True, SHARDS, [])
    trained = {note["shard"] for name in NAMES for note in run.notes(name, "trained")}
    assert trained == {f"shard-{number:03d}" for number in range(SHARDS)}
