"""HTTP/1.1 for many open connections, as far as the dispatcher's service needs it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from bireme_runtime.process.errors import BiremeError

_LARGEST_BODY = 4 * 1024 * 1024
_BODY_SECONDS = 30.0
_REASONS = {
    200: "OK", 307: "Temporary Redirect", 400: "Bad Request", 404: "Not Found", 408: "Request Timeout",
    409: "Conflict", 410: "Gone", 413: "Content Too Large", 500: "Internal Server Error",
    503: "Service Unavailable",
}  # fmt: skip

log = logging.getLogger("bireme_runtime")


@dataclass(frozen=True)
class HttpRequest:
    """A request. `target` is as sent; `path` is decoded and without the query."""

    method: str
    target: str
    path: str
    query: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body, a JSON object. Raises ValueError."""
        try:
            record = json.loads(self.body or b"{}")
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise ValueError("the body must be a JSON object")
        return record


@dataclass(frozen=True)
class Response:
    """A response. `body` is JSON unless `headers` has another Content-Type."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, status: int, body: Any, headers: Mapping[str, str] | None = None) -> Response:
        """A response in JSON."""
        return cls(status, json.dumps(body).encode(), headers or {})

    def encode(self) -> bytes:
        """The bytes to send."""
        headers = {"Content-Type": "application/json", **self.headers, "Content-Length": len(self.body)}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        reason = _REASONS.get(self.status, "")
        return f"HTTP/1.1 {self.status} {reason}\r\n{head}\r\n".encode() + self.body


# The second argument returns whether the client is still connected.
Handler = Callable[[HttpRequest, Callable[[], bool]], Awaitable[Response]]


async def serve_connection(
    handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the requests on one connection until the client closes it."""
    try:
        while True:
            request, keep = await _read(reader)
            try:
                response = await handler(request, lambda: not reader.at_eof())
            except Exception:
                log.exception("%s %s", request.method, request.target)
                response = Response.of(500, {"error": "the dispatcher failed; see its log"})
            writer.write(response.encode())
            await writer.drain()
            if not keep:
                return
    except _Malformed as error:
        writer.write(Response.of(error.status, {"error": str(error)}).encode())
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError, OSError):
        # The client has disconnected, or the service ends.
        return
    finally:
        with contextlib.suppress(OSError):
            writer.close()


class _Malformed(BiremeError):
    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


async def _read(reader: asyncio.StreamReader) -> tuple[HttpRequest, bool]:
    """The next request, and whether the connection stays open after it."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    words = first.split(" ")
    if len(words) != 3:
        raise _Malformed("this is not HTTP")
    method, target, version = words
    headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or "transfer-encoding" in headers:
        raise _Malformed("a body needs a Content-Length")
    if int(length) > _LARGEST_BODY:
        raise _Malformed(f"the body is larger than {_LARGEST_BODY} bytes", 413)
    try:
        body = await asyncio.wait_for(reader.readexactly(int(length)), _BODY_SECONDS)
        parts = urlsplit(target)
    except asyncio.TimeoutError:
        raise _Malformed(f"the body did not arrive within {_BODY_SECONDS:.0f} s", 408) from None
    except ValueError:
        raise _Malformed("the path is no path") from None
    keep = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    return HttpRequest(method, target, unquote(parts.path), dict(parse_qsl(parts.query)), body), keep
