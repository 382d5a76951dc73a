"""HTTP between the processes of a job: addresses and connections."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bireme_runtime.process.errors import Unreachable
from bireme_runtime.process.waiting import readable

BROKEN = (OSError, http.client.HTTPException)
"""What http.client raises when a connection cannot be made or breaks."""
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Address:
    """A host and a port. The host of an IPv6 address has no brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, default_port: int = 0) -> Address:
    """Parse `HOST:PORT` or `[IPV6]:PORT`; the port may be missing when there is a default.

    Raises ValueError.
    """
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.lstrip(":")
    else:
        host, _, port = text.partition(":")
    if not host or "/" in text or not (port.isdigit() or (default_port and not port)):
        raise ValueError(f"{text!r} is not HOST:PORT")
    return Address(host, int(port or default_port))


def reason(error: BaseException) -> str:
    """A few words for an exception of a connection."""
    if isinstance(error, socket.timeout):
        return "timed out"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def accepts(address: Address, timeout: float) -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((address.host, address.port), timeout).close()
    except OSError:
        return False
    return True


def connect(
    address: Address, timeout: float, tls: ssl.SSLContext | None = None, proxy: Address | None = None
) -> http.client.HTTPConnection:
    """A new connection that sends small requests without delay; with TLS when there is a context.

    Through `proxy`, TLS goes in a tunnel; without TLS, requests have to name the whole URL. Raises OSError.
    """
    host, port = (proxy or address).host, (proxy or address).port
    connection = (
        http.client.HTTPSConnection(host, port, timeout=timeout, context=tls)
        if tls
        else http.client.HTTPConnection(host, port, timeout=timeout)
    )
    if proxy and tls:
        connection.set_tunnel(address.host, address.port)
    try:
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        connection.close()
        raise
    return connection


@dataclass(frozen=True)
class Reply:
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connections:
    """Open connections that wait for their next request, at most so many, by where they lead."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._idle: list[tuple[object, http.client.HTTPConnection]] = []

    def take(self, place: object) -> http.client.HTTPConnection | None:
        """The one that was used last, if it is still open. Whoever takes it keeps or closes it."""
        with self._lock:
            found = [each for each in self._idle if each[0] == place][-1:]
            for each in found:
                self._idle.remove(each)
        for _, connection in found:
            # One that the server has closed is readable. A request on it would fail.
            if connection.sock is not None and not readable(connection.sock):
                return connection
            connection.close()
        return None

    def keep(self, place: object, connection: http.client.HTTPConnection) -> None:
        """Keep a connection for the next request, unless there are enough."""
        with self._lock:
            if len(self._idle) < self._most:
                self._idle.append((place, connection))
                return
        connection.close()


class Connection:
    """A connection to one server that is kept between requests. For one thread at a time.

    Where there is a token, requests show it.
    """

    def __init__(
        self, address: Address, timeout: float, tls: ssl.SSLContext | None = None, token: str = ""
    ) -> None:
        self.address = address
        self._timeout = timeout
        self._tls = tls
        self._token: Mapping[str, str] = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        timeout: float | None = None,
    ) -> Reply:
        """Send a request and read the whole response. Raises Unreachable; the next request connects again."""
        try:
            if self._connection is None:
                self._connection = connect(self.address, timeout or self._timeout, self._tls)
            elif self._connection.sock is not None:
                self._connection.sock.settimeout(timeout or self._timeout)
            self._connection.request(method, path, body, {**headers, **self._token})
            response = self._connection.getresponse()
            return Reply(response.status, dict(response.headers.items()), response.read())
        except BROKEN as error:
            self.close()
            raise Unreachable(f"{self.address}: {reason(error)}") from error

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def fetch(
    address: Address,
    path: str,
    timeout: float,
    tls: ssl.SSLContext | None = None,
    headers: Mapping[str, str] = _NO_HEADERS,
) -> Reply:
    """One GET on a connection of its own. Raises Unreachable."""
    with contextlib.closing(Connection(address, timeout, tls)) as connection:
        return connection.ask("GET", path, headers=headers)
