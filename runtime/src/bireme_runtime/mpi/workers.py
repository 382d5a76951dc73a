"""Which workers of a job answer: the launcher keeps a connection to the sshd of each."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from bireme_runtime.mpi.ssh import greet, is_broken

_PARALLEL_CONNECTIONS = 32


@dataclass
class Workers:
    """Connections to those of ``hosts`` whose sshd answers on ``port``."""

    hosts: Sequence[str]
    port: int
    _connections: dict[str, socket.socket] = field(default_factory=dict)

    @property
    def present(self) -> list[str]:
        """The hosts that answer."""
        return [host for host in self.hosts if host in self._connections]

    @property
    def missing(self) -> list[str]:
        """The hosts that do not answer."""
        return [host for host in self.hosts if host not in self._connections]

    @property
    def own_address(self) -> str:
        """This pod's address, as the workers see it."""
        address: str = self._connections[self.present[-1]].getsockname()[0]
        return address

    def greet_missing(self) -> list[str]:
        """Try to connect to the missing hosts; returns those that answer now."""
        missing = self.missing
        with ThreadPoolExecutor(_PARALLEL_CONNECTIONS) as pool:
            answers = pool.map(lambda host: greet(host, self.port), missing)
        came = {host: answer for host, answer in zip(missing, answers) if answer}
        self._connections.update(came)
        return list(came)

    def silent(self) -> list[str]:
        """The hosts that answer no new connection, although the old one has not broken."""
        present = self.present
        with ThreadPoolExecutor(_PARALLEL_CONNECTIONS) as pool:
            answers = list(pool.map(lambda host: greet(host, self.port), present))
        for each in filter(None, answers):
            each.close()
        return [host for host, answer in zip(present, answers) if answer is None]

    def drop_lost(self) -> list[str]:
        """Forget the hosts whose connection broke; returns them."""
        lost = [host for host in self.present if is_broken(self._connections[host])]
        for host in lost:
            self._connections.pop(host).close()
        return lost
