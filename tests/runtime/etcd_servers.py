"""Real etcd servers on loopback ports, for the tests of the runtime."""

from __future__ import annotations

import contextlib
import json
import math
import random
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bireme.clusters import ports
from bireme_runtime.etcd.server import auth
from bireme_runtime.process.errors import BiremeError
from bireme_runtime.process.log import log_of

# The folder that pods have on PYTHONPATH.
RUNTIME = Path(__file__).parents[2] / "runtime" / "src"


# The newest reservations of this process. Older ones end, because their servers listen by then.
_RESERVATIONS: deque[socket.socket] = deque()
_MOST_RESERVATIONS = 100


def free_port(host: str = "127.0.0.1") -> int:
    """A port on which nothing listens, and which no other process of the tests gets meanwhile.

    It is below those that the kernel gives to connections.
    """
    while True:
        port = random.SystemRandom().randrange(12000, 30000)
        marker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind((host, port))
            if ports.reserve(marker, port):
                _RESERVATIONS.append(marker)
                if len(_RESERVATIONS) > _MOST_RESERVATIONS:
                    _RESERVATIONS.popleft().close()
                return port
        marker.close()


@dataclass
class EtcdServer:
    """One etcd process; a cluster of its own unless a configuration file makes it a member of another."""

    binary: Path
    folder: Path
    port: int = field(default_factory=free_port)
    peer_port: int = field(default_factory=free_port)
    options: tuple[str, ...] = ()
    config: Path | None = None
    host: str = "127.0.0.1"
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self, wait: bool = True) -> EtcdServer:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(self._command(), stdout=log, stderr=log)
        if wait:
            self.wait_until_healthy()
        return self

    def _command(self) -> list[str]:
        if self.config:
            return [str(self.binary), f"--config-file={self.config}"]
        client, peer = f"http://{self.endpoint}", f"http://127.0.0.1:{self.peer_port}"
        return [
            str(self.binary),
            f"--data-dir={self.folder / 'data'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
            *self.options,
        ]

    def wait_until_healthy(self, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process is None or self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"http://{self.endpoint}/health", timeout=2) as answer:
                    if json.load(answer)["health"] == "true":
                        return
            except OSError:
                time.sleep(0.03)
        raise AssertionError(f"etcd did not come up:\n{(self.folder / 'log').read_text()[-2000:]}")

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        """Kill the process; the data remains."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def request(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """One request to the gateway, without the client under test."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.endpoint}{path}", data)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return dict(json.load(answer))


NewEtcd = Callable[..., EtcdServer]
"""The fixture ``new_etcd``: it makes a server that the test may stop, with these options of etcd."""


def new_cluster(binary: Path, folder: Path, size: int = 3) -> list[EtcdServer]:
    """Members of one cluster, which are up."""
    servers = [EtcdServer(binary, folder / f"member-{number}") for number in range(size)]
    peers = ",".join(f"m{n}=http://127.0.0.1:{server.peer_port}" for n, server in enumerate(servers))
    for number, server in enumerate(servers):
        server.options = (f"--name=m{number}", f"--initial-cluster={peers}")
        server.start(wait=False)
    for server in servers:
        server.wait_until_healthy()
    return servers


class Proxy:
    """A proxy between clients and an etcd server that can simulate network failures.

    `mode` is "pass", "lose answers" (requests arrive, what comes back is cut off), "silent" (nothing passes,
    nothing is refused: a partition) or "refuse". Of answers no more than ``budget`` bytes pass.
    """

    budget = math.inf

    def __init__(self, target: int) -> None:
        self.target = target
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.mode = "pass"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Close all connections."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for sock in (sock for pair in pairs for sock in pair):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            if self.mode == "refuse":
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._pairs.append((near, far))
            threading.Thread(target=self._pump, args=(near, far, "request"), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, "answer"), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.budget -= len(data) if direction == "answer" else 0
                while self.mode == "silent" or (self.budget < 0 and self.mode == "pass"):
                    time.sleep(0.02)
                if self.mode == "refuse" or (self.mode == "lose answers" and direction == "answer"):
                    break
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def set_up_users(env: Mapping[str, str]) -> bool:
    """Set etcd's users up once, as its pod does; whether it succeeded. What is wrong is in the log."""
    say = log_of("users")
    try:
        auth.set_up_all(env, say)
    except (BiremeError, ValueError) as error:
        say(str(error))
        return False
    return True
