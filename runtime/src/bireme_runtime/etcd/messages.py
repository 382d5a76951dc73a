"""What etcd's HTTP/JSON gateway is asked and what it answers: keys, comparisons, operations, errors."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bireme_runtime.process.errors import BiremeError

# gRPC status codes, as the gateway reports them.
NOT_FOUND, PERMISSION_DENIED, _EXHAUSTED, _UNAVAILABLE, _UNAUTHENTICATED = 5, 7, 8, 14, 16
# After these codes a write may nevertheless have reached etcd's log.
_UNKNOWN_OUTCOME = {1, 2, 4, 13, 14}


class EtcdError(BiremeError):
    """A request to etcd failed; the subclasses say what is known about its effect."""


class Unavailable(EtcdError):
    """No endpoint accepted the request. It was not carried out: repeating it is safe."""


class AnotherCluster(Unavailable):
    """An endpoint belongs to another cluster than before."""


class OutOfSpace(Unavailable):
    """etcd takes no writes because its quota is used up."""

    def __init__(self) -> None:
        super().__init__(
            "etcd is out of space (NOSPACE alarm): compact and defragment, or raise the quota, then run "
            "etcdctl alarm disarm"
        )


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
        return {"key": encoded(self.first), "range_end": encoded(self.end)}

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
class TxnResult:
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


@dataclass(frozen=True)
class EndpointStatus:
    """State of the server at one endpoint. `leader` is 0 when it knows of none.

    For a user who may not read the status, `endpoint` lists all endpoints and `version` is empty.
    """

    endpoint: str
    version: str
    leader: int


def prefix_end(prefix: str) -> bytes:
    """The first key after all keys that start with the prefix."""
    raw = prefix.encode().rstrip(b"\xff")
    return raw[:-1] + bytes([raw[-1] + 1]) if raw else b"\0"


def key_is_unchanged(key: str, revision: int) -> dict[str, Any]:
    """Comparison: the key was last written at this revision; 0 means that it does not exist."""
    return {"key": encoded(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def key_is_same(key: str, revision: int) -> dict[str, Any]:
    """Comparison: the key was created at this revision and not deleted since; 0 means: it does not exist."""
    return {"key": encoded(key), "target": "CREATE", "result": "EQUAL", "create_revision": str(revision)}


def none_newer(prefix: str, revision: int) -> dict[str, Any]:
    """Comparison: no key with the prefix was written after this revision. Deletions do not count."""
    keys = {"key": encoded(prefix), "range_end": encoded(prefix_end(prefix))}
    return {**keys, "target": "MOD", "result": "LESS", "mod_revision": str(revision + 1)}


def none_in(first: str | bytes, end: str | bytes) -> dict[str, Any]:
    """Comparison: there is no key from `first` up to but not including `end`."""
    keys = {"key": encoded(first), "range_end": encoded(end)}
    return {**keys, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}


def put_op(key: str, value: str, lease: int = 0) -> dict[str, Any]:
    """Operation of a transaction: write a key, attached to a lease if one is given."""
    return {"request_put": {"key": encoded(key), "value": encoded(value), "lease": str(lease)}}


def delete_op(key: str, end: str = "") -> dict[str, Any]:
    """Operation of a transaction: delete one key, or all keys from it up to but not including `end`."""
    return {"request_delete_range": {"key": encoded(key), **({"range_end": encoded(end)} if end else {})}}


def decode(endpoint: object, status: int, raw: bytes) -> dict[str, Any]:
    """The answer of an endpoint, or one line of a stream. Raises EtcdError for a refusal."""
    try:
        answer = json.loads(raw)
    except ValueError:
        if raw.startswith(b"CommonName of client"):
            rule = "an etcd that asks for users accepts only client certificates without a CommonName"
            raise AuthError(f"{rule}: make one without", PERMISSION_DENIED) from None
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


def _error(endpoint: object, code: int, message: str) -> EtcdError:
    text = message[len("etcdserver: ") :] if message.startswith("etcdserver: ") else message
    if "requested lease not found" in text:
        return LeaseLost(text, code)
    if code in (_UNAUTHENTICATED, PERMISSION_DENIED) or any(part in text for part in _LOGIN_MESSAGES):
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


def wants_login(refused: Refused) -> bool:
    """Whether a new login may help."""
    return any(part in str(refused) for part in _LOGIN_MESSAGES[:3])


def auth_is_off(refused: Refused) -> bool:
    """Whether this etcd has no users."""
    return "authentication is not enabled" in str(refused)


def encoded(text: str | bytes) -> str:
    """A key or a value as the gateway takes it, in Base64."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def _text(given: str) -> str:
    return base64.b64decode(given).decode(errors="replace")


def revision_of(answer: Mapping[str, Any]) -> int:
    """The revision of the store at the answer."""
    return int(answer.get("header", {}).get("revision", 0))


def _key_value(kv: Mapping[str, Any]) -> KeyValue:
    return KeyValue(
        _text(kv.get("key", "")), _text(kv.get("value", "")), int(kv.get("create_revision", 0)),
        int(kv.get("mod_revision", 0)), int(kv.get("lease", 0)),
    )  # fmt: skip


def snapshot_of(revision: int, answer: Mapping[str, Any]) -> Snapshot:
    """The keys of an answer that was read at this revision."""
    keys = tuple(_key_value(kv) for kv in answer.get("kvs", ()))
    return Snapshot(revision, keys, int(answer.get("count", 0)))


def event_of(event: Mapping[str, Any]) -> Event:
    """One event of a watch."""
    last = _text(event.get("prev_kv", {}).get("value", ""))
    return Event(_key_value(event.get("kv", {})), event.get("type") == "DELETE", last)


def members_of(answer: Mapping[str, Any]) -> tuple[ClusterMember, ...]:
    """The members that an answer lists."""

    def member(raw: Mapping[str, Any]) -> ClusterMember:
        urls: Iterable[Any] = (raw.get("peerURLs", ()), raw.get("clientURLs", ()))
        peers, clients = (tuple(str(url) for url in each) for each in urls)
        return ClusterMember(int(raw["ID"]), raw.get("name", ""), peers, clients)

    return tuple(member(raw) for raw in answer.get("members", ()))
