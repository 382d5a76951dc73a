"""The rules of the rendezvous: what stands in etcd, and what a waiting member does about it.

Nothing here asks etcd, waits or knows the time: membership.py does.
"""

from __future__ import annotations

import base64
import functools
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

from bireme_runtime.etcd import client as etcd

DEFAULT_PREFIX = "/bireme/rendezvous/"
SUCCESS, CLOSED = "success", "closed"
# Times of the settings, under torch's names, and the one number that is none.
_POSITIVE = ("join_timeout", "close_timeout", "read_timeout", "heartbeat_timeout", "keep_alive_interval")
_NOT_NEGATIVE = ("last_call_timeout", "first_call_timeout", "settle_timeout")
_ATTEMPTS = "keep_alive_max_attempt"
# The slot of a member without an index.
NO_SLOT = 1 << 30


@dataclass(frozen=True)
class RunSettings:
    """The settings of a rendezvous. Times are in seconds; all members need the same bounds.

    A lease lives for `keep_alive_interval` times `keep_alive_max_attempt`: a member whose machine died is
    lost after that time, and one that cannot renew for two thirds of it stops its processes. For
    `settle_timeout` after a new round, newcomers do not interrupt it, because its processes would have to
    import and load everything again. The first round of a run waits for `first_nodes` members, if that is
    known, for `first_call_timeout`, and at least the life of a lease. Of the runs with the same `lock`, one
    trains and the others wait. Worlds have a multiple of `unit` members; who is left over waits.
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    prefix: str = DEFAULT_PREFIX
    lock: str = ""
    join_timeout: float = 600.0
    last_call_timeout: float = 1.0
    first_nodes: int = 0
    first_call_timeout: float = 300.0
    settle_timeout: float = 10.0
    close_timeout: float = 10.0
    read_timeout: float = 60.0
    heartbeat_timeout: float = 5.0
    keep_alive_interval: float = 1.0
    keep_alive_max_attempt: int = 10
    unit: int = 1

    def __post_init__(self) -> None:
        if not self.run_id:
            raise ValueError("the rendezvous needs a run id (PET_RDZV_ID)")
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ValueError(
                f"the bounds {self.min_nodes}:{self.max_nodes} are not 1 ≤ min ≤ max (PET_NNODES)"
            )
        if self.unit < 1 or self.min_nodes % self.unit:
            raise ValueError(
                f"the minimum of {self.min_nodes} is no multiple of {self.unit} (BIREME_WORKERS_PER_UNIT)"
            )
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0 seconds (PET_RDZV_CONF)")
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative (PET_RDZV_CONF)")
        if self.lease_ttl < 2:
            raise ValueError(
                "keep_alive_interval * keep_alive_max_attempt must be 2 seconds or more (PET_RDZV_CONF)"
            )

    @classmethod
    def from_config(
        cls, run_id: str, min_nodes: int, max_nodes: int, config: Mapping[str, Any]
    ) -> RunSettings:
        """Read the times, under torch's names, from a `rdzv_conf`; its other keys are ignored."""
        changes: dict[str, Any] = {}
        for name in (*_POSITIVE, *_NOT_NEGATIVE, _ATTEMPTS):
            if config.get(name) is not None:
                try:
                    number = float(config[name])
                    changes[name] = int(number) if name == _ATTEMPTS else number
                except (TypeError, ValueError, OverflowError):
                    sentence = f"{name}={config[name]} is not a number of seconds (PET_RDZV_CONF)"
                    raise ValueError(sentence) from None
        if config.get("etcd_prefix"):
            changes["prefix"] = str(config["etcd_prefix"]).rstrip("/") + "/"
        return cls(run_id, min_nodes, max_nodes, **changes)

    def size(self, members: int) -> int:
        """How many of so many members a world takes."""
        return min(members, self.max_nodes) // self.unit * self.unit

    @property
    def lease_ttl(self) -> int:
        """The time to live of a lease, in whole seconds."""
        return round(self.keep_alive_interval * self.keep_alive_max_attempt)

    @property
    def root(self) -> str:
        """The prefix of the run's keys."""
        return f"{self.prefix}{self.run_id}/"


# What is in etcd ----------------------------------------


@dataclass(frozen=True)
class Member:
    """One agent. With a new lease it gets a new `id`, but keeps its `base`.

    `ready` is the first round in which it can be placed. `finished` means that its processes have succeeded
    in the latest round. `token` is that of the latest round that it knows.
    `slot` orders newcomers (the completion index of the pod), `place` those of one network (topology.py).
    """

    id: str
    base: str
    slot: int
    address: str
    ready: int
    finished: bool = False
    place: tuple[str, ...] = ()
    token: int = 0

    def to_json(self) -> str:
        """The value of the member's key."""
        record = {"base": self.base, "slot": self.slot, "address": self.address, "ready": self.ready}
        place = {"place": self.place} if self.place else {}
        return json.dumps({**record, **place, "finished": self.finished, "token": self.token}, sort_keys=True)


@dataclass(frozen=True)
class Round:
    """One agreed world: the ids of the members by rank.

    `token` is higher than that of every world of the release before it, whichever data etcd had then.
    """

    number: int
    members: tuple[str, ...]
    mod_revision: int = 0
    token: int = 0

    def to_json(self) -> str:
        """The value of the round's key. Each member is told all ids, so they are compressed."""
        packed = base64.b64encode(zlib.compress("\n".join(self.members).encode()))
        return json.dumps({"number": self.number, "members": packed.decode(), "token": self.token})

    @functools.cached_property
    def bases(self) -> tuple[str, ...]:
        """What the members' ids have in common with those of their other leases, by rank."""
        return tuple(id.rpartition(".")[0] for id in self.members)

    @functools.cached_property
    def ids(self) -> frozenset[str]:
        """The members, to look one up."""
        return frozenset(self.members)


@dataclass(frozen=True)
class Call:
    """What a member of a round told the others: who left it, or, without a `leaver`, that newcomers wait.

    `cut`: the leaver is to stay away until it reaches the others.
    """

    round: int
    leaver: str
    mod_revision: int = 0
    cut: bool = False


@dataclass(frozen=True)
class View:
    """The keys of a run at one revision, or what all but a few members know of them (`whole` is false).

    Of the members these know only who was in the latest round, and of a few whether their leases have ended:
    what one member writes is told to the few, and not to all.
    """

    revision: int = 0
    members: Mapping[str, Member] = field(default_factory=dict)
    round: Round | None = None
    store: tuple[int, str] | None = None
    outcome: str = ""
    finished: frozenset[str] = frozenset()
    """Members of the latest round that have finished it, also those whose lease has ended since."""
    call: Call | None = None
    whole: bool = True
    gone: frozenset[str] = frozenset()
    """If the view is not whole: members of the latest or of the next round whose lease has ended."""

    @property
    def number(self) -> int:
        """The number of the latest round; 0 before the first."""
        return self.round.number if self.round else 0

    @property
    def token(self) -> int:
        """The token of the latest round; 0 before the first."""
        return self.round.token if self.round else 0

    def placed(self, member: Member) -> bool:
        """Whether the member trains in the latest round, rather than waiting for the next."""
        return self.round is not None and member.id in self.round.ids and member.ready <= self.round.number

    def leavers(self) -> set[str]:
        """Members of the latest round that left it unfinished: without a lease, or ready for the next."""
        if self.round is None:
            return set()
        left = {self.told()} - {""}
        if not self.whole:
            return left | ((self.gone & self.round.ids) - self.finished)
        here = {member.id for member in self.members.values() if self.placed(member)}
        return left | (self.round.ids - here - self.finished)

    def called(self) -> bool:
        """Whether a member has called for the end of the latest round."""
        return self.call is not None and self.round is not None and self.call.round == self.round.number

    def told(self) -> str:
        """The leaver of the latest round of whom all have been told, if they have been."""
        return self.call.leaver if self.call and self.called() else ""

    def arrivals(self) -> set[str]:
        """Members with a lease that are not in the latest round. Only a whole view knows them."""
        names = self.round.ids if self.round else frozenset()
        return {id for id in self.members if id not in names}

    def first(self) -> str:
        """The member of the latest round with the lowest rank among those with a lease."""
        names = self.round.members if self.round else ()
        return next((id for id in names if (id in self.members if self.whole else id not in self.gone)), "")

    def all_finished(self, told: str) -> bool:
        """Whether every member of the latest round has finished it; ``told`` has said so itself."""
        return self.round is not None and self.finished.union([told]).issuperset(self.round.members)

    def after(self, previous: View) -> View:
        """This view, with the members that the previous one knew to have finished the same round."""
        if previous.token != self.token:
            return self
        return replace(self, finished=self.finished | (previous.finished - self.members.keys()))

    def changed(self, root: str, events: Iterable[etcd.Event]) -> View:
        """The view after changes of keys. Raises ValueError for a key of the run that cannot be read."""
        members, finished, gone = dict(self.members), set(self.finished), set(self.gone)
        round, store, outcome, call = self.round, self.store, self.outcome, self.call
        for event in events:
            kv, deleted = event.kv, event.deleted
            name = kv.key[len(root) :]
            try:
                record = {} if deleted else json.loads(kv.value)
                if name.startswith("members/") and deleted:
                    members.pop(name[8:], None)
                    if not self.whole:
                        gone.add(name[8:])
                        if event.last and _member(name[8:], json.loads(event.last)).finished:
                            finished.add(name[8:])
                elif name.startswith("members/"):
                    member = members[name[8:]] = _member(name[8:], record)
                    (finished.add if member.finished else finished.discard)(member.id)
                elif name == "round":
                    round = None if deleted else round_of(kv.value, kv.mod_revision)
                    finished = {member.id for member in members.values() if member.finished}
                    gone &= round.ids if round else set()
                elif name == "store":
                    store = None if deleted else (int(record["round"]), str(record["address"]))
                elif name == "call":
                    call = None
                    if not deleted:
                        cut = bool(record.get("cut"))
                        call = Call(int(record["round"]), str(record["leaver"]), kv.mod_revision, cut)
                elif name == "done":
                    outcome = "" if deleted else str(record.get("outcome", CLOSED))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                # Other keys are somebody else's.
                if name in ("round", "store", "call", "done"):
                    raise ValueError(f"the key {kv.key} in etcd cannot be read: {error!r}") from error
        known = (members, round, store, outcome, frozenset(finished), call)
        return View(self.revision, *known, self.whole, frozenset(gone))


def _member(id: str, record: Mapping[str, Any]) -> Member:
    slot, ready = int(record["slot"]), int(record["ready"])
    finished, place = bool(record.get("finished")), tuple(map(str, record.get("place", ())))
    base, address, token = str(record["base"]), str(record["address"]), int(record.get("token", 0))
    return Member(id, base, slot, address, ready, finished, place, token)


def round_of(value: str, revision: int) -> Round:
    """The round that a key's value says. Raises ValueError, KeyError or TypeError for any other value."""
    record = json.loads(value)
    try:
        ids = zlib.decompress(base64.b64decode(record["members"])).decode()
    except zlib.error as error:
        raise ValueError(str(error)) from None
    return Round(int(record["number"]), tuple(ids.split()), revision, int(record["token"]))


def view_of(root: str, snapshot: etcd.Snapshot) -> View:
    """The view for all keys under the root."""
    view = View(snapshot.revision)
    return view.changed(root, (etcd.Event(kv, deleted=False) for kv in snapshot.keys))


# Decisions of a waiting member ----------------------------------------


@dataclass(frozen=True)
class World:
    """The latest round, as a member that it includes sees it."""

    number: int
    rank: int
    size: int
    mod_revision: int
    token: int


@dataclass(frozen=True)
class Propose:
    """The member is the one that proposes this round."""

    round: Round


@dataclass(frozen=True)
class Wait:
    """There is nothing to do until the view changes or `seconds` have passed."""

    reason: str
    seconds: float | None = None


@dataclass(frozen=True)
class Over:
    """The run has ended."""

    outcome: str


Decision = Union[World, Propose, Wait, Over]


def decide(
    view: View,
    me: str,
    ready: int,
    settings: RunSettings,
    quiet_seconds: float,
    gathering_seconds: float = 0.0,
    waited: bool = False,
) -> Decision:
    """What the member with id `me`, ready for round `ready`, does for this view.

    `quiet_seconds` is the time since the last new member arrived, `gathering_seconds` since the first one.
    `waited`: the member has noticed that etcd lost data, and has let the leases in them end.
    """
    last = view.round
    if last and me in last.members and last.number >= ready:
        return World(last.number, last.members.index(me), len(last.members), last.mod_revision, last.token)
    if view.outcome:
        return Over(view.outcome)
    if not view.whole:
        return Wait("another member to propose the round")
    if me not in view.members:
        return Wait("its own registration to appear")
    members = list(view.members.values())
    placed = [member.id for member in members if view.placed(member)]
    if placed:
        return Wait(f"{len(placed)} members of round {view.number} to stop, among them {placed[0]}")
    if settings.size(len(members)) < settings.min_nodes:
        return Wait(f"members: there are {len(members)}, and {settings.min_nodes} is the minimum")
    if me not in (min(view.members), view.first()):
        return Wait("another member to propose the round")
    known = frozenset(view.round.bases if view.round else ())
    if any(member.ready > view.number + 1 for member in members):
        # They know of a round that etcd does not. Others of that round may not know yet what happened.
        remaining = settings.lease_ttl / (3 if waited else 1) - quiet_seconds
        if remaining > 0:
            return Wait("leases that may still live: etcd has lost its data", remaining)
    elif view.round is None and settings.first_nodes:
        remaining = max(settings.first_call_timeout, settings.lease_ttl) - gathering_seconds
        if remaining > 0 and len(members) < settings.size(settings.first_nodes):
            return Wait(f"workers: {len(members)} of the first {settings.first_nodes} are here", remaining)
    elif len(members) < settings.size(settings.max_nodes) and any(m.base not in known for m in members):
        # After a mere loss of members there is no last call: lost members still block with their leases.
        remaining = settings.last_call_timeout - quiet_seconds
        if remaining > 0:
            return Wait("the last call to end", remaining)
    return Propose(_next_round(view, members, settings.size(len(members)), settings.unit))


def arranged(members: Sequence[Member], unit: int) -> list[Member]:
    """The members with neighbours in the network side by side, in units of so many.

    A unit is in the narrowest part of the network that has enough members for it. The parts come in the order
    of their first members, and in each part members keep their order.
    """
    units, rest = _units(members, 0, max((len(each.place) for each in members), default=0), unit)
    return [*units, *rest]


def _units(
    members: Sequence[Member], depth: int, deepest: int, unit: int
) -> tuple[list[Member], list[Member]]:
    """Whole units one after another, and the members that are left over."""
    units, rest = [], list(members)
    if depth < deepest:
        parts: dict[str, list[Member]] = {}
        for each in members:
            parts.setdefault("".join(each.place[depth : depth + 1]), []).append(each)
        pairs = [_units(part, depth + 1, deepest, unit) for part in parts.values()]
        units, rest = ([each for pair in pairs for each in pair[which]] for which in (0, 1))
    whole = len(rest) // unit * unit
    return units + rest[:whole], rest[whole:]


def _next_round(view: View, members: list[Member], size: int, unit: int) -> Round:
    """Members of the last round keep their order and newcomers follow by slot, until there are so many.

    Among them neighbours in the network come side by side, in whole units where possible. Number and token
    are higher than those of every round that etcd or one of the members knows.
    """
    known = {base: rank for rank, base in enumerate(view.round.bases if view.round else ())}
    survivors = sorted((m for m in members if m.base in known), key=lambda m: known[m.base])
    newcomers = sorted((m for m in members if m.base not in known), key=lambda m: (m.slot, m.id))
    chosen = arranged((survivors + newcomers)[:size], unit)
    number = max(view.number + 1, *(member.ready for member in members))
    token = max(view.token, *(member.token for member in members)) + 1
    return Round(number, tuple(m.id for m in chosen), token=token)
