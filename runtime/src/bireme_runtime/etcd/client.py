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
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

# Callers import this module as `etcd`, and find in it all that they need.
from bireme_runtime.etcd.connections import Credentials as Credentials
from bireme_runtime.etcd.connections import Endpoint as Endpoint
from bireme_runtime.etcd.connections import Shared, tls_context
from bireme_runtime.etcd.connections import parse_endpoints as parse_endpoints
from bireme_runtime.etcd.history import HISTORY as HISTORY
from bireme_runtime.etcd.history import History as History
from bireme_runtime.etcd.messages import *
from bireme_runtime.process import environment
from bireme_runtime.process.http import BROKEN, connect, reason
from bireme_runtime.process.log import Say
from bireme_runtime.process.waiting import BoundedWait

# A file in which the clients of one pod share their login.
LOGIN_FILE = "BIREME_ETCD_LOGIN"
# Milliseconds between first logins of clients that start together: etcd computes 50 for each, or fewer where
# the chart knows it.
_LOGIN_MS = 30
LOGIN_MS = "BIREME_ETCD_LOGIN_MS"
_LOGIN_TIMEOUT = 30.0
_TURN = "demands a login, which waits its turn"


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
        login_ms: int = _LOGIN_MS,
        history: History | None = None,
    ) -> None:
        credentials = credentials or Credentials()
        if not endpoints:
            raise ValueError("an etcd client needs at least one endpoint, e.g. etcd.default.svc:2379")
        self.endpoints = tuple(endpoints)
        self._credentials = credentials
        self._timeout = timeout
        self._context = tls_context(credentials) if any(e.scheme == "https" for e in endpoints) else None
        self._shared = Shared(self.endpoints, history or History())
        self.history = self._shared.history
        self._login_file = login_file
        self._login_ms = login_ms

    def with_timeout(self, seconds: float) -> Client:
        """This client with another timeout, in seconds. Both share connections, login and endpoint."""
        other = copy.copy(self)
        other._timeout = seconds
        return other

    def expect(self, clients: int) -> float:
        """Spread the first logins of so many clients that start together; returns over how many seconds."""
        window = self._login_ms / 1000 * clients if clients > 1 else 0.0
        self._shared.login_pace.first_window = window
        return window

    # Keys ----------------------------------------

    def get(self, key: str) -> KeyValue | None:
        """Read one key; None if it does not exist."""
        kvs = self.span(key, key + "\0").keys
        return kvs[0] if kvs else None

    def range(self, prefix: str) -> Snapshot:
        """Read all keys that start with the prefix, in order."""
        return self.span(prefix, prefix_end(prefix))

    def span(self, first: str, end: str | bytes, keys_only: bool = False, limit: int = 0) -> Snapshot:
        """Read the keys from `first` up to but not including `end`, in order, at most `limit` of them.

        Values may be left out.
        """
        answer = self.call("/v3/kv/range", Span(first, end, keys_only, limit).reading)
        return snapshot_of(revision_of(answer), answer)

    def spans(self, *spans: Span) -> tuple[Snapshot, ...]:
        """Read several spans at one revision."""
        answer = self.call("/v3/kv/txn", {"success": [{"request_range": span.reading} for span in spans]})
        revision = revision_of(answer)
        return tuple(snapshot_of(revision, each["response_range"]) for each in answer["responses"])

    def count(self, first: str, end: str) -> int:
        """The number of keys from `first` up to but not including `end`."""
        body = {"key": encoded(first), "range_end": encoded(end), "count_only": True}
        return int(self.call("/v3/kv/range", body).get("count", 0))

    def delete_span(self, first: str, end: str) -> None:
        """Delete the keys from `first` up to but not including `end`.

        It is repeated automatically, so nobody else may write these keys.
        """
        self.call("/v3/kv/deleterange", {"key": encoded(first), "range_end": encoded(end)})

    def put(self, key: str, value: str, lease: int = 0) -> int:
        """Write a key unconditionally; returns the revision.

        It is repeated automatically, so nobody else may write this key.
        """
        body = {"key": encoded(key), "value": encoded(value), "lease": str(lease)}
        return revision_of(self.call("/v3/kv/put", body))

    def txn(self, compare: Sequence[dict[str, Any]], success: Sequence[dict[str, Any]]) -> TxnResult:
        """Carry out `success` atomically if all comparisons hold.

        It is never repeated: may raise Ambiguous.
        """
        body = {"compare": list(compare), "success": list(success)}
        answer = self.call("/v3/kv/txn", body, repeatable=False)
        return TxnResult(bool(answer.get("succeeded")), revision_of(answer))

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
        self._shared.revision = revision_of(answer)
        ttl = int(answer.get("TTL", 0))
        if ttl <= 0:
            raise LeaseLost(f"lease {lease:x} has ended", NOT_FOUND)
        return ttl

    def lease_revoke(self, lease: int) -> None:
        """End a lease and delete its keys. A lease that no longer exists is no error."""
        try:
            self.call("/v3/lease/revoke", {"ID": str(lease)})
        except LeaseLost:
            return

    # The cluster ----------------------------------------

    def status(self) -> EndpointStatus:
        """State of the first server that answers."""
        endpoint, answer = self._call("/v3/maintenance/status", {}, repeatable=True)
        return EndpointStatus(str(endpoint), answer.get("version", ""), int(answer.get("leader", 0)))

    def members(self, by_majority: bool = True) -> tuple[ClusterMember, ...]:
        """The members of the cluster: those that a majority agrees on, or those that one server knows."""
        return members_of(self.call("/v3/cluster/member/list", {"linearizable": by_majority}))

    def member_add(self, peer_url: str) -> tuple[ClusterMember, ...]:
        """Register one more voting member and return all. It is never repeated: may raise Ambiguous."""
        return members_of(self.call("/v3/cluster/member/add", {"peerURLs": [peer_url]}, repeatable=False))

    def member_remove(self, member: int) -> None:
        """Remove a member. A member that does not exist is no error."""
        try:
            self.call("/v3/cluster/member/remove", {"ID": str(member)})
        except Refused as refused:
            if refused.code != NOT_FOUND:
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

    @property
    def denied(self) -> AuthError | None:
        """Why etcd has refused the last login. None if it has not."""
        return self._shared.login_pace.denied

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
        failures: list[EtcdError] = []
        for endpoint in self._shared.in_order():
            try:
                answer = self._ask(endpoint, path, body)
            except OutOfSpace:
                raise
            except (Unavailable, Ambiguous) as failure:
                if isinstance(failure, Ambiguous) and not repeatable:
                    self._shared.avoid(endpoint)
                    raise
                failures.append(failure)
                if failed is not None:
                    failed.append(endpoint)
                continue
            self._shared.prefer(endpoint)
            return endpoint, answer
        strange = any(isinstance(failure, AnotherCluster) for failure in failures)
        raise (AnotherCluster if strange else Unavailable)("; ".join(map(str, failures)))

    def _ask(self, endpoint: Endpoint, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request to one endpoint; log in, or log in again, if it demands that."""
        # The second login is for one that another process of this pod made, before etcd forgot it.
        for _ in range(2):
            token = self._shared.token
            try:
                return self._exchange(endpoint, path, body, token)
            except AuthError as refused:
                if not (self._credentials.username and wants_login(refused)):
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
                raise Unavailable(f"{endpoint} {_TURN}")
            if self._use_login_of_others():
                return
            body = {"name": self._credentials.username, "password": self._credentials.password}
            # To give up and ask again would let etcd compute it twice.
            patient = self.with_timeout(max(self._timeout, _LOGIN_TIMEOUT))
            try:
                answer = patient._exchange(endpoint, "/v3/auth/authenticate", body, "")
            except AuthError as error:
                shared.login_pace.denied = error
                raise
            shared.token = str(answer.get("token", ""))
            shared.login_pace.reset()
            with contextlib.suppress(OSError):
                if self._login_file:
                    Path(self._login_file).write_text(shared.token, encoding="utf-8")

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

    def _exchange(self, endpoint: Endpoint, path: str, body: dict[str, Any], token: str) -> dict[str, Any]:
        connection = self._shared.connections.take(endpoint) or self._new_connection(endpoint)
        sock, history = connection.sock, self.history
        before = history.known if path.startswith("/v3/kv/") else None
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
            answer = decode(endpoint, response.status, raw)
            history.heard(endpoint, answer.get("result", answer).get("header", {}), before)
        except BaseException:
            connection.close()
            raise
        if path != "/v3/lease/keepalive":
            # Renewals need no login.
            self._shared.answered = time.monotonic()
        if response.will_close:
            connection.close()
        else:
            self._shared.connections.keep(endpoint, connection)
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
                if not auth_is_off(refused):
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
                decode(endpoint, response.status, response.read())
            sock.settimeout(idle_timeout)
        except BROKEN as error:
            connection.close()
            self._shared.doubt(token, error)
            raise Unavailable(f"{endpoint} did not answer ({reason(error)})") from error
        except EtcdError as error:
            connection.close()
            if isinstance(error, AuthError) and wants_login(error):
                self._login(endpoint, token)
                raise Unavailable(f"{endpoint} demands a new login") from error
            raise
        return _Stream(self._shared, endpoint, sock, response)


class _Stream:
    """The lines of a response that does not end by itself. Any thread may close it."""

    def __init__(
        self, shared: Shared, endpoint: Endpoint, sock: socket.socket, response: http.client.HTTPResponse
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
                        yield decode(self.endpoint, 200, line)
        except (*BROKEN, ValueError, AttributeError) as error:
            if not self.closed and isinstance(error, socket.timeout):
                raise Idle(f"{self.endpoint} told nothing of late ({reason(error)})") from error
            if not self.closed:
                raise Unavailable(f"{self.endpoint} ended the watch ({reason(error)})") from error
        if not self.closed:
            raise Unavailable(f"{self.endpoint} ended the watch")

    def heard(self, header: Mapping[str, Any]) -> None:
        """Note whose data a line is of. Raises AnotherCluster."""
        try:
            self._shared.history.heard(self.endpoint, header)
        except AnotherCluster:
            self.close()
            raise

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
            self._stream.heard(result.get("header", {}))
            if result.get("canceled") or int(result.get("compact_revision", 0)):
                self.close()
                reason = result.get("cancel_reason") or "its history was compacted"
                if int(result.get("compact_revision", 0)):
                    raise Compacted(f"the watch cannot resume: {reason}")
                # The login token may have expired; a new watch logs in again.
                raise Unavailable(f"{self._stream.endpoint} cancelled the watch: {reason}")
            yield revision_of(result), tuple(event_of(event) for event in result.get("events", ()))

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
    login_ms = environment.integer(env, LOGIN_MS, _LOGIN_MS, least=0)
    history = History.at(env[HISTORY]) if HISTORY in env else None
    return Client(
        parse_endpoints(endpoints, scheme), credentials, timeout, env.get(LOGIN_FILE, ""), login_ms, history
    )


def wait_until_up(client: Client, seconds: float, say: Say) -> EndpointStatus:
    """Wait at most `seconds` until an endpoint serves reads; `say` logs the progress.

    Raises Unavailable, or AuthError when etcd still refuses the user at the end.
    """
    wait = BoundedWait(seconds, say, pause=0.3)
    while True:
        try:
            return _probe(client)
        except (Unavailable, Ambiguous, AuthError) as error:
            # Between two logins there is no other answer.
            denied = client.denied if _TURN in str(error) else None
            refused = error if isinstance(error, AuthError) else denied
            if wait.a_moment("etcd", f": {refused or error}"):
                continue
            if refused:
                advice = "check the Secret with its name and password"
                raise AuthError(f"etcd refuses the user: {refused}; {advice}", refused.code) from error
            raise Unavailable(f"etcd did not answer within {seconds:.0f} s: {error}") from error


def _probe(client: Client) -> EndpointStatus:
    """The status of a server that serves reads, even if the user may read neither status nor keys."""
    status = EndpointStatus(", ".join(map(str, client.endpoints)), "", 0)
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
        if error.code != PERMISSION_DENIED:
            raise


def _headers(token: str) -> dict[str, str]:
    # Without Accept, etcd takes the user from the client certificate rather than from the token.
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    return {**headers, "Authorization": token} if token else headers
