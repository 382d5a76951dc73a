"""A small HTTP/1.1 server for the ports of a job, which anybody in the cluster may try.

Heads, bodies, connections and the time for each are bounded. What changes state is a POST, and it needs the
token of the release where there is one (BIREME_RELEASE_TOKEN). Only who has shown it may be idle for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from bireme_runtime.process.errors import BiremeError
from bireme_runtime.process.threads import in_thread

_LARGEST_BODY = 4 * 1024 * 1024
_LARGE_BODY = 64 * 1024
_LARGE_BODIES_AT_ONCE = 16
_IDLE_SECONDS = 60.0
_KNOWN_IDLE_SECONDS = 3600.0

log = logging.getLogger("bireme_runtime")


@dataclass(frozen=True)
class Request:
    """A request. `target` is as sent, `path` is decoded and without the query."""

    method: str
    target: str
    path: str
    query: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body, a JSON object. Raises ValueError."""
        try:
            record = json.loads(self.body or b"{}")
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise ValueError("the body must be a JSON object")
        return record


@dataclass(frozen=True)
class Response:
    """A response. `body` is JSON unless `headers` has another Content-Type."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, status: int, body: Any, headers: Mapping[str, str] | None = None) -> Response:
        """A response in JSON."""
        return cls(status, json.dumps(body).encode(), headers or {})

    def encode(self) -> bytes:
        """The bytes to send."""
        headers = {"Content-Type": "application/json", **self.headers, "Content-Length": len(self.body)}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        phrase = HTTPStatus(self.status).phrase
        return f"HTTP/1.1 {self.status} {phrase}\r\n{head}\r\n".encode() + self.body


Handler = Callable[[Request, Callable[[], bool]], Awaitable[Response]]
"""Answers a request. Its second argument tells whether the client is still connected."""


class _Refused(BiremeError):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """The server of a handler, for ``most`` connections at once. Further ones are closed at once."""

    def __init__(self, handler: Handler, token: str = "", most: int = 100) -> None:
        self._handler = handler
        self._bearer = f"Bearer {token}".encode() if token else b""
        self._most = most
        self._connections = 0

    async def serve(self, listener: socket.socket, over: asyncio.Event) -> None:
        """Serve until ``over`` is set."""
        self._large_bodies = asyncio.Semaphore(_LARGE_BODIES_AT_ONCE)
        server = await asyncio.start_server(self._connected, sock=listener)
        try:
            await over.wait()
        finally:
            server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= self._most:
                await self._answer_all(reader, writer)
        except _Refused as error:
            writer.write(Response.of(error.status, {"error": str(error)}).encode())
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError, OSError):
            # The client has disconnected, or the service ends.
            pass
        finally:
            self._connections -= 1
            with contextlib.suppress(OSError):
                writer.close()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        later, abort = asyncio.get_running_loop().call_later, writer.transport.abort
        seconds, keep = _IDLE_SECONDS, True
        while keep:
            limit = later(seconds, abort)
            try:
                request, keep = await self._read(reader)
            finally:
                limit.cancel()
            if self._bearer and request.method == "POST":
                seconds = _KNOWN_IDLE_SECONDS
            try:
                response = await self._handler(request, lambda: not reader.at_eof())
            except Exception:
                log.exception("%s %s", request.method, request.target)
                response = Response.of(500, {"error": "the server failed; see its log"})
            limit = later(_IDLE_SECONDS, abort)
            writer.write(response.encode())
            await writer.drain()
            limit.cancel()

    async def _read(self, reader: asyncio.StreamReader) -> tuple[Request, bool]:
        """The next request, and whether the connection stays open after it."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        words = first.split(" ")
        if len(words) != 3:
            raise _Refused(400, "this is not HTTP")
        method, target, version = words
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        if method not in ("GET", "POST"):
            raise _Refused(405, "there are GET and POST")
        shown = headers.get("authorization", "").encode("latin-1")
        if method == "POST" and self._bearer and not hmac.compare_digest(shown, self._bearer):
            raise _Refused(403, "a POST needs the token of the release (BIREME_RELEASE_TOKEN)")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or "transfer-encoding" in headers:
            raise _Refused(400, "a body needs a Content-Length")
        if int(length) > (_LARGEST_BODY if method == "POST" else _LARGE_BODY):
            raise _Refused(413, f"a body of {length} bytes is too large")
        async with self._large_bodies if int(length) > _LARGE_BODY else contextlib.AsyncExitStack():
            body = await reader.readexactly(int(length))
        try:
            parts = urlsplit(target)
        except ValueError:
            raise _Refused(400, "the path is no path") from None
        keep = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        return Request(method, target, unquote(parts.path), dict(parse_qsl(parts.query)), body), keep


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. A host for all addresses stands for those of both families, where there are both.

    Raises OSError, for example when the port is in use.
    """
    is_dual = host in ("", "0.0.0.0", "::") and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual or ":" in host else socket.AF_INET
    address = ("" if is_dual else host, port)
    return socket.create_server(address, family=family, backlog=socket.SOMAXCONN, dualstack_ipv6=is_dual)


class Background:
    """A server in a thread. ``answer`` may wait: each call has a thread of its own. Raises as `listen`."""

    def __init__(
        self, answer: Callable[[Request], Response], host: str, port: int, token: str = "", most: int = 100
    ) -> None:
        self._answer = answer
        self._listener = listen(host, port)
        self.port = int(self._listener.getsockname()[1])
        self._server = Server(self._in_thread, token, most)
        begun = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(begun)), daemon=True)
        self._thread.start()
        begun.wait()

    def close(self) -> None:
        """Close the port and all connections."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _serve(self, begun: threading.Event) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        begun.set()
        await self._server.serve(self._listener, self._over)

    async def _in_thread(self, request: Request, _: Callable[[], bool]) -> Response:
        return await asyncio.wrap_future(in_thread(lambda: self._answer(request)))
