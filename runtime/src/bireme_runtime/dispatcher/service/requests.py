"""Requests of trainers to the dispatcher, and answers, after HTTP and JSON have been decoded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bireme_runtime.dispatcher.messages import BLOCK
from bireme_runtime.etcd import client as etcd
from bireme_runtime.process.errors import BiremeError

_LONGEST_NAME = 1000
_MOST_SETTLED = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class BadRequest(BiremeError, ValueError):
    """A request is invalid; the message is for the client."""


def checked_name(what: str, name: str) -> str:
    """The name of a dataset or of a task, if it can be part of a key. Raises BadRequest."""
    if not _NAME.fullmatch(name):
        rule = "letters, digits, dots, dashes and underlines, 128 at most"
        raise BadRequest(f"{name!r} cannot be the name of a {what}: use {rule}")
    return name


@dataclass(frozen=True)
class Definition:
    """The definition of a dataset: the number of its shards and a digest of their names.

    A trainer may keep a shard for `timeout` seconds. A shard that fails `failures` times in a pass is given
    up for that pass. A key contains `block` names.
    """

    shards: int
    digest: str
    passes: int = 1
    timeout: float = 600.0
    failures: int = 3
    block: int = BLOCK

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{8,64}", self.digest):
            raise BadRequest("digest must be hexadecimal")
        for name in ("shards", "passes", "failures", "timeout", "block"):
            if not getattr(self, name) > 0:
                raise BadRequest(f"{name} is {getattr(self, name)}: it must be more than 0")

    @property
    def blocks(self) -> int:
        """The number of blocks of names."""
        return -(-self.shards // self.block)

    def start_of(self, block: int) -> int:
        """The first shard of a block; for the block after the last, the number of shards."""
        return min(block * self.block, self.shards)

    def to_json(self) -> str:
        """The value of the key."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Definition:
        """From a decoded value or request. Raises BadRequest."""
        try:
            return cls(
                int(record["shards"]), str(record["digest"]), int(record.get("passes", 1)),
                float(record.get("timeout", 600)), int(record.get("failures", 3)),
                int(record.get("block", BLOCK)),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, BadRequest):
                raise
            raise BadRequest(f"this is not the definition of a dataset: {error!r}") from error


def checked_names(names: Any) -> list[str]:
    """The names of one block of shards. Raises BadRequest."""
    if not isinstance(names, list) or not 0 < len(names) <= BLOCK:
        raise BadRequest(f"a block has 1 to {BLOCK} names of shards")
    for name in names:
        if not isinstance(name, str) or not 0 < len(name.encode()) <= _LONGEST_NAME:
            raise BadRequest(f"a shard's name is text of 1 to {_LONGEST_NAME} bytes, not {str(name)[:50]!r}")
    return names


def lease_of(trainer: str) -> int:
    """The lease of a trainer, which its id ends with. Raises BadRequest."""
    try:
        return int(trainer.rpartition(".")[2], 16)
    except ValueError:
        raise BadRequest(f"{trainer!r} is not a trainer id of this service") from None


@dataclass(frozen=True)
class Settled:
    """A shard that a trainer no longer processes; `token` is the one that it received with the shard."""

    shard: int
    token: int
    reason: str = ""


@dataclass(frozen=True)
class TrainerRequest:
    """A request of a trainer: `verb` is add, join, next, settle, once, once-done, leave, finished or delete.

    `have` are the tokens of the shards that the trainer has. If an answer with a shard was lost, its token is
    not among them, and the shard is sent again. With `ahead` the trainer asks for a shard while it works on
    another one, and does not wait for it. `lost` are words of a supervisor whose trainer ended with a shard
    that may be to blame: that leave counts as the end of its lease. All requests may be repeated.
    """

    verb: str
    dataset: str
    trainer: str = ""
    name: str = ""
    lease: int = 0
    definition: Definition | None = None
    have: tuple[int, ...] = ()
    done: tuple[Settled, ...] = ()
    failed: tuple[Settled, ...] = ()
    released: tuple[Settled, ...] = ()
    ahead: bool = False
    lost: str = ""

    @classmethod
    def from_json(cls, verb: str, dataset: str, body: Mapping[str, Any]) -> TrainerRequest:
        """Decode a request's body. Raises BadRequest."""
        checked_name("dataset", dataset)
        try:
            name = str(body.get("name", ""))
            if verb.startswith("once"):
                checked_name("task", name)
            return cls(
                verb, dataset, str(body.get("trainer", "")), name,
                definition=Definition.from_json(body) if verb == "add" else None,
                have=tuple(int(token) for token in body.get("have", ())),
                done=_settled(body, "done"), failed=_settled(body, "failed"),
                released=_settled(body, "released"), ahead=bool(body.get("ahead")),
                lost=str(body.get("lost", "")),
            )  # fmt: skip
        except (TypeError, ValueError, LookupError) as error:
            if isinstance(error, BadRequest):
                raise
            raise BadRequest(f"the request cannot be decoded: {error!r}") from error


def _settled(body: Mapping[str, Any], key: str) -> tuple[Settled, ...]:
    # Each one that is not known costs two requests to etcd, for which all others wait.
    if len(body.get(key, ())) > _MOST_SETTLED:
        raise BadRequest(f"{key} has more than {_MOST_SETTLED} shards: settle them in several requests")
    return tuple(Settled(int(each[0]), int(each[1]), *map(str, each[2:3])) for each in body.get(key, ()))


@dataclass(frozen=True)
class Answer:
    """An answer of the leader: the status of HTTP and the content of the body."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)


def refusal(status: int, sentence: str) -> Answer:
    """An answer with a sentence that says why the request was not carried out."""
    return Answer(status, {"error": sentence})


def not_now(error: etcd.EtcdError) -> Answer:
    """The answer to a request that etcd did not let the dispatcher carry out; the client sends it again."""
    full = isinstance(error, etcd.OutOfSpace)
    return refusal(503, str(error) if full else f"etcd did not carry out the request: {error}")
