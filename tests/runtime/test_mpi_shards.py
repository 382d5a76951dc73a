"""Shards of a job whose launcher loses a worker. sshd and mpirun are small stand-ins here."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bireme_runtime.dispatcher import Dispatcher
from tests.runtime.dispatcher_replicas import Dispatchers
from tests.runtime.etcd_servers import EtcdServer
from tests.runtime.test_mpi_elastic import Sshd, pod, sshd
from tests.support.waiting import until

__all__ = ["pod", "sshd"]

HOSTS = ("127.0.1.0", "127.0.1.1")
# Answers the probe as two ranks on hosts of that name, then runs a rank that trains one shard for ever.
MPIRUN = """#!/bin/sh
case "$*" in *bireme-rank*) echo bireme-rank 127 2; exit;; esac
exec python3 -c '
import time
from bireme_runtime.dispatcher import Dispatcher
with Dispatcher() as dispatcher:
    for shard in dispatcher.shards():
        time.sleep(1000)'
"""


@pytest.fixture
def replicas(shared_etcd: EtcdServer, prefix: str) -> Iterator[Dispatchers]:
    # Longer than the test: only the launcher can give the shard back.
    mine = Dispatchers(shared_etcd.endpoint, f"{prefix}dispatcher/", trainer_seconds=600).start()
    yield mine
    mine.stop()


def test_a_launcher_that_loses_a_worker_gives_back_the_shards_without_a_failure(
    pod: Callable[..., subprocess.Popen[str]],
    sshd: Sshd,
    replicas: Dispatchers,
    tmp_path: Path,
) -> None:
    mpirun = tmp_path / "programs" / "mpirun"
    mpirun.write_text(MPIRUN)
    mpirun.chmod(0o755)
    sshd.start(*HOSTS)
    with Dispatcher(replicas.addresses, wait_seconds=60) as other:
        other.add(["a"], failures=1)

        def status() -> dict[str, Any]:
            (dataset,) = other.status()["datasets"]
            return dict(dataset)

        hosts = {"BIREME_MPI_HOSTS": "127.0.1.{}", "BIREME_MPI_WORKERS": "2", "BIREME_MPI_SLOTS": "1"}
        role = {"BIREME_MPI_ROLE": "launcher", "BIREME_MPI_PORT": str(sshd.port), "BIREME_MPI_LEAST": ""}
        launcher = pod(sshd="#!/bin/sh\n", BIREME_DISPATCHER=replicas.addresses, **hosts, **role)
        until(lambda: status()["pending"] == 1, 60, "the rank to get the shard")
        sshd.stop(HOSTS[1])
        output, _ = launcher.communicate(timeout=120)
        assert launcher.returncode == 75, output
        assert "127.0.1.1 went away while the program ran" in output
        assert (status()["redispatched"], status()["failedShards"]) == ({"released": 1}, [])
        assert [shard.name for shard in other.shards()] == ["a"]
