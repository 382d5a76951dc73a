"""A small client of etcd v3 through its HTTP/JSON gateway.

It distinguishes a request that was certainly not carried out (`Unavailable`: safe to repeat on any endpoint)
from one that may have been (`Ambiguous`: read before repeating it). Reads, and writes that have the same
effect when done twice, are repeated on the other endpoints automatically.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import http.client
import json
import os
import random
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bireme_runtime.process.descriptors import readable
from bireme_runtime.process.errors import BiremeError
from bireme_runtime.process.http import BROKEN, Address, connect, parse_address, reason
from bireme_runtime.process.log import Say

DEFAULT_PORT = 2379
# Seconds between first logins of clients that start together: etcd computes a twentieth of a second for each.
_LOGIN_SECONDS = 0.03
_LOGIN_TIMEOUT = 30.0
# Without an answer for so long, a login is thought to be one of an etcd that lost its data.
_DOUBT_SECONDS = 10.0
# A file in which the clients of one pod share their login.
LOGIN_FILE = "BIREME_ETCD_LOGIN"
# Seconds for which an endpoint whose name has no address is not asked.
_ADDRESS_SECONDS = 30.0

# gRPC status codes, as the gateway reports them.
_NOT_FOUND, _PERMISSION_DENIED, _EXHAUSTED, _UNAVAILABLE, _UNAUTHENTICATED = 5, 7, 8, 14, 16
# After these codes a write may nevertheless have reached etcd's log.
_UNKNOWN_OUTCOME = {1, 2, 4, 13, 14}


class EtcdError(BiremeError):
    """A request to etcd failed; the subclasses say what is known about its effect."""


class Unavailable(EtcdError):
    """No endpoint accepted the request. It was not carried out: repeating it is safe."""


class OutOfSpace(Unavailable):
    """etcd takes no writes because its quota is used up."""

    def __init__(self) -> None:
        super().__init__("etcd is out of space (NOSPACE alarm): compact and defragment, or raise the quota")


class Ambiguous(EtcdError):
    """The response to a write was lost.

    It may have been carried out, now or later: read before repeating it.
    """


class Refused(EtcdError):
    """etcd rejected the request. `code` is the gRPC status code."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class LeaseLost(Refused):
    """The lease expired or was revoked."""


class AuthError(Refused):
    """The user or the password is wrong, or the user lacks the permission."""


class Idle(Unavailable):
    """A watch told nothing for as long as it may."""


class Compacted(EtcdError):
    """etcd no longer has the revision from which a watch was to start: read the keys again."""


@dataclass(frozen=True)
class KeyValue:
    """One key at some revision. `lease` is 0 when the key has none."""

    key: str
    value: str
    create_revision: int
    mod_revision: int
    lease: int


@dataclass(frozen=True)
class Snapshot:
    """Keys, and the revision of the store at which they were read. `count` includes those beyond a limit."""

    revision: int
    keys: tuple[KeyValue, ...]
    count: int = 0


@dataclass(frozen=True)
class Span:
    """The keys from `first` up to but not including `end`, as much of them as a reader needs.

    A watch begins at `revision`. With `deletions` it tells nothing else, and with each the last value.
    """

    first: str
    end: str | bytes
    keys_only: bool = False
    limit: int = 0
    revision: int = 0
    deletions: bool = False

    @property
    def _keys(self) -> dict[str, Any]:
        return {"key": _b64(self.first), "range_end": _b64(self.end)}

    @property
    def reading(self) -> dict[str, Any]:
        """The request to read it."""
        return {**self._keys, "keys_only": self.keys_only, "limit": str(self.limit)}

    @property
    def watching(self) -> dict[str, Any]:
        """The request to watch it."""
        told = {"filters": ["NOPUT"], "prev_kv": True} if self.deletions else {}
        return {"create_request": {**self._keys, "start_revision": str(self.revision), **told}}


@dataclass(frozen=True)
class Event:
    """A change of one key. A `deleted` event has only the key and the revision of the deletion.

    `last` is the value that was deleted, where the watch asked for it.
    """

    kv: KeyValue
    deleted: bool
    last: str = ""


@dataclass(frozen=True)
class Outcome:
    """The result of a transaction: whether its comparisons held, and the store's revision after it."""

    succeeded: bool
    revision: int


@dataclass(frozen=True)
class ClusterMember:
    """A member of the etcd cluster. `name` is empty until it has started."""

    id: int
    name: str
    peer_urls: tuple[str, ...]
    client_urls: tuple[str, ...]
    is_learner: bool


@dataclass(frozen=True)
class Status:
    """State of the server at one endpoint. `leader` is 0 when it knows of none.

    For a user who may not read the status, `endpoint` lists all endpoints and `version` is empty.
    """

    endpoint: str
    version: str
    member_id: int
    leader: int
    revision: int


@dataclass(frozen=True)
class Endpoint:
    """Where an etcd server listens."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{self.address}"

    @property
    def address(self) -> Address:
        """Its host and port."""
        return Address(self.host, self.port)


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
        address = parse_address(rest, DEFAULT_PORT)
    except ValueError:
        sentence = f"{text!r} is not an etcd endpoint; write host:port or https://host:port"
        raise ValueError(sentence) from None
    return Endpoint(scheme, address.host, address.port)


def prefix_end(prefix: str) -> bytes:
    """The first key after all keys that start with the prefix."""
    raw = prefix.encode().rstrip(b"\xff")
    return raw[:-1] + bytes([raw[-1] + 1]) if raw else b"\0"


def key_is_unchanged(key: str, mod_revision: int) -> dict[str, Any]:
    """Comparison: the key was last written at this revision; 0 means that it does not exist."""
    return {"key": _b64(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(mod_revision)}


def key_is_same(key: str, create_revision: int) -> dict[str, Any]:
    """Comparison: the key was created at this revision and not deleted since; 0 means: it does not exist."""
    return {"key": _b64(key), "target": "CREATE", "result": "EQUAL", "create_revision": str(create_revision)}


def none_newer(prefix: str, revision: int) -> dict[str, Any]:
    """Comparison: no key with the prefix was written after this revision. Deletions do not count."""
    keys = {"key": _b64(prefix), "range_end": _b64(prefix_end(prefix))}
    return {**keys, "target": "MOD", "result": "LESS", "mod_revision": str(revision + 1)}


def none_in(first: str | bytes, end: str | bytes) -> dict[str, Any]:
    """Comparison: there is no key from `first` up to but not including `end`."""
    keys = {"key": _b64(first), "range_end": _b64(end)}
    return {**keys, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}


def put_op(key: str, value: str, lease: int = 0) -> dict[str, Any]:
    """Operation of a transaction: write a key, attached to a lease if one is given."""
    return {"request_put": {"key": _b64(key), "value": _b64(value), "lease": str(lease)}}


def delete_op(key: str, end: str = "") -> dict[str, Any]:
    """Operation of a transaction: delete one key, or all keys from it up to but not including `end`."""
    return {"request_delete_range": {"key": _b64(key), **({"range_end": _b64(end)} if end else {})}}


class Client:
    """A client of one etcd cluster, for one user. Threads may share it.

    It keeps to the endpoint that answered last. `timeout` is the limit for each request to each endpoint, in
    seconds. Every method may raise Unavailable, Refused and AuthError; writes may also raise Ambiguous.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        credentials: Credentials | None = None,
        timeout: float = 5.0,
        login_file: str = "",
    ) -> None:
        credentials = credentials or Credentials()
        if not endpoints:
            raise ValueError("an etcd client needs at least one endpoint, e.g. etcd.default.svc:2379")
        self.endpoints = tuple(endpoints)
        self._credentials = credentials
        self._timeout = timeout
        self._context = _tls(credentials) if any(e.scheme == "https" for e in endpoints) else None
        self._shared = _Shared(self.endpoints)
        self._login_file = login_file

    def with_timeout(self, seconds: float) -> Client:
        """This client with another timeout, in seconds. Both share connections, login and endpoint."""
        other = copy.copy(self)
        other._timeout = seconds
        return other

    def expect(self, clients: int) -> None:
        """So many clients start together with this one: spread the first logins."""
        self._shared.login_pace.clients = clients

    # Keys ----------------------------------------

    def get(self, key: str) -> KeyValue | None:
        """Read one key; None if it does not exist."""
        kvs = self._range({"key": _b64(key)}).keys
        return kvs[0] if kvs else None

    def range(self, prefix: str) -> Snapshot:
        """Read all keys that start with the prefix, in order."""
        return self._range({"key": _b64(prefix), "range_end": _b64(prefix_end(prefix))})

    def _range(self, body: dict[str, Any]) -> Snapshot:
        answer = self.call("/v3/kv/range", body)
        return _snapshot(_revision(answer), answer)

    def span(self, first: str, end: str | bytes, keys_only: bool = False, limit: int = 0) -> Snapshot:
        """Read the keys from `first` up to but not including `end`, in order, at most `limit` of them.

        Values may be left out.
        """
        return self._range(Span(first, end, keys_only, limit).reading)

    def spans(self, *spans: Span) -> tuple[Snapshot, ...]:
        """Read several spans at one revision."""
        answer = self.call("/v3/kv/txn", {"success": [{"request_range": span.reading} for span in spans]})
        revision = _revision(answer)
        return tuple(_snapshot(revision, each["response_range"]) for each in answer["responses"])

    def count(self, first: str, end: str) -> int:
        """The number of keys from `first` up to but not including `end`."""
        body = {"key": _b64(first), "range_end": _b64(end), "count_only": True}
        return int(self.call("/v3/kv/range", body).get("count", 0))

    def delete_span(self, first: str, end: str) -> None:
        """Delete the keys from `first` up to but not including `end`.

        It is repeated automatically, so nobody else may write these keys.
        """
        self.call("/v3/kv/deleterange", {"key": _b64(first), "range_end": _b64(end)})

    def put(self, key: str, value: str, lease: int = 0) -> int:
        """Write a key unconditionally; returns the revision.

        It is repeated automatically, so nobody else may write this key.
        """
        body = {"key": _b64(key), "value": _b64(value), "lease": str(lease)}
        return _revision(self.call("/v3/kv/put", body))

    def txn(self, compare: Sequence[dict[str, Any]], success: Sequence[dict[str, Any]]) -> Outcome:
        """Carry out `success` atomically if all comparisons hold.

        It is never repeated: may raise Ambiguous.
        """
        body = {"compare": list(compare), "success": list(success)}
        answer = self.call("/v3/kv/txn", body, repeatable=False)
        return Outcome(bool(answer.get("succeeded")), _revision(answer))

    def watch(self, prefix: str, revision: int, idle_timeout: float | None = None) -> Watch:
        """Watch all keys with the prefix, from a revision on.

        It ends with Idle after `idle_timeout` seconds without events.
        """
        return self.watch_spans([Span(prefix, prefix_end(prefix), revision=revision)], idle_timeout)

    def watch_spans(self, spans: Sequence[Span], idle_timeout: float | None = None) -> Watch:
        """Watch several spans, each from its revision on. Among them events may come in another order."""
        requests = [span.watching for span in spans]
        return Watch(self._stream("/v3/watch", requests, idle_timeout))

    # Leases ----------------------------------------

    @property
    def revision(self) -> int:
        """The store's revision at the last renewal of a lease; 0 before."""
        return self._shared.revision

    def lease_grant(self, ttl: int) -> int:
        """Make a lease of `ttl` seconds and return its id.

        The client chooses the id, so a repetition is harmless.
        """
        lease = secrets.randbits(62) + 1
        try:
            self.call("/v3/lease/grant", {"TTL": str(ttl), "ID": str(lease)})
        except Refused as refused:
            if "already exists" not in str(refused):
                raise
        return lease

    def lease_keepalive(self, lease: int) -> int:
        """Renew a lease and return its time to live, in seconds. Raises LeaseLost.

        Endpoints that failed when another one answered are given up: watches and requests of this client that
        wait for them end at once, and can go elsewhere.
        """
        failed: list[Endpoint] = []
        _, answer = self._call("/v3/lease/keepalive", {"ID": str(lease)}, repeatable=True, failed=failed)
        for endpoint in failed:
            self._shared.give_up(endpoint)
        answer = answer.get("result", answer)
        self._shared.revision = _revision(answer)
        ttl = int(answer.get("TTL", 0))
        if ttl <= 0:
            raise LeaseLost(f"lease {lease:x} has ended", _NOT_FOUND)
        return ttl

    def lease_revoke(self, lease: int) -> None:
        """End a lease and delete its keys. A lease that no longer exists is no error."""
        try:
            self.call("/v3/lease/revoke", {"ID": str(lease)})
        except LeaseLost:
            return

    # The cluster ----------------------------------------

    def status(self) -> Status:
        """State of the first server that answers."""
        endpoint, answer = self._call("/v3/maintenance/status", {}, repeatable=True)
        header = answer.get("header", {})
        return Status(
            str(endpoint), answer.get("version", ""), int(header.get("member_id", 0)),
            int(answer.get("leader", 0)), int(header.get("revision", 0)),
        )  # fmt: skip

    def members(self, by_majority: bool = True) -> tuple[ClusterMember, ...]:
        """The members of the cluster: those that a majority agrees on, or those that one server knows."""
        return _members(self.call("/v3/cluster/member/list", {"linearizable": by_majority}))

    def member_add(self, peer_url: str) -> tuple[ClusterMember, ...]:
        """Register one more voting member and return all. It is never repeated: may raise Ambiguous."""
        return _members(self.call("/v3/cluster/member/add", {"peerURLs": [peer_url]}, repeatable=False))

    def member_remove(self, member: int) -> None:
        """Remove a member. A member that does not exist is no error."""
        try:
            self.call("/v3/cluster/member/remove", {"ID": str(member)})
        except Refused as refused:
            if refused.code != _NOT_FOUND:
                raise

    def snapshot(self) -> Iterator[bytes]:
        """The database of the first server that answers, in pieces; the last 32 bytes are its SHA-256.

        The caller must compare the checksum: a server that stops may end the stream early.
        """
        stream, remaining = self._stream("/v3/maintenance/snapshot", [{}], self._timeout), 1
        try:
            for message in stream:
                result = message.get("result", message)
                remaining = int(result.get("remaining_bytes", 0))
                yield base64.b64decode(result.get("blob", ""))
        except Unavailable:
            if remaining:
                raise
        finally:
            stream.close()

    # Users ----------------------------------------

    def auth(self, action: str, body: Mapping[str, Any], exists_is_fine: bool = False) -> dict[str, Any]:
        """Call the authentication API, e.g. `auth("user/add", {"name": …})`."""
        try:
            return self.call(f"/v3/auth/{action}", dict(body))
        except Refused as refused:
            if exists_is_fine and "already exist" in str(refused):
                return {}
            raise

    # Requests ----------------------------------------

    def call(self, path: str, body: dict[str, Any], repeatable: bool = True) -> dict[str, Any]:
        """POST a request to the gateway, on one endpoint after another, and return the response.

        A `repeatable` request goes to the next endpoint whenever no response came. Any other goes there only
        if it was certainly not carried out, and raises Ambiguous if that is not known.
        """
        return self._call(path, body, repeatable)[1]

    def _call(
        self, path: str, body: dict[str, Any], repeatable: bool, failed: list[Endpoint] | None = None
    ) -> tuple[Endpoint, dict[str, Any]]:
        """The endpoint that answered, and its response; `failed` collects those that were asked in vain."""
        failures: list[str] = []
        for endpoint in self._shared.in_order():
            try:
                answer = self._ask(endpoint, path, body)
            except OutOfSpace:
                raise
            except (Unavailable, Ambiguous) as failure:
                if isinstance(failure, Ambiguous) and not repeatable:
                    self._shared.avoid(endpoint)
                    raise
                failures.append(str(failure))
                if failed is not None:
                    failed.append(endpoint)
                continue
            self._shared.prefer(endpoint)
            return endpoint, answer
        raise Unavailable("; ".join(failures))

    def _ask(self, endpoint: Endpoint, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request to one endpoint; log in, or log in again, if it demands that."""
        # The second login is for one that another process of this pod made, before etcd forgot it.
        for _ in range(2):
            token = self._shared.token
            try:
                return self._exchange(endpoint, path, body, token)
            except AuthError as refused:
                if not (self._credentials.username and _wants_login(refused)):
                    raise
            self._login(endpoint, token)
        return self._exchange(endpoint, path, body, self._shared.token)

    def _login(self, endpoint: Endpoint, stale: str) -> None:
        """Replace the token `stale`, for all threads, and for all processes that share the file."""
        shared = self._shared
        with shared.logging_in:
            if shared.token != stale:
                return
            if self._use_login_of_others():
                return
            # etcd forgets all tokens when it restarts, and computes a twentieth of a second for each login.
            if not shared.login_pace.wait(self._timeout, at_once=not shared.refused):
                raise Unavailable(f"{endpoint} demands a login, which waits its turn")
            if self._use_login_of_others():
                return
            body = {"name": self._credentials.username, "password": self._credentials.password}
            # To give up and ask again would let etcd compute it twice.
            patient = self.with_timeout(max(self._timeout, _LOGIN_TIMEOUT))
            answer = patient._exchange(endpoint, "/v3/auth/authenticate", body, "")
            shared.token = str(answer.get("token", ""))
            shared.login_pace.reset()
            self._share_login(shared.token)

    def _use_login_of_others(self) -> bool:
        """Take the login in the file, if it is not one that has failed."""
        shared = self._shared
        shared.refused |= {shared.token} - {""}
        with contextlib.suppress(OSError):
            if self._login_file:
                token = Path(self._login_file).read_text(encoding="utf-8")
                if token and token not in shared.refused:
                    shared.token = token
                    shared.login_pace.reset()
                    return True
        return False

    def _share_login(self, token: str) -> None:
        with contextlib.suppress(OSError):
            if self._login_file:
                Path(self._login_file).write_text(token, encoding="utf-8")

    def _exchange(self, endpoint: Endpoint, path: str, body: dict[str, Any], token: str) -> dict[str, Any]:
        connection = self._shared.idle(endpoint) or self._new_connection(endpoint)
        sock = connection.sock
        try:
            sock.settimeout(self._timeout)
            try:
                with self._shared.waiting(endpoint, sock):
                    connection.request("POST", path, json.dumps(body), _headers(token))
                    response = connection.getresponse()
                    raw = response.read()
            except BROKEN as error:
                self._shared.doubt(token, error)
                raise Ambiguous(f"{endpoint} did not answer ({reason(error)})") from error
            answer = _decode(endpoint, response.status, raw)
        except BaseException:
            connection.close()
            raise
        if path != "/v3/lease/keepalive":
            # Renewals need no login.
            self._shared.answered = time.monotonic()
        if response.will_close:
            connection.close()
        else:
            self._shared.keep(endpoint, connection)
        return answer

    def _new_connection(self, endpoint: Endpoint) -> http.client.HTTPConnection:
        tls = self._context if endpoint.scheme == "https" else None
        try:
            return connect(endpoint.address, self._timeout, tls)
        except OSError as error:
            if isinstance(error, socket.gaierror):
                self._shared.has_no_address(endpoint)
            raise Unavailable(f"{endpoint} cannot be reached ({reason(error)})") from error

    def _stream(self, path: str, requests: list[dict[str, Any]], idle_timeout: float | None) -> _Stream:
        body = "\n".join(map(json.dumps, requests))
        failures: list[str] = []
        for endpoint in self._shared.in_order():
            try:
                stream = self._open_stream(endpoint, path, body, idle_timeout)
            except (Unavailable, Ambiguous) as failure:
                failures.append(str(failure))
                continue
            self._shared.prefer(endpoint)
            return stream
        raise Unavailable("; ".join(failures))

    def _open_stream(self, endpoint: Endpoint, path: str, body: str, idle_timeout: float | None) -> _Stream:
        token = self._shared.token
        if self._credentials.username and not token:
            try:
                self._login(endpoint, token)
            except Refused as refused:
                if not _auth_is_off(refused):
                    raise
            token = self._shared.token
        connection = self._new_connection(endpoint)
        sock = connection.sock
        try:
            # A member without a leader ends a watch that asks for one, rather than telling it nothing.
            leader = {"Grpc-Metadata-hasleader": "true"} if path == "/v3/watch" else {}
            connection.request("POST", path, body, {**_headers(token), **leader})
            response = connection.getresponse()
            if response.status != 200:
                _decode(endpoint, response.status, response.read())
            sock.settimeout(idle_timeout)
        except BROKEN as error:
            connection.close()
            self._shared.doubt(token, error)
            raise Unavailable(f"{endpoint} did not answer ({reason(error)})") from error
        except EtcdError as error:
            connection.close()
            if isinstance(error, AuthError) and _wants_login(error):
                self._login(endpoint, token)
                raise Unavailable(f"{endpoint} demands a new login") from error
            raise
        return _Stream(self._shared, endpoint, sock, response)


class _Shared:
    """What the threads of a client, and its variants with other timeouts, share."""

    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        self.lock = threading.Lock()
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
        self._idle: list[tuple[Endpoint, http.client.HTTPConnection]] = []
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

    def idle(self, endpoint: Endpoint) -> http.client.HTTPConnection | None:
        """An idle connection to the endpoint that is still open."""
        with self.lock:
            mine = [pair for pair in self._idle if pair[0] == endpoint]
            if not mine:
                return None
            self._idle.remove(mine[-1])
        connection = mine[-1][1]
        # A connection that the server has closed is readable. A request on it would end in Ambiguous.
        if connection.sock is not None and not readable(connection.sock):
            return connection
        connection.close()
        return None

    def keep(self, endpoint: Endpoint, connection: http.client.HTTPConnection) -> None:
        """Keep a connection for the next request."""
        with self.lock:
            if len(self._idle) < 4:
                self._idle.append((endpoint, connection))
                return
        connection.close()

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

    The first login is at once, or spread over the time that etcd needs for all `clients`.
    """

    def __init__(self) -> None:
        self.clients = 0
        self._failures = 0
        self._due = 0.0

    def wait(self, seconds: float, at_once: bool) -> bool:
        """Wait for the turn, at most so many seconds; returns whether it has come. The first is at once."""
        if not self._due:
            window = 5.0 * 2 ** min(self._failures, 4)
            if at_once and not self._failures:
                window = _LOGIN_SECONDS * self.clients if self.clients > 1 else 0.0
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
        self._failures = 0


class _Stream:
    """The lines of a response that does not end by itself. Any thread may close it."""

    def __init__(
        self, shared: _Shared, endpoint: Endpoint, sock: socket.socket, response: http.client.HTTPResponse
    ) -> None:
        self.endpoint = endpoint
        self._shared = shared
        self._sock = sock
        self._response = response
        self.closed = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            with self._shared.waiting(self.endpoint, self._sock):
                for line in iter(self._response.readline, b""):
                    if line.strip():
                        yield _decode(self.endpoint, 200, line)
        except (*BROKEN, ValueError, AttributeError) as error:
            if not self.closed and isinstance(error, socket.timeout):
                raise Idle(f"{self.endpoint} told nothing of late ({reason(error)})") from error
            if not self.closed:
                raise Unavailable(f"{self.endpoint} ended the watch ({reason(error)})") from error
        if not self.closed:
            raise Unavailable(f"{self.endpoint} ended the watch")

    def close(self) -> None:
        self.closed = True
        # This wakes a thread that is reading. Closing the descriptor alone would not.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


class Watch:
    """An iterator of batches of events, each with its revision. To resume, watch from the last revision + 1.

    It ends when closed, from any thread. It raises Unavailable when the connection ends and Compacted when
    etcd no longer has the revision. The first batch is empty: the watch has been established.
    """

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[tuple[int, tuple[Event, ...]]]:
        for message in self._stream:
            result = message.get("result", message)
            if result.get("canceled") or int(result.get("compact_revision", 0)):
                self.close()
                reason = result.get("cancel_reason") or "its history was compacted"
                if int(result.get("compact_revision", 0)):
                    raise Compacted(f"the watch cannot resume: {reason}")
                # The login token may have expired; a new watch logs in again.
                raise Unavailable(f"{self._stream.endpoint} cancelled the watch: {reason}")
            yield _revision(result), tuple(_event(event) for event in result.get("events", ()))

    def close(self) -> None:
        """End the watch and the iteration over it."""
        self._stream.close()


def client_from(
    endpoints: str, env: Mapping[str, str], timeout: float = 5.0, conf: Mapping[str, Any] | None = None
) -> Client:
    """A client of these endpoints (`host:port[,host:port…]`) with the credentials in the environment.

    `conf` may override the TLS files and the scheme, under torch's names: cacert, cert, key, protocol. Raises
    ValueError.
    """
    conf = conf or {}
    known = Credentials.from_env(env)
    files = {name: str(conf.get(name) or getattr(known, name)) for name in ("cacert", "cert", "key")}
    credentials = replace(known, **files)
    scheme = str(conf.get("protocol") or ("https" if credentials.cacert else "http"))
    return Client(parse_endpoints(endpoints, scheme), credentials, timeout, env.get(LOGIN_FILE, ""))


def wait_until_up(client: Client, seconds: float, say: Say) -> Status:
    """Wait at most `seconds` until an endpoint serves reads; `say` logs the progress.

    Raises Unavailable, or AuthError when etcd still refuses the user at the end.
    """
    deadline = time.monotonic() + seconds
    logged: float | None = None
    while True:
        try:
            return _probe(client)
        except (Unavailable, Ambiguous, AuthError) as error:
            problem = error
        now = time.monotonic()
        if now >= deadline:
            if isinstance(problem, AuthError):
                advice = "check the Secret with its name and password"
                raise AuthError(f"etcd refuses the user: {problem}; {advice}", problem.code)
            raise Unavailable(f"etcd did not answer within {seconds:.0f} s: {problem}")
        if logged is None or now - logged >= 10:
            logged = now
            say(f"waiting for etcd, {deadline - now:.0f} s at most: {problem}")
        time.sleep(min(0.3, max(0.0, deadline - now)))


def _probe(client: Client) -> Status:
    """The status of a server that serves reads, even if the user may read neither status nor keys."""
    status = Status(", ".join(map(str, client.endpoints)), "", 0, 0, 0)
    with _denial_is_fine():
        # When etcd 3.6 asks for users, only root may read its status.
        status = client.status()
    with _denial_is_fine():
        client.get("/")
    return status


@contextlib.contextmanager
def _denial_is_fine() -> Iterator[None]:
    """A server that denies permission does answer."""
    try:
        yield
    except AuthError as error:
        if error.code != _PERMISSION_DENIED:
            raise


def _tls(credentials: Credentials) -> ssl.SSLContext:
    for path in (credentials.cacert, credentials.cert, credentials.key):
        if path and not os.path.isfile(path):
            raise ValueError(f"the TLS file {path} does not exist")
    context = ssl.create_default_context(cafile=credentials.cacert or None)
    if credentials.cert:
        context.load_cert_chain(credentials.cert, credentials.key or None)
    return context


def _headers(token: str) -> dict[str, str]:
    # Without Accept, etcd takes the user from the client certificate rather than from the token.
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    return {**headers, "Authorization": token} if token else headers


def _decode(endpoint: Endpoint, status: int, raw: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(raw)
    except ValueError:
        if raw.startswith(b"CommonName of client"):
            rule = "an etcd that asks for users accepts only client certificates without a CommonName"
            raise AuthError(f"{rule}: make one without", _PERMISSION_DENIED) from None
        text = raw[:100].decode(errors="replace").strip()
        raise Ambiguous(
            f"{endpoint} answered with HTTP {status} and no JSON, so it is not etcd: {text}"
        ) from None
    error = answer.get("error") if isinstance(answer, dict) else {"message": "no JSON object"}
    if status == 200 and not error:
        return dict(answer)
    detail = error if isinstance(error, dict) else answer
    message = str(detail.get("message") or error or f"HTTP {status}")
    raise _error(endpoint, int(detail.get("code") or detail.get("grpc_code") or 0), message)


def _error(endpoint: Endpoint, code: int, message: str) -> EtcdError:
    text = message[len("etcdserver: ") :] if message.startswith("etcdserver: ") else message
    if "requested lease not found" in text:
        return LeaseLost(text, code)
    if code in (_UNAUTHENTICATED, _PERMISSION_DENIED) or any(part in text for part in _LOGIN_MESSAGES):
        return AuthError(text, code)
    if "database space exceeded" in text:
        return OutOfSpace()
    if code == _EXHAUSTED or text == "no leader":
        return Unavailable(f"{endpoint}: {text}")
    # etcd also reports a violated membership rule as "unavailable"; it is a refusal.
    if code == _UNAVAILABLE and ("unhealthy cluster" in text or "not enough started" in text):
        return Refused(text, code)
    if code in _UNKNOWN_OUTCOME:
        return Ambiguous(f"{endpoint}: {text}")
    return Refused(text, code)


_LOGIN_MESSAGES = (
    "invalid auth token",
    "user name is empty",
    "revision of auth store is old",
    "authentication failed",
)


def _wants_login(refused: Refused) -> bool:
    return any(part in str(refused) for part in _LOGIN_MESSAGES[:3])


def _auth_is_off(refused: Refused) -> bool:
    return "authentication is not enabled" in str(refused)


def _b64(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode(errors="replace")


def _revision(answer: Mapping[str, Any]) -> int:
    return int(answer.get("header", {}).get("revision", 0))


def _key_value(kv: Mapping[str, Any]) -> KeyValue:
    return KeyValue(
        _text(kv.get("key", "")), _text(kv.get("value", "")), int(kv.get("create_revision", 0)),
        int(kv.get("mod_revision", 0)), int(kv.get("lease", 0)),
    )  # fmt: skip


def _snapshot(revision: int, answer: Mapping[str, Any]) -> Snapshot:
    keys = tuple(_key_value(kv) for kv in answer.get("kvs", ()))
    return Snapshot(revision, keys, int(answer.get("count", 0)))


def _event(event: Mapping[str, Any]) -> Event:
    last = _text(event.get("prev_kv", {}).get("value", ""))
    return Event(_key_value(event.get("kv", {})), event.get("type") == "DELETE", last)


def _members(answer: Mapping[str, Any]) -> tuple[ClusterMember, ...]:
    def member(raw: Mapping[str, Any]) -> ClusterMember:
        urls: Iterable[Any] = (raw.get("peerURLs", ()), raw.get("clientURLs", ()))
        peers, clients = (tuple(str(url) for url in each) for each in urls)
        return ClusterMember(int(raw["ID"]), raw.get("name", ""), peers, clients, bool(raw.get("isLearner")))

    return tuple(member(raw) for raw in answer.get("members", ()))
