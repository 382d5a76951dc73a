"""Requests by HTTP, and a file of a web server as a source."""

from __future__ import annotations

import base64
import contextlib
import http.client
import ssl
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from email.utils import parsedate

from bireme_runtime.process.errors import Unreachable
from bireme_runtime.process.http import BROKEN, Address, Connections, connect, parse_address, reason
from bireme_runtime.sources.source import Body, Changed, Entry, Source, SourceError, retry, safe_path, shown
from bireme_runtime.sources.web import aws

_TIMEOUT_SECONDS = 60
# What is no letter or digit, and stays as it is in a URL that may be quoted already.
_SAFE = "%/:=&?~#+!$,;'@()*[]"
# As many as `parallel` may be.
_IDLE = 256
_REDIRECTS = 5


def encoded(url: str) -> str:
    """A URL as a request has it: in ASCII, without user and fragment. Raises SourceError."""
    try:
        parts = urllib.parse.urlsplit(url)
        _, host = parts.port, parts.netloc.rpartition("@")[2].encode("idna").decode()
    except ValueError as error:
        raise SourceError(f"{shown(url)} is no URL: its host or its port cannot be read") from error
    path, query = (urllib.parse.quote(each, safe=_SAFE) for each in (parts.path, parts.query))
    return urllib.parse.urlunsplit((parts.scheme, host, path, query, ""))


class ConnectionPool:
    """Sends requests on connections that are kept open."""

    def __init__(self) -> None:
        self._idle = Connections(_IDLE)
        self._tls = ssl.create_default_context()

    @contextlib.contextmanager
    def request(
        self,
        url: str,
        headers: Mapping[str, str],
        method: str = "GET",
        content: Iterable[bytes] | bytes | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """The response, of any status.

        Raises Unreachable, also when the connection breaks while the body is read.
        """
        parts = urllib.parse.urlsplit(url)
        place = (parts.scheme, parts.netloc)
        proxy = _proxy(parts)
        with contextlib.ExitStack() as stack:
            try:
                connection = self._idle.take(place) or self._connect(parts, proxy)
                stack.callback(connection.close)
                # A proxy without a tunnel has to know the host.
                host = place if parts.scheme == "http" and proxy else ("", "")
                connection.request(
                    method, urllib.parse.urlunsplit((*host, *parts[2:4], "")), content, dict(headers)
                )
                answer = connection.getresponse()
                yield answer
                # Unread bytes would be taken for the next response.
                if answer.isclosed():
                    stack.pop_all()
                    self._idle.keep(place, connection)
            except BROKEN as error:
                raise Unreachable(f"{parts.netloc.rpartition('@')[2]}: {reason(error)}") from error

    def _connect(self, parts: urllib.parse.SplitResult, proxy: Address | None) -> http.client.HTTPConnection:
        address = Address(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        return connect(address, _TIMEOUT_SECONDS, self._tls if parts.scheme == "https" else None, proxy)


def _proxy(url: urllib.parse.SplitResult) -> Address | None:
    """The proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY name for a URL. Raises SourceError."""
    text = urllib.request.getproxies_environment().get(url.scheme)
    if not text or urllib.request.proxy_bypass(url.netloc):
        return None
    try:
        return parse_address(text.partition("://")[2].rstrip("/") or text, 80)
    except ValueError as error:
        raise SourceError(f"the proxy {shown(text)} is not http://HOST:PORT") from error


def check_status(answer: http.client.HTTPResponse, what: str, wanted: tuple[int, ...]) -> None:
    """Raise Unreachable if a later attempt may have another status, else SourceError."""
    if answer.status in wanted:
        return
    text = answer.read(2048).decode(errors="replace").strip()
    sentence = f"{what}: HTTP {answer.status} {answer.reason} {' '.join(text.split())[:300]}".strip()
    if aws.is_temporary(answer.status, aws.error_code(text)):
        raise Unreachable(sentence)
    if answer.status == 412:
        raise Changed(f"{what} has changed since it was listed")
    raise SourceError(sentence)


class HttpSource(Source):
    """One file of a web server. `token` is a bearer token for the host of `url`, and no other."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url, self._pool = encoded(url), ConnectionPool()
        user = urllib.parse.urlsplit(url).netloc.rpartition("@")[0]
        self._authorization = f"Bearer {token}" if token else ""
        if user and not token:
            text = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
            self._authorization = f"Basic {text}"
        self._name = shown(self._url)
        self._lock = threading.Lock()
        self._place = self._url

    def entries(self) -> Iterator[Entry]:
        yield retry(self._entry)

    def _entry(self) -> Entry:
        headers = self._asked("HEAD", {}, (200,), (400, 401, 403, 405, 501))
        size = None if headers is None else headers.get("Content-Length")
        if headers is None or size is None:
            # A URL that is signed for GET refuses HEAD, and some servers do not know the length of HEAD.
            headers = self._asked("GET", {"range": "bytes=0-0"}, (200, 206, 416), ())
            assert headers is not None
            size = headers.get("Content-Range", "").rpartition("/")[2] or headers.get("Content-Length")
        if size is None or not size.isdigit():
            raise SourceError(f"{self._name} has no Content-Length, so its size cannot be checked")
        version = headers.get("ETag") or headers.get("Last-Modified") or ""
        name = urllib.parse.unquote(urllib.parse.urlsplit(self._url).path.rpartition("/")[2])
        return Entry(safe_path(name), int(size), version, self._name)

    def _asked(
        self, method: str, headers: Mapping[str, str], wanted: tuple[int, ...], refused: tuple[int, ...]
    ) -> http.client.HTTPMessage | None:
        """The headers of the response, after redirects; None if its status is one of `refused`."""
        place = self._url
        for _ in range(_REDIRECTS):
            with self._pool.request(place, self._with_token(place, headers), method) as answer:
                if answer.status in (301, 302, 303, 307, 308):
                    # As it was sent: http.client takes each byte for a sign of Latin-1.
                    there = answer.headers.get("Location", "").encode("latin-1")
                    place = encoded(urllib.parse.urljoin(place, urllib.parse.quote(there, safe=_SAFE)))
                    continue
                if answer.status in refused:
                    return None
                check_status(answer, self._name, wanted)
                with self._lock:
                    self._place = place
                return answer.headers
        raise SourceError(f"{self._name} redirects more than {_REDIRECTS} times")

    def _with_token(self, place: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """A redirect may go to another host, which must not get the token (and may refuse it)."""
        own, there = urllib.parse.urlsplit(self._url), urllib.parse.urlsplit(place)
        if not self._authorization or (own.scheme, own.netloc) != (there.scheme, there.netloc):
            return headers
        return {**headers, "authorization": self._authorization}

    @contextlib.contextmanager
    def read(self, entry: Entry, start: int, end: int) -> Iterator[Body]:
        headers = {"range": f"bytes={start}-{end - 1}"}
        # A file that was replaced in the meantime is another version. Only a strong tag can be a condition.
        is_date = parsedate(entry.version) is not None
        if is_date:
            headers["if-unmodified-since"] = entry.version
        elif entry.version.startswith('"'):
            headers["if-match"] = entry.version
        elif start and not entry.version:
            why = "its server tells neither ETag nor Last-Modified"
            raise Changed(f"{self._name} was interrupted, and may be another file now: {why}")
        with contextlib.ExitStack() as stack:
            place = self._place
            answer = stack.enter_context(self._pool.request(place, self._with_token(place, headers)))
            if place != self._url and answer.status in (400, 401, 403, 404, 410):
                # A redirect may be to an address that expires.
                stack.close()
                self._asked("GET", {"range": f"bytes={start}-{start}"}, (200, 206), ())
                again = self._with_token(self._place, headers)
                answer = stack.enter_context(self._pool.request(self._place, again))
            is_whole = start == 0 and end == entry.size
            check_status(answer, self._name, (206, 200) if is_whole else (206,))
            version = answer.headers.get("Last-Modified" if is_date else "ETag") or entry.version
            total = (
                answer.headers.get("Content-Range", "").rpartition("/")[2]
                if answer.status == 206
                else answer.headers.get("Content-Length", "")
            )
            if version != entry.version or (total.isdigit() and int(total) != entry.size):
                raise Changed(f"{self._name} has changed since it was listed")
            yield Body(answer.read)
