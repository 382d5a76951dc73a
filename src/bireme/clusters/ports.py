"""Reservations of TCP ports of this machine among processes of Bireme.

A process reserves a TCP port by holding the UDP socket of the same number. That disturbs no other program,
and the kernel releases it however the process ends.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

from bireme.core.errors import BiremeError

# Below the range from which the kernel takes the ports of outgoing connections.
_RANGE = range(10_000, 32_000)


@contextlib.contextmanager
def reserved(count: int) -> Iterator[list[int]]:
    """``count`` free TCP ports; no other process of Bireme gets them while the block runs.

    Raises BiremeError when there are not so many.
    """
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        for port in random.sample(_RANGE, k=2000):
            if len(ports) == count:
                break
            marker = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            if reserve(marker, port) and is_free(port):
                ports.append(port)
        if len(ports) < count:
            raise BiremeError(f"no {count} free TCP ports in {_RANGE.start}-{_RANGE.stop}")
        yield ports


def reserve(marker: socket.socket, port: int) -> bool:
    """Reserve ``port`` with the UDP socket ``marker``; False when another process has it."""
    try:
        marker.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def is_free(port: int) -> bool:
    """Whether no program listens on TCP ``port``."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Servers set this too: a port with connections in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return reserve(probe, port)
