"""Reservations of TCP ports of this machine among processes of Bireme.

A process reserves a TCP port by holding the UDP socket of the same number. That disturbs no other program,
and the kernel releases it however the process ends.
"""

from __future__ import annotations

import socket


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
