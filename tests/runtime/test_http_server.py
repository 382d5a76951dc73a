"""The small HTTP server of metrics, pserver 0 and etcd's side car, asked by strangers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from bireme_runtime.process import http


@pytest.fixture
def idle_seconds() -> float:
    return 60


@pytest.fixture
def port(idle_seconds: float) -> Iterator[int]:
    """A server for two connections at a time, which answers with the length of the body."""
    server = http.serve(lambda path, body: (200, str(len(body)).encode()), "127.0.0.1", 0, 2, idle_seconds)
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def said(port: int, request: bytes) -> bytes:
    """What the server answers until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(4096), b""))


def closed_without_an_answer(client: socket.socket, request: bytes) -> bool:
    try:
        client.sendall(request)
        return client.recv(100) == b""
    except ConnectionError:
        return True


def test_a_body_is_read(port: int) -> None:
    answer = said(port, b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc")
    assert answer.endswith(b"\r\n\r\n3")


@pytest.mark.parametrize("length", [b"400000000", b"-1", b"x", b"\xb2"])
def test_a_body_that_is_too_long_or_of_no_length_is_not_read(port: int, length: bytes) -> None:
    answer = said(port, b"GET / HTTP/1.1\r\nContent-Length: " + length + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("idle_seconds", [0.5])
def test_a_connection_without_a_request_is_closed(port: int) -> None:
    assert said(port, b"GET / HTTP/1.1\r\n") == b""


def test_connections_beyond_the_limit_are_closed_at_once(port: int) -> None:
    request = b"GET / HTTP/1.1\r\n\r\n"
    first, second = (socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(2))
    with first, second:
        for each in (first, second):
            each.sendall(request)
            assert each.recv(100).startswith(b"HTTP/1.1 200 ")
        with socket.create_connection(("127.0.0.1", port), timeout=60) as third:
            assert closed_without_an_answer(third, request)
