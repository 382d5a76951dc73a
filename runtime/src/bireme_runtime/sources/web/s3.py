"""Objects of S3 as a source, and as a place to which files are uploaded."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import math
import os
import re
import time
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType

from bireme_runtime.process.errors import Unreachable
from bireme_runtime.sources.checksums import ALGORITHMS, Checksum, digest_of
from bireme_runtime.sources.source import (
    Body,
    Changed,
    Entry,
    Part,
    SourceError,
    pause,
    retry,
    safe_path,
    shown,
    some,
)
from bireme_runtime.sources.web import aws
from bireme_runtime.sources.web.http import ConnectionPool, check_status

# S3's limit on the parts of an upload; a part has 5 GiB at most
# (docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html).
_MOST_PARTS = 10_000
_PART_BYTES = 64 << 20
_PART_ATTEMPTS = 3
_ENCRYPTION = "x-amz-server-side-encryption"
_WITH_CHECKSUM = MappingProxyType({"x-amz-checksum-mode": "ENABLED"})


def s3_source(url: str, env: Mapping[str, str]) -> S3Source:
    """The source at s3://BUCKET/PREFIX. Raises SourceError."""
    # Keys may contain # and ?, which a parser of URLs takes for the end of the path.
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not re.fullmatch(r"[A-Za-z0-9._-]+", bucket):
        raise SourceError(
            f"{shown(url)} is not s3://BUCKET/PREFIX: instead of an ARN, give the bucket's name, or the "
            "alias of the access point, which ends with -s3alias"
        )
    if bucket.endswith("--x-s3"):
        raise SourceError(
            f"s3://{bucket} is a directory bucket (S3 Express), which has other credentials and tags: "
            "name the bucket from which it was filled"
        )
    return S3Source(bucket, prefix.lstrip("/"), env)


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
        self._provider = None if anonymous else aws.CredentialsProvider(self.env)
        self._pays = self.env.get("BIREME_S3_REQUESTER_PAYS") == "true"
        # Seconds by which the server's clock is ahead of ours.
        self._ahead = 0.0
        self._part_attempts = _PART_ATTEMPTS

    def entries(self) -> Iterator[Entry]:
        return some(self.found(), f"s3://{self.bucket}/{self.prefix} has no objects")

    def found(self) -> Iterator[Entry]:
        """All objects; unlike with `entries`, there may be none."""
        # A prefix names a whole folder: train does not include train-2/.
        folder = self.prefix if not self.prefix or self.prefix.endswith("/") else f"{self.prefix}/"
        for key, size, tag in self._keys(self.prefix):
            if key.endswith("/"):
                if size:
                    raise SourceError(
                        f"s3://{self.bucket}/{key} is named as a folder and has content: rename it"
                    )
                continue
            if key == self.prefix:
                path = key.rpartition("/")[2]
            elif key.startswith(folder):
                path = key[len(folder) :]
            else:
                continue
            yield Entry(safe_path(path), size, tag, key)

    def put(self, path: str, file: str | Path, parallel: int = 4) -> None:
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

    def tag(self, file: str | Path) -> str:
        """The `version` that an object made by `put` from this file has, unless KMS encrypts it."""
        digests = [part.digest("md5") for part in self._parts(file)]
        if len(digests) == 1:
            return digests[0]
        whole = hashlib.md5(b"".join(map(bytes.fromhex, digests)), usedforsecurity=False)
        return f"{whole.hexdigest()}-{len(digests)}"

    def _parts(self, file: str | Path) -> list[Part]:
        size = os.stat(file).st_size
        step = max(self.part_bytes, math.ceil(size / _MOST_PARTS))
        return [Part(file, start, min(step, size - start)) for start in range(0, size or 1, step)]

    def _send(self, key: str, query: Mapping[str, str], part: Part) -> str:
        """Upload a part, or the whole file, and return its tag in quotes."""
        headers, digest = {"content-length": str(part.size)}, part.digest("sha256")
        with self._ask(key, query, headers, "PUT", digest, part.chunks()) as answer:
            self._check(answer, f"s3://{self.bucket}/{key}", (200,))
            answer.read()
            return answer.headers.get("ETag", "")

    def _element(self, key: str, query: Mapping[str, str], body: bytes, name: str) -> str:
        """The text of the element called `name` in S3's response. Raises as `entries` does."""
        headers, digest = {"content-length": str(len(body))}, hashlib.sha256(body).hexdigest()
        what = f"s3://{self.bucket}/{key}"

        def ask() -> str:
            with self._ask(key, query, headers, "POST", digest, body) as answer:
                self._check(answer, what, (200,))
                text = answer.read()
            for each in ElementTree.fromstring(text).iter():
                if each.tag.endswith(name):
                    return each.text or ""
            raise Unreachable(f"{what}: {text[:300].decode(errors='replace')}")

        return retry(ask)

    def delete(self, key: str, query: Mapping[str, str] = MappingProxyType({})) -> None:
        """Delete an object. Raises as `entries` does."""
        with self._ask(key, query, {}, "DELETE") as answer:
            self._check(answer, f"s3://{self.bucket}/{key}", (200, 204))
            answer.read()

    def _keys(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        more: Mapping[str, str] = {}
        while True:
            # Without an encoding, a key with control characters makes the list invalid XML.
            tree = self._list({"list-type": "2", "prefix": prefix, "encoding-type": "url", **more})
            space = tree.tag.partition("}")[0] + "}" if tree.tag.startswith("{") else ""
            is_quoted = tree.findtext(f"{space}EncodingType") == "url"
            name_of = urllib.parse.unquote_plus if is_quoted else str
            key, before = "", more
            for each in tree.findall(f"{space}Contents"):
                fields = {child.tag.removeprefix(space): child.text or "" for child in each}
                key = name_of(fields.get("Key", ""))
                if not key or not fields.get("Size", "").isdigit():
                    raise SourceError(
                        f"the list of s3://{self.bucket} has an object without a name or a size"
                    )
                yield key, int(fields["Size"]), fields.get("ETag", "").strip('"')
            token = tree.findtext(f"{space}NextContinuationToken") or ""
            marker = name_of(tree.findtext(f"{space}NextMarker") or "")
            if not marker and tree.find(f"{space}Marker") is not None:
                # Version 1 of the list is continued after its last key.
                marker = key
            is_cut = (tree.findtext(f"{space}IsTruncated") or "").strip().lower() == "true"
            if not token and not is_cut:
                return
            more = {"continuation-token": token} if token else {"marker": marker}
            if more == before or not (token or marker):
                raise SourceError(
                    f"the list of s3://{self.bucket}/{prefix} is not whole: the server has more objects, "
                    "and does not say how to ask for them"
                )

    def _list(self, query: Mapping[str, str]) -> ElementTree.Element:
        def ask() -> ElementTree.Element:
            with self._ask("", query, {}) as answer:
                self._check(answer, f"s3://{self.bucket}", (200,))
                text = answer.read()
            try:
                tree = ElementTree.fromstring(text)
            except ElementTree.ParseError as error:
                raise Unreachable(f"s3://{self.bucket}: its list cannot be read: {error}") from error
            if tree.tag.rpartition("}")[2] != "ListBucketResult":
                raise Unreachable(f"s3://{self.bucket}: instead of a list it answers {text[:300]!r}")
            return tree

        return retry(ask)

    @contextlib.contextmanager
    def read(self, entry: Entry, start: int, end: int) -> Iterator[Body]:
        is_whole = start == 0 and end == entry.size
        # An object that was overwritten in the meantime is another version.
        headers = {"range": f"bytes={start}-{end - 1}", "if-match": f'"{entry.version}"'}
        if is_whole:
            headers.update(_WITH_CHECKSUM)
        with self._ask(entry.key, {}, headers) as answer:
            what = f"s3://{self.bucket}/{entry.key}"
            if answer.status in (404, 416):
                raise Changed(f"{what} has changed since it was listed")
            self._check(answer, what, (200, 206) if start == 0 else (206,))
            kept = _kept(entry, answer.headers)
            # S3 answers a request for a range of one part with the checksum of that part.
            usable = (each for each, count in kept if not count and (is_whole or each.algorithm == "md5"))
            yield Body(answer.read, next(usable, None))

    def checksums(self, entry: Entry) -> Iterator[Checksum]:
        headers = self._head(entry)
        for kept, count in _kept(entry, headers):
            if not count:
                yield kept
                break
            first = self._size_of_part(entry, 1, count)
            if first is None:
                continue
            # Programs upload parts of one size. What was put together in another way is asked part by part.
            equal = (*[first] * (count - 1), entry.size - first * (count - 1))
            is_likely = 0 < equal[-1] <= first
            if is_likely:
                yield replace(kept, parts=equal)
            sizes = [first, *(self._size_of_part(entry, number, count) for number in range(2, count + 1))]
            known = tuple(size for size in sizes if size is not None)
            if sum(known) == entry.size and not (is_likely and known == equal):
                yield replace(kept, parts=known)
            break
        # Nothing fits, which is no wonder if the object is another one by now.
        self._head(entry)

    def _size_of_part(self, entry: Entry, number: int, count: int) -> int | None:
        """The size of a part of an object, None if the server does not know `count` parts."""
        # Without a condition, because some servers compare it with the part's own tag.
        ask = partial(self._headers, entry, {"partNumber": str(number)}, {}, (200, 206, 400, 405, 416, 501))
        for attempt in range(self._part_attempts):
            if attempt:
                pause(attempt)
            # A server that does not know parts answers with an error, but so does S3 once in a while.
            if (headers := retry(ask)).get("ETag"):
                self._part_attempts = _PART_ATTEMPTS
                is_known = headers.get("x-amz-mp-parts-count") == str(count)
                return int(headers.get("Content-Length", "0")) if is_known else None
        self._part_attempts = 1
        return None

    def _head(self, entry: Entry) -> http.client.HTTPMessage:
        headers = {**_WITH_CHECKSUM, "if-match": f'"{entry.version}"'}

        def ask() -> http.client.HTTPMessage:
            answer = self._headers(entry, {}, headers, (200,))
            if not answer.get("ETag"):
                raise Unreachable(f"s3://{self.bucket}/{entry.key}: HEAD is answered without an ETag")
            return answer

        return retry(ask)

    def _headers(
        self, entry: Entry, query: Mapping[str, str], headers: Mapping[str, str], wanted: tuple[int, ...]
    ) -> http.client.HTTPMessage:
        what = f"s3://{self.bucket}/{entry.key}"
        with self._ask(entry.key, query, headers, "HEAD") as answer:
            if answer.status == 404:
                raise Changed(f"{what} has changed since it was listed")
            if answer.status in (400, 403) and answer.status not in wanted:
                # There is no body that says whether the credentials have expired.
                if self._provider is not None:
                    self._provider.renew()
                raise Unreachable(f"{what}: HEAD is answered with HTTP {answer.status}")
            self._check(answer, what, wanted)
            return answer.headers

    def _check(self, answer: http.client.HTTPResponse, what: str, wanted: tuple[int, ...]) -> None:
        """As check_status. After an error of credentials or of the clock, the next try has others."""
        try:
            check_status(answer, what, wanted)
        except Unreachable as error:
            if "RequestTimeTooSkewed" in str(error) and (stamp := answer.headers.get("Date")):
                self._ahead = parsedate_to_datetime(stamp).timestamp() - time.time()
            raise
        except SourceError as error:
            if self._provider is None or "ExpiredToken" not in str(error):
                raise
            if not self._provider.renew():
                raise aws.CredentialsError(f"the credentials of the Secret have expired: {error}") from error
            raise Unreachable(str(error)) from error

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
        if self._pays:
            headers = {**headers, "x-amz-request-payer": "requester"}
        if self._provider is not None:
            host = urllib.parse.urlsplit(url).netloc
            given = self._provider.credentials()
            now = time.time() + self._ahead
            headers = aws.sign(host, path, text, headers, given, self._region, now, method, digest)
        return self.pool.request(url, headers, method, content)


def _kept(entry: Entry, headers: http.client.HTTPMessage) -> Iterator[tuple[Checksum, int]]:
    """The checksums that S3 keeps of an object, best first, and the number of parts, 0 if it is of the whole.

    The tag is the MD5, or that of the parts, unless a key of KMS or of the client encrypts the object.
    """
    is_in_parts = "-" in entry.version
    is_tag_md5 = "kms" not in headers.get(_ENCRYPTION, "") and not headers.get(
        f"{_ENCRYPTION}-customer-algorithm"
    )
    for algorithm in ALGORITHMS:
        text, _, count = (headers.get(f"x-amz-checksum-{algorithm}") or "").partition("-")
        try:
            value = base64.b64decode(text, validate=True)
            if algorithm == "md5":
                text, _, count = entry.version.partition("-")
                value = bytes.fromhex(text) if is_tag_md5 and len(text) == 32 else b""
            parts = int(count or 0)
        except ValueError:
            continue
        # Some servers leave out the number of parts.
        is_clear = parts or not is_in_parts or headers.get("x-amz-checksum-type") == "FULL_OBJECT"
        if len(value) == len(digest_of(algorithm).digest()) and is_clear:
            yield Checksum(algorithm, value), parts
