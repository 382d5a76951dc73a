"""Sources of data: S3, web servers and folders. Each has a list of objects, which are read in ranges of
bytes.

Files can also be uploaded to S3.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import math
import os
import ssl
import threading
import time
import urllib.parse
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Protocol, TypeVar

from bireme_runtime.process.errors import BiremeError, Unreachable
from bireme_runtime.process.http import BROKEN, Address, connect, reason
from bireme_runtime.sources import aws
from bireme_runtime.sources.aws import CredentialsProvider

_TIMEOUT_SECONDS = 60
_REDIRECTS = 5
_CHUNK = 1 << 20
ATTEMPTS = 8
# S3's limit on the parts of an upload; a part has 5 GiB at most
# (docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html).
_MOST_PARTS = 10_000
_PART_BYTES = 64 << 20
_ENCRYPTION = "x-amz-server-side-encryption"


_Answer = TypeVar("_Answer")


class SourceError(BiremeError):
    """The source is not as the settings describe it. Another attempt would fail too."""


@dataclass(frozen=True)
class Entry:
    """One object: its path below the source, its size in bytes, a version that changes with its content."""

    path: str
    size: int
    version: str
    key: str


@dataclass(frozen=True)
class Body:
    """A stream: `read(N)` returns up to N bytes, b"" at the end.

    `md5` is of the whole object, "" if not known.
    """

    read: Callable[[int], bytes]
    md5: str = ""


class Source(Protocol):
    """A list of objects that can be read."""

    def entries(self) -> Iterator[Entry]:
        """All objects. Raises SourceError, Unreachable or CredentialsError."""

    def read(self, entry: Entry, start: int, end: int) -> AbstractContextManager[Body]:
        """The bytes from `start` up to but not including `end`. Raises as `entries` does."""


def open_source(url: str, env: Mapping[str, str]) -> Source:
    """The source at s3://BUCKET/PREFIX, http(s)://…/FILE or file:///FOLDER. Raises SourceError."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "s3":
        return S3Source(parts.netloc, parts.path.lstrip("/"), env)
    if parts.scheme in ("http", "https"):
        return HttpSource(url)
    if parts.scheme == "file":
        return FolderSource(Path(urllib.parse.unquote(parts.path)))
    raise SourceError(f"{url} is neither s3://BUCKET/PREFIX nor https://HOST/FILE nor a claim")


def safe_path(path: str) -> str:
    """The path, unless it would leave the folder into which it is copied. Raises SourceError."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or parts[0].startswith(".bireme"):
        raise SourceError(f"the source has an object named {path!r}, which is not a path below a folder")
    return str(PurePosixPath(path))


class FolderSource:
    """A folder of another claim, or one file there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def entries(self) -> Iterator[Entry]:
        if self._folder.is_file():
            yield self._entry(self._folder, self._folder.name)
            return
        if not self._folder.is_dir():
            raise SourceError(f"{self._folder} does not exist: check the path of the source")
        for base, folders, files in os.walk(self._folder):
            folders.sort()
            for name in sorted(files):
                file = Path(base, name)
                yield self._entry(file, str(file.relative_to(self._folder)))

    def _entry(self, file: Path, path: str) -> Entry:
        stat = file.stat()
        return Entry(safe_path(path), stat.st_size, str(stat.st_mtime_ns), str(file))

    @contextlib.contextmanager
    def read(self, entry: Entry, start: int, end: int) -> Iterator[Body]:
        try:
            with open(entry.key, "rb") as file:
                file.seek(start)
                yield Body(file.read)
        except OSError as error:
            raise Unreachable(f"{entry.key} cannot be read: {error}") from error


class ConnectionPool:
    """Sends requests on connections that are kept open, one for each thread and host."""

    def __init__(self) -> None:
        self._open = threading.local()
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
        try:
            connection = self._connection(place)
            connection.request(
                method, urllib.parse.urlunsplit(("", "", *parts[2:4], "")), content, dict(headers)
            )
            answer = connection.getresponse()
            yield answer
            # Unread bytes would be taken for the next response.
            if not answer.isclosed():
                self._drop(place)
        except BROKEN as error:
            self._drop(place)
            raise Unreachable(f"{parts.netloc}: {reason(error)}") from error
        except BaseException:
            self._drop(place)
            raise

    def _connection(self, place: tuple[str, str]) -> http.client.HTTPConnection:
        opened: dict[tuple[str, str], http.client.HTTPConnection] = self._open.__dict__.setdefault("all", {})
        if place not in opened:
            scheme, netloc = place
            parts = urllib.parse.urlsplit(f"//{netloc}")
            address = Address(parts.hostname or "", parts.port or (443 if scheme == "https" else 80))
            opened[place] = connect(address, _TIMEOUT_SECONDS, self._tls if scheme == "https" else None)
        return opened[place]

    def _drop(self, place: tuple[str, str]) -> None:
        connection = self._open.__dict__.get("all", {}).pop(place, None)
        if connection is not None:
            connection.close()


def check_status(answer: http.client.HTTPResponse, what: str, wanted: tuple[int, ...]) -> None:
    """Raise Unreachable if a later attempt may have another status, else SourceError."""
    if answer.status in wanted:
        return
    text = answer.read(2048).decode(errors="replace").strip()
    sentence = f"{what}: HTTP {answer.status} {answer.reason} {' '.join(text.split())[:300]}".strip()
    if answer.status >= 500 or answer.status in (408, 429):
        raise Unreachable(sentence)
    raise SourceError(sentence)


def retry(act: Callable[[], _Answer]) -> _Answer:
    """The result of `act`, which is tried up to ATTEMPTS times while it raises Unreachable."""
    for attempt in range(1, ATTEMPTS):
        try:
            return act()
        except Unreachable:
            pause(attempt)
    return act()


def pause(attempt: int) -> None:
    """Wait after a failed attempt, longer after each."""
    time.sleep(min(0.25 * 2**attempt, 15))


@dataclass(frozen=True)
class Part:
    """`size` bytes of a file from `start` on."""

    file: Path
    start: int
    size: int

    @classmethod
    def whole(cls, file: Path) -> Part:
        """All of a file."""
        return cls(file, 0, file.stat().st_size)

    def chunks(self) -> Iterator[bytes]:
        """The bytes, in chunks. Raises OSError."""
        with self.file.open("rb") as content:
            content.seek(self.start)
            left = self.size
            while left and (chunk := content.read(min(_CHUNK, left))):
                left -= len(chunk)
                yield chunk

    def digest(self, algorithm: str) -> str:
        """The digest in hex, by an algorithm of hashlib. Raises OSError."""
        digest = hashlib.new(algorithm, usedforsecurity=False)
        for chunk in self.chunks():
            digest.update(chunk)
        return digest.hexdigest()


class HttpSource:
    """One file of a web server."""

    def __init__(self, url: str) -> None:
        self._url, self._pool = url, ConnectionPool()

    def entries(self) -> Iterator[Entry]:
        url = self._url
        for _ in range(_REDIRECTS):
            with self._pool.request(url, {}, "HEAD") as answer:
                answer.read()
                if answer.status in (301, 302, 303, 307, 308):
                    url = urllib.parse.urljoin(url, answer.headers.get("Location", ""))
                    continue
                check_status(answer, self._url, (200,))
                size = answer.headers.get("Content-Length")
                if size is None:
                    raise SourceError(f"{self._url} has no Content-Length, so its size cannot be checked")
                version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
                name = urllib.parse.unquote(urllib.parse.urlsplit(self._url).path.rpartition("/")[2])
                yield Entry(safe_path(name), int(size), version, url)
                return
        raise SourceError(f"{self._url} redirects more than {_REDIRECTS} times")

    @contextlib.contextmanager
    def read(self, entry: Entry, start: int, end: int) -> Iterator[Body]:
        if start >= end:
            raise Unreachable(f"{self._url} has no bytes to read")
        with self._pool.request(entry.key, {"range": f"bytes={start}-{end - 1}"}) as answer:
            whole = start == 0 and end == entry.size
            check_status(answer, self._url, (206, 200) if whole else (206,))
            yield Body(answer.read)


@dataclass
class S3Source:
    """The objects of a bucket below a prefix; a prefix that names one object is that object."""

    bucket: str
    prefix: str
    env: Mapping[str, str]
    pool: ConnectionPool = field(default_factory=ConnectionPool)
    part_bytes: int = _PART_BYTES

    def __post_init__(self) -> None:
        self._region = self.env.get("AWS_REGION") or "us-east-1"
        endpoint = self.env.get("AWS_ENDPOINT_URL_S3") or ""
        # S3's certificates do not match bucket names with dots, and other servers have no host for each
        # bucket.
        by_path = bool(endpoint) or "." in self.bucket
        base = endpoint.rstrip("/") or f"https://s3.{self._region}.{aws.domain(self._region)}"
        scheme, _, host = base.partition("://")
        self._base = base if by_path else f"{scheme}://{self.bucket}.{host}"
        self._folder = f"/{self.bucket}" if by_path else ""
        anonymous = self.env.get("BIREME_S3_ANONYMOUS") == "true"
        self._provider = None if anonymous else CredentialsProvider(self.env)

    def entries(self) -> Iterator[Entry]:
        found = self.listed()
        if not found:
            raise SourceError(f"s3://{self.bucket}/{self.prefix} has no objects")
        return iter(found)

    def listed(self) -> list[Entry]:
        """All objects; unlike `entries`, the list may be empty."""
        return list(self._entries())

    def _entries(self) -> Iterator[Entry]:
        # A prefix names a whole folder: train does not include train-2/.
        folder = self.prefix if not self.prefix or self.prefix.endswith("/") else f"{self.prefix}/"
        for key, size, tag in self._keys(self.prefix):
            if key.endswith("/"):
                continue
            if key == self.prefix:
                path = key.rpartition("/")[2]
            elif key.startswith(folder):
                path = key[len(folder) :]
            else:
                continue
            yield Entry(safe_path(path), size, tag, key)

    def put(self, path: str, file: Path, parallel: int = 4) -> None:
        """Upload a file below the prefix, a large one in parts. Raises as `entries` does."""
        key = "/".join(filter(None, (self.prefix.rstrip("/"), path)))
        parts = self._parts(file)
        if len(parts) == 1:
            retry(lambda: self._send(key, {}, parts[0]))
            return
        upload = self._element(key, {"uploads": ""}, b"", "UploadId")
        try:
            # Leaving the pool waits for parts in transit: one could arrive after the upload has been aborted.
            with ThreadPoolExecutor(parallel) as pool:
                queries = [{"partNumber": str(n), "uploadId": upload} for n, _ in enumerate(parts, start=1)]
                tags = list(pool.map(lambda *sent: retry(lambda: self._send(key, *sent)), queries, parts))
            rows = (
                f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"
                for number, tag in enumerate(tags, start=1)
            )
            body = f"<CompleteMultipartUpload>{''.join(rows)}</CompleteMultipartUpload>".encode()
            # S3 may send status 200 at once and report an error in the body.
            self._element(key, {"uploadId": upload}, body, "ETag")
        except BaseException:
            # S3 charges for parts that belong to no object until they are deleted.
            with contextlib.suppress(Unreachable, SourceError):
                self.delete(key, {"uploadId": upload})
            raise

    def tag(self, file: Path) -> str:
        """The `version` that an object made by `put` from this file has, unless KMS encrypts it."""
        digests = [part.digest("md5") for part in self._parts(file)]
        if len(digests) == 1:
            return digests[0]
        whole = hashlib.md5(b"".join(map(bytes.fromhex, digests)), usedforsecurity=False)
        return f"{whole.hexdigest()}-{len(digests)}"

    def _parts(self, file: Path) -> list[Part]:
        size = file.stat().st_size
        step = max(self.part_bytes, math.ceil(size / _MOST_PARTS))
        return [Part(file, start, min(step, size - start)) for start in range(0, size or 1, step)]

    def _send(self, key: str, query: Mapping[str, str], part: Part) -> str:
        """Upload a part, or the whole file, and return its tag in quotes."""
        headers, digest = {"content-length": str(part.size)}, part.digest("sha256")
        with self._ask(key, query, headers, "PUT", digest, part.chunks()) as answer:
            check_status(answer, f"s3://{self.bucket}/{key}", (200,))
            answer.read()
            return answer.headers.get("ETag", "")

    def _element(self, key: str, query: Mapping[str, str], body: bytes, name: str) -> str:
        """The text of the element called `name` in S3's response. Raises as `entries` does."""
        headers, digest = {"content-length": str(len(body))}, hashlib.sha256(body).hexdigest()
        what = f"s3://{self.bucket}/{key}"

        def ask() -> str:
            with self._ask(key, query, headers, "POST", digest, body) as answer:
                check_status(answer, what, (200,))
                text = answer.read()
            for each in ElementTree.fromstring(text).iter():
                if each.tag.endswith(name):
                    return each.text or ""
            raise Unreachable(f"{what}: {text[:300].decode(errors='replace')}")

        return retry(ask)

    def delete(self, key: str, query: Mapping[str, str] = MappingProxyType({})) -> None:
        """Delete an object. Raises as `entries` does."""
        with self._ask(key, query, {}, "DELETE") as answer:
            check_status(answer, f"s3://{self.bucket}/{key}", (200, 204))
            answer.read()

    def _keys(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        more = ""
        while True:
            query = {"list-type": "2", "prefix": prefix, **({"continuation-token": more} if more else {})}
            with self._ask("", query, {}) as answer:
                check_status(answer, f"s3://{self.bucket}", (200,))
                tree = ElementTree.fromstring(answer.read())
            space = tree.tag.partition("}")[0] + "}" if tree.tag.startswith("{") else ""
            for each in tree.findall(f"{space}Contents"):
                fields = {child.tag.removeprefix(space): child.text or "" for child in each}
                yield fields["Key"], int(fields["Size"]), fields.get("ETag", "").strip('"')
            more = tree.findtext(f"{space}NextContinuationToken") or ""
            if not more:
                return

    @contextlib.contextmanager
    def read(self, entry: Entry, start: int, end: int) -> Iterator[Body]:
        headers = {"range": f"bytes={start}-{end - 1}"} if end > start else {}
        # An object that was overwritten in the meantime is another version.
        headers["if-match"] = f'"{entry.version}"'
        with self._ask(entry.key, {}, headers) as answer:
            check_status(answer, f"s3://{self.bucket}/{entry.key}", (200, 206))
            # The tag is the MD5, unless the object was uploaded in parts or is encrypted with a key of KMS.
            is_md5 = len(entry.version) == 32 and "kms" not in answer.headers.get(_ENCRYPTION, "")
            yield Body(answer.read, entry.version if is_md5 else "")

    def _ask(
        self,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        method: str = "GET",
        digest: str = aws.EMPTY,
        content: Iterable[bytes] | bytes | None = None,
    ) -> AbstractContextManager[http.client.HTTPResponse]:
        path = f"{self._folder}/{urllib.parse.quote(key, safe='/-_.~')}"
        text = "&".join(
            f"{name}={urllib.parse.quote(value, safe='-_.~')}" for name, value in sorted(query.items())
        )
        url = f"{self._base}{path}" + (f"?{text}" if text else "")
        if self._provider is not None:
            host = urllib.parse.urlsplit(url).netloc
            given = self._provider.credentials()
            now = time.time()
            headers = aws.sign(host, path, text, headers, given, self._region, now, method, digest)
        return self.pool.request(url, headers, method, content)


def sums(text: str) -> dict[str, str]:
    """The digest of each path in the output of sha256sum. Raises SourceError."""
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        digest, _, path = line.partition(" ")
        if len(digest) != 64 or not path.strip():
            raise SourceError(f"{line[:80]!r} is not a line of sha256sum")
        found[path.strip().lstrip("*").removeprefix("./")] = digest.lower()
    return found
