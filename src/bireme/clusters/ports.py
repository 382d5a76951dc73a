"""TCP ports of this machine that processes of Bireme are given, one at a time.

The UDP port of the same number is the reservation: it is in nobody's way, and the kernel gives it back
however a process ends.
"""

from __future__ import annotations

import socket


def reserve(marker: socket.socket, port: int) -> bool:
    """Whether the UDP socket ``marker`` now reserves ``port``; not if somebody else does."""
    try:
        marker.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def is_free(port: int) -> bool:
    """Whether no program listens on TCP ``port``."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connection is still winding down is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return reserve(probe, port)
