"""What the threads of a client of etcd share: endpoints and their order, connections, and one login."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from bireme_runtime.etcd.history import History
from bireme_runtime.etcd.messages import AuthError
from bireme_runtime.process.http import Address, Connections, parse_address

DEFAULT_PORT = 2379
# Without an answer for so long, a login is thought to be one of an etcd that lost its data.
_DOUBT_SECONDS = 10.0
# Seconds for which an endpoint whose name has no address is not asked.
_ADDRESS_SECONDS = 30.0


@dataclass(frozen=True)
class Endpoint:
    """Where an etcd server listens."""

    scheme: str
    address: Address

    def __str__(self) -> str:
        return f"{self.scheme}://{self.address}"


@dataclass(frozen=True)
class Credentials:
    """How a client authenticates: files for TLS, a user and a password. All are optional."""

    username: str = ""
    password: str = field(default="", repr=False)
    cacert: str = ""
    cert: str = ""
    key: str = ""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Credentials:
        """Read BIREME_ETCD_USERNAME, _PASSWORD, _CACERT, _CERT and _KEY."""
        names = ("username", "password", "cacert", "cert", "key")
        return cls(**{name: env.get(f"BIREME_ETCD_{name.upper()}", "") for name in names})


def parse_endpoints(text: str, scheme: str = "http") -> tuple[Endpoint, ...]:
    """Parse `host:port[,host:port…]`; a part may carry its own scheme, the port defaults to 2379.

    Raises ValueError for a part that is not an endpoint.
    """
    return tuple(_parse_endpoint(part.strip(), scheme) for part in text.split(",") if part.strip())


def _parse_endpoint(text: str, scheme: str) -> Endpoint:
    rest = text.rstrip("/")
    if "://" in rest:
        scheme, rest = rest.split("://", 1)
    try:
        if scheme not in ("http", "https"):
            raise ValueError(scheme)
        return Endpoint(scheme, parse_address(rest, DEFAULT_PORT))
    except ValueError:
        sentence = f"{text!r} is not an etcd endpoint; write host:port or https://host:port"
        raise ValueError(sentence) from None


class Shared:
    """What the threads of a client, and its variants with other timeouts, share."""

    def __init__(self, endpoints: tuple[Endpoint, ...], history: History) -> None:
        self.history = history
        self.lock = threading.Lock()
        self.connections = Connections(4)
        self.logging_in = threading.Lock()
        self.login_pace = _LoginPace()
        self.token = ""
        # Tokens that etcd did not take.
        self.refused: set[str] = set()
        # When a request with the login was answered last.
        self.answered = time.monotonic()
        self.revision = 0
        self._endpoints = endpoints
        self._preferred = secrets.randbelow(len(endpoints))
        self._without_address: dict[Endpoint, float] = {}
        self._waiting: list[tuple[Endpoint, socket.socket]] = []

    def in_order(self) -> tuple[Endpoint, ...]:
        """The endpoints from the preferred one on, without those whose names had no address lately."""
        first, now = self._preferred, time.monotonic()
        turned = self._endpoints[first:] + self._endpoints[:first]
        return tuple(e for e in turned if self._without_address.get(e, now) <= now) or turned

    def prefer(self, endpoint: Endpoint) -> None:
        """Ask this endpoint first from now on."""
        self._preferred = self._endpoints.index(endpoint)

    def avoid(self, endpoint: Endpoint) -> None:
        """Ask this endpoint last from now on."""
        self._preferred = (self._endpoints.index(endpoint) + 1) % len(self._endpoints)

    def has_no_address(self, endpoint: Endpoint) -> None:
        """Leave the endpoint out for a while, so that an outage of etcd is none of the DNS."""
        self._without_address[endpoint] = time.monotonic() + _ADDRESS_SECONDS

    def doubt(self, token: str, error: BaseException) -> None:
        """No request with this login is answered any more: the next goes without, and so asks for another.

        etcd holds a request whose login is of a later point of its log than it has reached, and after it has
        lost its data that is for ever. A slow etcd answers some, and has enough to do without logins.
        """
        silent = time.monotonic() - self.answered > _DOUBT_SECONDS
        if token and silent and isinstance(error, socket.timeout):
            with self.lock:
                self.refused.add(token)
                if self.token == token:
                    self.token = ""

    @contextlib.contextmanager
    def waiting(self, endpoint: Endpoint, sock: socket.socket) -> Iterator[None]:
        """Around waiting for something from the endpoint, which `give_up` may end."""
        pair = (endpoint, sock)
        with self.lock:
            self._waiting.append(pair)
        try:
            yield
        finally:
            with self.lock:
                self._waiting.remove(pair)

    def give_up(self, endpoint: Endpoint) -> None:
        """End all waiting for the endpoint."""
        with self.lock:
            for sock in (sock for each, sock in self._waiting if each == endpoint):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


class _LoginPace:
    """When to log in: spread over 5 s, and over twice as long after each failure, up to 80 s.

    The first login is at once, or spread over `first_window`, the seconds that etcd needs for all clients.
    """

    def __init__(self) -> None:
        self.first_window = 0.0
        self._failures = 0
        self._due = 0.0
        # What etcd has said of the last login, if it has refused that.
        self.denied: AuthError | None = None

    def wait(self, seconds: float, at_once: bool) -> bool:
        """Wait for the turn, at most so many seconds; returns whether it has come. The first is at once."""
        if not self._due:
            window = 5.0 * 2 ** min(self._failures, 4)
            if at_once and not self._failures:
                window = self.first_window
            self._due = time.monotonic() + random.uniform(0, window)
        remaining = self._due - time.monotonic()
        time.sleep(max(0.0, min(remaining, seconds)))
        if remaining > seconds:
            return False
        self._due = 0.0
        self._failures += 1
        return True

    def reset(self) -> None:
        """The login has succeeded."""
        self._failures, self.denied = 0, None


def tls_context(credentials: Credentials) -> ssl.SSLContext:
    """What TLS needs. Raises ValueError for a file that does not exist."""
    for path in (credentials.cacert, credentials.cert, credentials.key):
        if path and not os.path.isfile(path):
            raise ValueError(f"the TLS file {path} does not exist")
    context = ssl.create_default_context(cafile=credentials.cacert or None)
    if credentials.cert:
        context.load_cert_chain(credentials.cert, credentials.key or None)
    return context
