"""Where the dispatcher keeps what in etcd, and what it is asked (docs/dispatcher.md).

Keys under the prefix; all but `trainers/` and `blocks/` are written by the leader only:

    leader                            under the leader's lease: who leads
    datasets/<name>                   this dataset exists
    trainers/<name>/<trainer>         under the trainer's lease
    d/<name>/meta                     what the dataset is: how many shards, how many passes, the limits
    d/<name>/blocks/<digest>/<k>      names of so many shards; never changed
    d/<name>/pass                     number of the pass, and whether it was the last
    d/<name>/held/<shard>             in a trainer's hand; the key's revision is the token to acknowledge it
    d/<name>/done/<pass>/<shard>      acknowledged
    d/<name>/failed/<pass>/<shard>    given up in this pass
    d/<name>/tries/<pass>/<shard>     failed, to be tried again
    d/<name>/once/<what>              what one trainer does while the others wait
    d/<name>/passes/<pass>            how a pass ended
    d/<name>/finished                 all passes are over and the last trainer has left

A shard that is neither held nor done nor failed is to do, so a new pass writes no key of any shard.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bireme_runtime.dispatcher.messages import BLOCK

DEFAULT_PREFIX = "/bireme/dispatcher/"
DEFAULT_PORT = 7190
_LONGEST_NAME = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class BadRequest(ValueError):
    """What was asked makes no sense; the message is a sentence for whoever asked."""


def checked_name(kind: str, name: str) -> str:
    """The name of a dataset or of something done once, if it can be part of a key. Raises BadRequest."""
    if not _NAME.fullmatch(name):
        rule = "letters, digits, dots, dashes and underlines, 128 at most"
        raise BadRequest(f"{name!r} cannot be the name of a {kind}: use {rule}")
    return name


@dataclass(frozen=True)
class Definition:
    """A dataset: `shards` names, whose digest tells it from others; `timeout` in seconds for one shard.

    A shard that fails `failures` times in a pass is given up for that pass. A key holds `block` names.
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
        """How many blocks hold the names."""
        return -(-self.shards // self.block)

    def start_of(self, block: int) -> int:
        """The first shard of a block; that of the one after the last is the number of all."""
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
            raise BadRequest(f"that defines no dataset: {error!r}") from error


def checked_names(names: Any) -> list[str]:
    """The names of one block of shards. Raises BadRequest."""
    if not isinstance(names, list) or not 0 < len(names) <= BLOCK:
        raise BadRequest(f"a block has 1 to {BLOCK} names of shards")
    for name in names:
        if not isinstance(name, str) or not 0 < len(name.encode()) <= _LONGEST_NAME:
            raise BadRequest(f"a shard's name is text of 1 to {_LONGEST_NAME} bytes, not {str(name)[:50]!r}")
    return names


@dataclass(frozen=True)
class Keys:
    """The keys of one dataset."""

    prefix: str
    dataset: str

    @property
    def root(self) -> str:
        return f"{self.prefix}d/{self.dataset}/"

    @property
    def registered(self) -> str:
        return f"{self.prefix}datasets/{self.dataset}"

    @property
    def meta(self) -> str:
        return f"{self.root}meta"

    @property
    def current_pass(self) -> str:
        return f"{self.root}pass"

    @property
    def finished(self) -> str:
        return f"{self.root}finished"

    def blocks(self, digest: str) -> str:
        return f"{self.root}blocks/{digest}/"

    def block(self, digest: str, number: int) -> str:
        return f"{self.blocks(digest)}{number:07d}"

    def held(self, shard: int | None = None) -> str:
        return f"{self.root}held/" + _index(shard)

    def done(self, number: int, shard: int | None = None) -> str:
        return f"{self.root}done/{number:07d}/" + _index(shard)

    def failed(self, number: int, shard: int | None = None) -> str:
        return f"{self.root}failed/{number:07d}/" + _index(shard)

    def tries(self, number: int, shard: int | None = None) -> str:
        return f"{self.root}tries/{number:07d}/" + _index(shard)

    def ended(self, number: int) -> str:
        return f"{self.root}passes/{number:07d}"

    def once(self, what: str = "") -> str:
        return f"{self.root}once/{what}"

    def trainer(self, trainer: str = "") -> str:
        return f"{trainers_of(self.prefix)}{self.dataset}/{trainer}"


def _index(shard: int | None) -> str:
    return "" if shard is None else f"{shard:09d}"


def trainers_of(prefix: str) -> str:
    """Where the keys of all trainers start."""
    return f"{prefix}trainers/"


def after(prefix: str) -> str:
    """A key behind all that start with this prefix, which ends in "/"."""
    return prefix[:-1] + "0"


def last_part(key: str) -> str:
    """What stands behind the last "/"."""
    return key.rpartition("/")[2]


def lease_of(trainer: str) -> int:
    """The lease of a trainer, which is the end of its id. Raises BadRequest."""
    try:
        return int(trainer.rpartition(".")[2], 16)
    except ValueError:
        raise BadRequest(f"{trainer!r} is no trainer that this service has named") from None


# What the leader is asked ----------------------------------------


@dataclass(frozen=True)
class InHand:
    """A shard that a trainer has, or had, in hand; `token` is what it was given with it."""

    shard: int
    token: int
    reason: str = ""


@dataclass(frozen=True)
class Request:
    """What a trainer asks: `verb` is add, join, next, settle, once, once-done, leave or finished.

    `have` are the tokens of what it has in hand, so that what was handed out by an answer that got lost is
    handed out again. All requests may be repeated.
    """

    verb: str
    dataset: str
    trainer: str = ""
    name: str = ""
    lease: int = 0
    definition: Definition | None = None
    have: tuple[int, ...] = ()
    done: tuple[InHand, ...] = ()
    failed: tuple[InHand, ...] = ()
    released: tuple[InHand, ...] = ()

    @classmethod
    def from_json(cls, verb: str, dataset: str, body: Mapping[str, Any]) -> Request:
        """From a request's body. Raises BadRequest."""
        checked_name("dataset", dataset)
        try:
            name = str(body.get("name", ""))
            if verb.startswith("once"):
                checked_name("task", name)
            return cls(
                verb, dataset, str(body.get("trainer", "")), name,
                definition=Definition.from_json(body) if verb == "add" else None,
                have=tuple(int(token) for token in body.get("have", ())),
                done=_in_hand(body, "done"), failed=_in_hand(body, "failed"),
                released=_in_hand(body, "released"),
            )  # fmt: skip
        except (TypeError, ValueError, LookupError) as error:
            if isinstance(error, BadRequest):
                raise
            raise BadRequest(f"the request cannot be understood: {error!r}") from error


def _in_hand(body: Mapping[str, Any], key: str) -> tuple[InHand, ...]:
    return tuple(InHand(int(each[0]), int(each[1]), *map(str, each[2:3])) for each in body.get(key, ()))


@dataclass(frozen=True)
class Answer:
    """What the leader says: the status of HTTP and what goes into the body."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)


def sentence(status: int, words: str) -> Answer:
    """An answer that says in a sentence why not."""
    return Answer(status, {"error": words})
