"""Trainer 0 of a Paddle job is lost at random moments: the final model has each shard of each pass."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme_runtime.etcd import client as etcd
from bireme_runtime.paddle.run import Rules, Run, last_save, serve
from tests.runtime.dispatcher_replicas import Dispatchers, environment
from tests.runtime.etcd_servers import EtcdServer, free_port
from tests.support.tiers import core

SCRIPT = Path(__file__).with_name("paddle_script.py")
SHARDS, PASSES, TRAINERS = 6, 2, 2
SEEDS = 36
PREFIX = "/test/paddle-random/"
ALL = Counter((number, f"shard-{shard}") for number in range(PASSES) for shard in range(SHARDS))


@pytest.fixture(scope="module")
def dispatchers(shared_etcd: EtcdServer) -> Iterator[Dispatchers]:
    with Dispatchers(shared_etcd.endpoint, PREFIX, count=1) as replicas:
        yield replicas


@pytest.fixture(scope="module")
def pserver() -> Iterator[int]:
    """The port of something that accepts connections."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                listener.accept()
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


class Runs:
    """The runs of one job, one after the other, with the trainers' scripts but without supervisors."""

    def __init__(self, folder: Path, dispatchers: Dispatchers, name: str, pserver: int) -> None:
        self.folder = folder
        self.output = folder / "output"
        self.name = name
        self.dispatchers, self._pserver = dispatchers, pserver
        self._ends: list[threading.Timer] = []
        self.number = 0
        self.trainers: dict[int, subprocess.Popen[bytes]] = {}

    def begin(self) -> None:
        """Begin a run, with parameters from the last save."""
        self.number += 1
        rules = Rules(servers=1, trainers=TRAINERS, dynamic=True, max_restarts=0, lost_seconds=60)
        self._run = Run(rules, self.output, f"run-{self.number}")
        self._run.begin()
        self._port = free_port()
        self._server = serve(self._run, self._port)
        for index in range(TRAINERS):
            self.start(index)

    def start(self, index: int) -> None:
        save = self._run.save
        env = {
            **environment(),
            "PYTHONPATH": f"{environment()['PYTHONPATH']}:{os.getcwd()}",
            "TRAINING_ROLE": "TRAINER",
            "PADDLE_TRAINER_ID": str(index),
            "PADDLE_PSERVERS_IP_PORT_LIST": f"127.0.0.1:{self._pserver}",
            "BIREME_PADDLE_COORDINATOR": f"127.0.0.1:{self._port}",
            "BIREME_PADDLE_OUTPUT": str(self.output),
            "BIREME_PADDLE_ATTEMPT": str(self._run.attempt),
            "BIREME_PADDLE_FIRST_PASS": str(save.passes if save else 0),
            "BIREME_PADDLE_RESTORE": save.folder if save else "",
            "BIREME_DISPATCHER": self.dispatchers.addresses,
            "BIREME_DISPATCHER_DATASET": f"{self.name}-{self.number}",
            "BIREME_TRAINER": f"trainer-{index}",
            "BIREME_SAVE_STEPS": "5",
        }
        command = [sys.executable, str(SCRIPT), str(self.folder), str(SHARDS), str(PASSES), "0.02"]
        with (self.folder / f"trainer-{index}.log").open("ab") as log:
            self.trainers[index] = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def until_trained(self, shards: int) -> None:
        """Wait for the parameters to have so many shards, or for the end."""
        live = self.folder / f"parameters-{self._run.attempt}"
        while any(trainer.poll() is None for trainer in self.trainers.values()):
            if live.exists() and len(live.read_text().splitlines()) >= shards:
                return
            time.sleep(0.005)

    def end(self, how: signal.Signals, *indices: int) -> None:
        for index in indices:
            self.trainers[index].send_signal(how)
        for index in indices:
            assert self.trainers.pop(index).wait(120) in (0, 143, -how), self.log(index)

    def end_leases(self, index: int, seconds: float) -> None:
        """End the lease of a killed trainer after so many seconds, as if it had not been renewed."""
        leases = self.dispatchers.leases_of(f"{self.name}-{self.number}-", f"trainer-{index}")
        self._ends.append(threading.Timer(seconds, self.dispatchers.end_leases, [leases]))
        self._ends[-1].start()

    def close(self) -> None:
        """End the run, wherever it is."""
        for end in self._ends:
            end.join()
        for trainer in self.trainers.values():
            trainer.kill()
            trainer.wait()
        self._server.close()

    def log(self, index: int) -> str:
        return (self.folder / f"trainer-{index}.log").read_text()


def passes_of(client: etcd.Client, dataset: str) -> list[int]:
    """How many shards each pass that is over had done."""
    found = client.range(f"{PREFIX}d/{dataset}/passes/").keys
    return [int(json.loads(each.value)["done"]) for each in found]


@pytest.mark.parametrize("seed", core(*range(6), of=range(SEEDS)))
def test_each_shard_is_in_the_final_model_once_whenever_trainer_0_is_lost(
    seed: int, tmp_path: Path, dispatchers: Dispatchers, prefix: str, shared_etcd: EtcdServer, pserver: int
) -> None:
    dice = random.Random(seed)
    runs = Runs(tmp_path, dispatchers, prefix.strip("/").replace("/", "-"), pserver)
    runs.output.mkdir()
    in_hand, kills = 0, 0
    runs.begin()
    try:
        for _ in range(dice.randint(1, 3)):
            runs.until_trained(dice.randint(0, sum(ALL.values())))
            time.sleep(dice.uniform(0, 0.1))
            if dice.random() < 0.25:
                runs.end(signal.SIGTERM, *range(TRAINERS))
                runs.close()
                runs.begin()
                in_hand += TRAINERS
            else:
                how = dice.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGKILL])
                runs.end(how, 0)
                if how == signal.SIGKILL:
                    kills += 1
                    runs.end_leases(0, dice.uniform(0, 2))
                runs.start(0)
        for index in range(TRAINERS):
            assert runs.trainers[index].wait(120) == 0, runs.log(index)
    finally:
        runs.close()
    save = last_save(runs.output)
    assert save is not None
    assert (save.passes, save.trained, Path(save.folder).name) == (PASSES, (), f"pass-{PASSES - 1:05d}")
    lines = [line.split() for line in (Path(save.folder) / "model").read_text().splitlines()]
    model = Counter((int(number), name) for number, name in lines)
    assert set(model) == set(ALL)
    assert sum(model.values()) - sum(ALL.values()) <= in_hand + kills
    if runs.number == 1:
        client = etcd.client_from(shared_etcd.endpoint, {}, 3.0)
        assert passes_of(client, f"{runs.name}-1-1") == [SHARDS] * PASSES
    finals = (tmp_path / "saves").read_text().count(f"pass-{PASSES - 1:05d}")
    assert 1 <= finals <= 1 + kills
