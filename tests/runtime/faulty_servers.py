"""A small server of S3, STS, EKS Pod Identity and instance metadata whose answers can be made to fail."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate

ROLES = "/latest/meta-data/iam/security-credentials/"


def error(status: int, code: str) -> tuple[int, bytes]:
    """The answer with which AWS explains an error."""
    return status, f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()


def flipped(body: bytes) -> bytes:
    """The body with another last bit."""
    return body[:-1] + bytes([body[-1] ^ 1]) if body else body


@dataclass
class Faults:
    """`times` requests whose `METHOD PATH?QUERY` matches are answered so, after the `first` ones of them."""

    pattern: str
    answer: tuple[int, bytes] | None = None
    times: int = 1
    headers: Mapping[str, str] = field(default_factory=dict)
    first: int = 0
    # Without an answer of its own: what is sent of the right one, and after how many seconds.
    sent: Callable[[bytes], bytes] = bytes
    seconds: float = 0


@dataclass
class FaultyServer:
    """Serves the bucket `b`, two keys on a page of its list. Objects may be changed while it runs."""

    objects: dict[str, bytes]
    url: str = ""
    faults: list[Faults] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    stamps: list[str] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)
    payers: list[str] = field(default_factory=list)
    lives: float = 3600
    page: int = 2
    # Sizes of the parts in which a key was uploaded, and what S3 keeps of it beside its content.
    parts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    kept: dict[str, Mapping[str, str]] = field(default_factory=dict)
    # ETags that do not belong to what a key has.
    tags: dict[str, str] = field(default_factory=dict)
    redirects: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def env(self) -> dict[str, str]:
        """The variables of a pod that uses this server with keys of a Secret."""
        keys = {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S"}
        return {**keys, "AWS_ENDPOINT_URL_S3": self.url, "AWS_ENDPOINT_URL_STS": self.url}

    def count(self, pattern: str) -> int:
        """How many requests matched."""
        return sum(bool(re.search(pattern, line)) for line in list(self.asked))

    def fault(self, line: str) -> Faults | None:
        """The fault for a request, which is used up."""
        with self.lock:
            self.asked.append(line)
            for each in self.faults:
                if each.times and re.search(each.pattern, line):
                    if each.first:
                        each.first -= 1
                        continue
                    each.times -= 1
                    return each
        return None

    def credentials(self) -> dict[str, str]:
        """New keys."""
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + self.lives))
        keys = {"AccessKeyId": "A", "SecretAccessKey": "S", "Expiration": until}
        return {**keys, "Token": "T", "SessionToken": "T"}

    def tag(self, key: str) -> str:
        """The ETag of an object, as S3 makes it of parts if there are some."""
        content, at, digests = self.objects[key], 0, []
        if key in self.tags or key not in self.parts:
            return self.tags.get(key) or tag(content)
        for size in self.parts[key]:
            digests.append(bytes.fromhex(tag(content[at : at + size])))
            at += size
        return f"{tag(b''.join(digests))}-{len(digests)}"

    def listed(self, query: Mapping[str, str]) -> bytes:
        """A page of the list of objects."""
        keys = sorted(key for key in self.objects if key.startswith(query.get("prefix", "")))
        start = int(query.get("continuation-token", "0"))
        is_quoted = query.get("encoding-type") == "url"
        name_of = urllib.parse.quote_plus if is_quoted else str
        rows = "".join(
            f"<Contents><Key>{name_of(key)}</Key><Size>{len(self.objects[key])}</Size>"
            f"<ETag>&quot;{self.tag(key)}&quot;</ETag></Contents>"
            for key in keys[start : start + self.page]
        )
        until = start + self.page
        more = f"<NextContinuationToken>{until}</NextContinuationToken>" if until < len(keys) else ""
        encoding = "<EncodingType>url</EncodingType>" if is_quoted else ""
        return f"<ListBucketResult>{encoding}{rows}{more}</ListBucketResult>".encode()


def tag(content: bytes) -> str:
    """The ETag of an object."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@contextlib.contextmanager
def faulty_server(objects: dict[str, bytes]) -> Iterator[FaultyServer]:
    """A server on a free port. Plain GET and HEAD of /b/KEY also serve as a web server."""
    state = FaultyServer(objects)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        fault: Faults

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            state.stamps.append(self.headers.get("x-amz-date", ""))
            state.authorizations.append(self.headers.get("Authorization", ""))
            state.payers.append(self.headers.get("x-amz-request-payer", ""))
            fault = state.fault(f"{self.command} {self.path}")
            self.fault = fault or Faults("")
            time.sleep(self.fault.seconds)
            if self.fault.answer is not None:
                self.reply(*self.fault.answer, self.fault.headers)
                return
            parts = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(parts.query))
            key = urllib.parse.unquote(parts.path.removeprefix("/b/"))
            if parts.path == "/":
                fields = "".join(f"<{name}>{text}</{name}>" for name, text in state.credentials().items())
                self.reply(200, f'<R xmlns="https://sts">{fields}</R>'.encode())
            elif parts.path == "/credentials":
                self.reply(200, json.dumps(state.credentials()).encode())
            elif parts.path == "/latest/api/token":
                is_put = self.command == "PUT" and "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
                self.reply(200 if is_put else 403, b"a token")
            elif parts.path.startswith(ROLES):
                is_known = self.headers.get("X-aws-ec2-metadata-token") == "a token"
                role = parts.path.removeprefix(ROLES)
                self.reply(
                    200 if is_known else 401, json.dumps(state.credentials()).encode() if role else b"node"
                )
            elif parts.path == "/redirect":
                state.redirects += 1
                self.reply(302, b"", {"Location": f"/b/{query['to']}?n={state.redirects}"})
            elif "list-type" in query:
                self.reply(200, state.listed(query))
            elif key not in state.objects:
                self.reply(*error(404, "NoSuchKey"))
            else:
                self.send(key, query)

        do_HEAD = do_POST = do_PUT = do_GET

        def send(self, key: str, query: Mapping[str, str]) -> None:
            content, parts = state.objects[key], state.parts.get(key, ())
            headers = {"ETag": f'"{state.tag(key)}"', **state.kept.get(key, {})}
            if self.headers.get("x-amz-checksum-mode") != "ENABLED":
                headers = {name: text for name, text in headers.items() if "checksum" not in name}
            if self.headers.get("If-Match", headers["ETag"]) != headers["ETag"]:
                self.reply(*error(412, "PreconditionFailed"))
                return
            if parts and "partNumber" in query:
                number = int(query["partNumber"])
                start = sum(parts[: number - 1])
                headers["x-amz-mp-parts-count"] = str(len(parts))
                self.reply(206, content[start : start + parts[number - 1]], headers)
                return
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if wanted is None:
                self.reply(200, content, headers)
                return
            start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(content))
            status, place = (206, f"{start}-{end - 1}") if start < end else (416, "*")
            headers["Content-Range"] = f"bytes {place}/{len(content)}"
            self.reply(status, content[start:end], headers)

        def reply(self, status: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
            self.send_response_only(status)
            for name, value in {"Date": formatdate(usegmt=True), **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                sent = self.fault.sent(body)
                self.wfile.write(sent)
                self.close_connection = self.close_connection or len(sent) < len(body)

        def log_message(self, *_: object) -> None:
            """Requests are kept in `asked`."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
