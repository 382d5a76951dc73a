"""The small HTTP server of all ports of a job, asked by strangers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from bireme_runtime.process.server import Background, Request, Response
from tests.support.waiting import until

# A client that reaches the server by its token may wait longer than the others for its next request.
TOKEN = b"Authorization: Bearer secret\r\n"


@pytest.fixture
def idle_seconds() -> float:
    return 60


@pytest.fixture
def token() -> str:
    return ""


@pytest.fixture
def served(idle_seconds: float, token: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Background]:
    """A server for two connections at a time, which answers with the length of the body."""
    monkeypatch.setattr("bireme_runtime.process.server._IDLE_SECONDS", idle_seconds)

    def answer(request: Request) -> Response:
        if request.path == "/fails":
            raise RuntimeError("as a fault of the program does")
        return Response(200, str(len(request.body)).encode())

    server = Background(answer, "", 0, token, 2)
    yield server
    server.close()


@pytest.fixture
def port(served: Background) -> int:
    return served.port


def said(port: int, request: bytes, host: str = "127.0.0.1") -> bytes:
    """What the server answers until it closes the connection."""
    with socket.create_connection((host, port), timeout=60) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(4096), b""))


def closed_without_an_answer(client: socket.socket, request: bytes) -> bool:
    try:
        client.sendall(request)
        return client.recv(100) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_body_is_read_whichever_family_of_addresses_the_client_has(port: int, host: str) -> None:
    answer = said(port, b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc", host)
    assert answer.endswith(b"\r\n\r\n3")


@pytest.mark.parametrize(
    ("method", "length", "status"),
    [
        (b"POST", b"400000000", b"413"),
        (b"GET", b"100000", b"413"),
        (b"GET", b"-1", b"400"),
        (b"GET", b"x", b"400"),
        (b"GET", b"\xb2", b"400"),
        (b"DELETE", b"0", b"405"),
    ],
)
def test_a_request_that_is_too_long_or_unusual_is_not_read(
    port: int, method: bytes, length: bytes, status: bytes
) -> None:
    answer = said(port, method + b" / HTTP/1.1\r\nContent-Length: " + length + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("head", [b"A: " + 100_000 * b"a", 50_000 * b"A: a\r\n"], ids=["line", "lines"])
def test_a_head_without_an_end_ends_the_connection(port: int, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        assert closed_without_an_answer(client, b"GET / HTTP/1.1\r\n" + head)


@pytest.mark.parametrize("idle_seconds", [0.5])
@pytest.mark.parametrize(
    "request_", [b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc"]
)
def test_a_connection_without_a_whole_request_is_closed(port: int, request_: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        assert closed_without_an_answer(client, request_)


def test_large_bodies_wait_for_each_other_and_other_requests_do_not() -> None:
    server = Background(lambda request: Response(200, str(len(request.body)).encode()), "", 0)
    head = b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 1000000\r\n\r\n"
    connections = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(17)]
    *unfinished, last = connections
    for each in unfinished:
        each.sendall(head + b"half of it")
    for _ in range(3):
        assert said(server.port, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").endswith(b"\r\n\r\n0")
    threading.Thread(target=last.sendall, args=(head + 1_000_000 * b"a",), daemon=True).start()
    last.settimeout(1)
    with pytest.raises(TimeoutError):
        last.recv(100)
    unfinished[0].close()
    last.settimeout(60)
    assert last.recv(100).startswith(b"HTTP/1.1 200 ")
    for each in connections:
        each.close()
    server.close()


def test_connections_beyond_the_limit_are_closed_at_once(port: int) -> None:
    request = b"GET / HTTP/1.1\r\n\r\n"
    first, second = (socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(2))
    with first, second:
        for each in (first, second):
            each.sendall(request)
            assert each.recv(100).startswith(b"HTTP/1.1 200 ")
        with socket.create_connection(("127.0.0.1", port), timeout=60) as third:
            assert closed_without_an_answer(third, request)


@pytest.mark.parametrize("token", ["secret"])
@pytest.mark.parametrize(
    "shown", [b"", b"Authorization: Bearer other\r\n", b"Authorization: Bearer \xb2\r\n"]
)
def test_what_changes_state_needs_the_token_before_its_body_is_read(port: int, shown: bytes) -> None:
    assert said(port, b"POST / HTTP/1.1\r\n" + shown + b"Content-Length: 1000000\r\n\r\n").startswith(
        b"HTTP/1.1 403 "
    )
    assert said(port, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("token", ["secret"])
@pytest.mark.parametrize("idle_seconds", [6.0])
def test_a_client_with_the_token_may_be_idle_for_longer(port: int) -> None:
    request = b"POST / HTTP/1.1\r\n" + TOKEN + b"Content-Length: 1\r\n\r\na"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(request)
        assert client.recv(1000).endswith(b"\r\n\r\n1")
        # The connection of a stranger ends meanwhile.
        assert said(port, b"GET / HTTP/1.1\r\n") == b""
        client.sendall(request)
        assert client.recv(1000).endswith(b"\r\n\r\n1")


def test_a_fault_of_the_program_is_an_answer_and_the_next_request_is_served(port: int) -> None:
    assert said(port, b"GET /fails HTTP/1.1\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 500 ")
    assert said(port, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_after_its_end_a_server_leaves_no_thread_and_no_port() -> None:
    threads = threading.active_count()
    for _ in range(3):
        server = Background(lambda request: Response(200), "127.0.0.1", 0)
        said(server.port, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        server.close()
    until(lambda: threading.active_count() <= threads, what="the threads to end")
    with pytest.raises(ConnectionError):
        said(server.port, b"")
