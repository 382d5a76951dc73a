"""A launcher that loses a worker or is told to end. sshd and mpirun are small stand-ins here."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bireme_runtime.dispatcher import Dispatcher
from bireme_runtime.mpi.ssh import for_trainers
from tests.runtime.dispatcher_replicas import Dispatchers
from tests.runtime.etcd_servers import EtcdServer
from tests.runtime.test_mpi_elastic import Pods, Sshd, pod, sshd
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
# Ends with 0 once the file `go` is there, as Open MPI's does when a host dies.
ENDS_WELL = """#!/bin/sh
case "$*" in *bireme-rank*) echo bireme-rank 127 2; exit;; esac
touch $FOLDER/runs
until [ -e $FOLDER/go ]; do sleep 0.1; done
"""
# Ends when mpirun is called once more to end the ranks that an earlier call has started.
ENDED_BY_ANOTHER = """#!/bin/sh
case "$*" in *bireme_runtime.mpi.earlier*bireme-rank*)
  [ -e $FOLDER/runs ] && touch $FOLDER/passed-on
  echo bireme-rank 127 2; exit;;
esac
touch $FOLDER/runs
until [ -e $FOLDER/passed-on ]; do sleep 0.1; done
"""
# A rank that Horovod removes while it has a shard: it ends as one that crashed.
REMOVED = """#!/bin/sh
. $BIREME_MPI_FOLDER/environment
(HOROVOD_RANK=0 HOROVOD_ELASTIC=1 python3 -c '
import os, pathlib, time
from bireme_runtime.dispatcher import Dispatcher
for shard in Dispatcher().shards():
    while not pathlib.Path(os.environ["FOLDER"], "go").exists():
        time.sleep(0.1)
    os.abort()' &)
exec sleep 1000
"""
# Runs such a rank until the file `go` is there, and fails.
HOROVODRUN = REMOVED.replace("exec sleep 1000", "until [ -e $FOLDER/go ]; do sleep 0.1; done; exit 1")


@pytest.fixture(scope="module")
def replicas(shared_etcd: EtcdServer) -> Iterator[Dispatchers]:
    # Longer than the tests: only the launcher can give a shard back.
    with Dispatchers(shared_etcd.endpoint, "/test/mpi-shards/", count=1, trainer_seconds=600) as one:
        yield one


@pytest.fixture
def env(replicas: Dispatchers, prefix: str) -> dict[str, str]:
    """The variables of a pod of two hosts with a slot each, and with a dataset of its own."""
    return {
        "BIREME_DISPATCHER": replicas.addresses,
        "BIREME_DISPATCHER_DATASET": prefix.strip("/").replace("/", "-"),
        "BIREME_MPI_HOSTS": "127.0.1.{}",
        "BIREME_MPI_WORKERS": "2",
        "BIREME_MPI_SLOTS": "1",
    }


@pytest.fixture
def other(env: dict[str, str], pod: Pods, tmp_path: Path) -> Iterator[Dispatcher]:
    """Another trainer of the dataset of the ranks, which has one shard that must not fail."""
    # The pods' key, which is there once `pod` is, is a part of the dataset's name.
    pods = {**env, "BIREME_MPI_ROLE": "worker", "BIREME_MPI_KEY": str(tmp_path / "id_rsa")}
    dataset = for_trainers(pods)["BIREME_DISPATCHER_DATASET"]
    with Dispatcher(env["BIREME_DISPATCHER"], dataset, "other", 60) as other:
        other.add(["a"], failures=1)
        yield other


@pytest.fixture
def launch(pod: Pods, sshd: Sshd, env: dict[str, str], tmp_path: Path) -> Pods:
    """Start the launcher of both hosts, with this script as mpirun or horovodrun."""

    def launch(mpirun: str = "", horovodrun: str = "") -> subprocess.Popen[str]:
        sshd.start(*HOSTS)
        if mpirun:
            (tmp_path / "programs/mpirun").write_text(mpirun)
            (tmp_path / "programs/mpirun").chmod(0o755)
        elastic = {} if horovodrun else {"BIREME_MPI_LEAST": ""}
        role = {"BIREME_MPI_ROLE": "launcher", "BIREME_MPI_PORT": str(sshd.port), **elastic}
        return pod("#!/bin/sh\n", horovodrun, **env, **role)

    return launch


def status_of(trainer: Dispatcher) -> dict[str, Any]:
    return next(each for each in trainer.status()["datasets"] if each["dataset"] == trainer.dataset)


def test_a_launcher_that_loses_a_worker_gives_back_the_shards_without_a_failure(
    launch: Pods, sshd: Sshd, other: Dispatcher
) -> None:
    launcher = launch(mpirun=MPIRUN)
    until(lambda: status_of(other)["pending"] == 1, what="the rank to get the shard")
    sshd.stop(HOSTS[1])
    output, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == 75, output
    assert "127.0.1.1 went away while the program ran" in output
    status = status_of(other)
    assert (status["redispatched"], status["failedShards"]) == ({"released": 1}, [])
    assert [shard.name for shard in other.shards()] == ["a"]


def test_a_machine_that_died_is_waited_for_where_mpirun_ends_well_before_its_connection_breaks(
    launch: Pods, sshd: Sshd, tmp_path: Path
) -> None:
    launcher = launch(mpirun=ENDS_WELL)
    until((tmp_path / "runs").exists, what="mpirun to start")
    sshd.freeze(HOSTS[1])
    (tmp_path / "go").touch()
    time.sleep(4)
    sshd.stop(HOSTS[1])
    output, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == 75, output
    assert "127.0.1.1 went away while the program ran" in output


def test_a_launcher_that_is_no_worker_passes_sigterm_on_to_the_ranks_of_the_workers(
    launch: Pods, tmp_path: Path
) -> None:
    launcher = launch(mpirun=ENDED_BY_ANOTHER)
    until((tmp_path / "runs").exists, what="mpirun to start")
    launcher.terminate()
    assert launcher.wait(120) == 143
    assert (tmp_path / "passed-on").exists()


def test_a_worker_that_leaves_gives_back_its_ranks_shards_without_a_failure(
    pod: Pods, env: dict[str, str], other: Dispatcher, tmp_path: Path
) -> None:
    worker = pod(sshd=REMOVED, BIREME_MPI_ROLE="worker", **env)
    until(lambda: status_of(other)["pending"] == 1, what="the rank to get the shard")
    worker.terminate()
    (tmp_path / "go").touch()
    assert worker.wait(120) == 143
    assert status_of(other)["redispatched"] == {"released": 1}
    assert [shard.name for shard in other.shards()] == ["a"]


def test_an_elastic_job_that_ends_with_a_lost_worker_gives_back_its_shards(
    launch: Pods, sshd: Sshd, other: Dispatcher, tmp_path: Path
) -> None:
    launcher = launch(horovodrun=HOROVODRUN)
    until(lambda: status_of(other)["pending"] == 1, what="the rank to get the shard")
    sshd.stop(HOSTS[1])
    assert launcher.stdout
    line = iter(launcher.stdout.readline, "")
    until(lambda: "127.0.1.1 went away" in next(line))
    (tmp_path / "go").touch()
    assert launcher.wait(120) == 1
    assert status_of(other)["redispatched"] == {"released": 1}
    assert [shard.name for shard in other.shards()] == ["a"]
