"""Real replicas of the dispatcher, each a process of its own, for its tests and benchmarks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bireme_runtime.etcd import client as etcd
from tests.runtime.etcd_servers import RUNTIME, free_port
from tests.support import waiting

COMMAND = [sys.executable, "-m", "bireme_runtime.dispatcher"]
until = partial(waiting.until, every=0.02)


@dataclass
class Dispatchers:
    """Replicas on loopback. The leases of trainers and of the leader live for so many seconds.

    A test that needs no lease to end has long leases, because a busy machine may stand still for seconds.
    """

    etcd: str
    prefix: str
    count: int = 2
    trainer_seconds: int = 60
    leader_seconds: int = 30
    host: str = "127.0.0.1"
    token: str = ""
    ports: list[int] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Dispatchers:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Dispatchers:
        self.ports = [free_port(self.host) for _ in range(self.count)]
        self.processes = [self.process(port) for port in self.ports]
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        for port in self.ports:
            until(lambda port=port: self.get(port, "/readyz")[0] == 200, what=f"replica {port}")  # type: ignore[misc]

    def process(self, port: int) -> subprocess.Popen[bytes]:
        settings = {
            "BIREME_ETCD_ENDPOINTS": self.etcd,
            "BIREME_DISPATCHER_PREFIX": self.prefix,
            "BIREME_DISPATCHER_LISTEN": f"{self.host}:{port}",
            "BIREME_DISPATCHER_ADVERTISE": f"{self.host}:{port}",
            "BIREME_DISPATCHER_LEADER_SECONDS": str(self.leader_seconds),
            "BIREME_DISPATCHER_TRAINER_SECONDS": str(self.trainer_seconds),
            "BIREME_RELEASE_TOKEN": self.token,
        }
        return subprocess.Popen([*COMMAND, "serve"], env={**environment(), **settings})

    @property
    def addresses(self) -> str:
        return ",".join(f"{self.host}:{port}" for port in self.ports)

    def leader(self) -> int:
        """The replica that leads; waits until there is one."""
        leaders: list[int] = []

        def there_is_one() -> bool:
            leaders[:] = [n for n, port in enumerate(self.ports) if self.get(port, "/readyz")[1].get("leads")]
            return len(leaders) == 1

        until(there_is_one, what="a leader")
        return leaders[0]

    def kill(self, number: int, how: signal.Signals = signal.SIGKILL) -> None:
        self.processes[number].send_signal(how)
        self.processes[number].wait(120)

    def restart(self, number: int, port: int | None = None) -> None:
        self.ports[number] = port or self.ports[number]
        self.processes[number] = self.process(self.ports[number])

    def get(self, port: int, path: str) -> tuple[int, dict[str, Any]]:
        """Status and body of a GET; (0, {}) when there is no answer."""
        try:
            with urllib.request.urlopen(f"http://{self.host}:{port}{path}", timeout=5) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, {}

    def leases_of(self, dataset: str, trainer: str) -> set[int]:
        """The leases of a trainer of this dataset, or of one whose name begins so."""
        found = etcd.Client(etcd.parse_endpoints(self.etcd)).range(f"{self.prefix}trainers/{dataset}").keys
        return {kv.lease for kv in found if f"/{trainer}." in kv.key}

    def end_leases(self, leases: set[int]) -> None:
        """End leases of trainers that were killed, as they would end by themselves after their time."""
        for lease in leases:
            etcd.Client(etcd.parse_endpoints(self.etcd)).lease_revoke(lease)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def environment() -> dict[str, str]:
    """PYTHONPATH as in pods, and none of this machine's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BIREME_")}
    return {**kept, "PYTHONPATH": str(RUNTIME), "PYTHONDONTWRITEBYTECODE": "1"}
