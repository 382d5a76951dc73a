"""The rendezvous: members agree on rounds through etcd. Independent of torch (docs/adr/0005).

Keys under `<prefix><run id>/`:

    members/<id>   under the member's lease: its address, and the first round in which it can be placed
    round          the number and the members, in rank order, of the latest round; compare-and-swap only
    store          under the lease of rank 0: the address where the agents of this round exchange data
    done           the run has ended: {"outcome": "success"}, when all members of the round have finished

and, with a lock, under `<prefix>.lock/<lock>/`:

    <run id>/<id>  under the lease of each member: this run trains; written only while no other run has any

A member that trains in round n blocks round n+1 until it declares itself ready or its lease ends. So a lost
member delays the others at most by the life of its lease, and no member is placed in two rounds at once. Its
processes end before its lease can have ended (fence.py), so no two worlds train at once.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Union

from bireme_runtime.elastic import fence
from bireme_runtime.etcd import client as etcd
from bireme_runtime.process.errors import BiremeError, Unreachable

DEFAULT_PREFIX = "/bireme/rendezvous/"
SUCCESS, CLOSED = "success", "closed"
# Seconds without an event after which the keys are watched anew, in case the watch's connection is dead.
_WATCH_IDLE_SECONDS = 60.0
# The same if renewals show that something was written meanwhile, perhaps to other keys.
_BLIND_SECONDS = 10.0
# What all members together ask of etcd while nothing happens.
_RENEWALS_PER_SECOND = 200
_RETRY_SECONDS = 0.2
_RETRY_SECONDS_PER_MEMBER = 0.001
_LOCK_LOG_SECONDS = 60.0

log = logging.getLogger("bireme_runtime")


class RunOver(BiremeError):
    """The run has ended; `outcome` is "success" or "closed"."""

    def __init__(self, outcome: str) -> None:
        super().__init__(f"the run has ended: {outcome}")
        self.outcome = outcome


class _Locked(Exception):
    """Another run took the lock first."""


class ThreadEnded(BiremeError):
    """A thread of this member ended unexpectedly, so that it does not know any more what the others do."""


class JoinTimeout(BiremeError):
    """No round with this member was agreed in time; the message says what was missing."""


@dataclass(frozen=True)
class Settings:
    """The settings of a rendezvous. Times are in seconds; all members need the same bounds.

    A lease lives for `keep_alive_interval` times `keep_alive_max_attempt`: a member whose machine died is
    lost after that time, and one that cannot renew for two thirds of it stops its processes. For
    `settle_timeout` after a new round, newcomers do not interrupt it, because its processes would have to
    import and load everything again. The first round of a run waits for `first_nodes` members, if that is
    known, for `first_call_timeout`, and at least the life of a lease. Of the runs with the same `lock`, one
    trains and the others wait.
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

    def __post_init__(self) -> None:
        if not self.run_id:
            raise ValueError("the rendezvous needs a run id (PET_RDZV_ID)")
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ValueError(
                f"the bounds {self.min_nodes}:{self.max_nodes} are not 1 ≤ min ≤ max (PET_NNODES)"
            )
        for name in (
            "join_timeout",
            "close_timeout",
            "read_timeout",
            "heartbeat_timeout",
            "keep_alive_interval",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0 seconds (PET_RDZV_CONF)")
        for name in ("last_call_timeout", "first_call_timeout", "settle_timeout"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative (PET_RDZV_CONF)")
        if self.lease_ttl < 2:
            raise ValueError(
                "keep_alive_interval * keep_alive_max_attempt must be 2 seconds or more (PET_RDZV_CONF)"
            )

    @classmethod
    def from_config(cls, run_id: str, min_nodes: int, max_nodes: int, config: Mapping[str, Any]) -> Settings:
        """Read the times, under torch's names, from a `rdzv_conf`; its other keys are ignored."""
        changes: dict[str, Any] = {}
        for name in (
            "join_timeout", "last_call_timeout", "first_call_timeout", "settle_timeout", "close_timeout",
            "read_timeout", "heartbeat_timeout", "keep_alive_interval",
        ):  # fmt: skip
            if config.get(name) is not None:
                changes[name] = _number(name, config[name])
        if config.get("keep_alive_max_attempt") is not None:
            changes["keep_alive_max_attempt"] = int(
                _number("keep_alive_max_attempt", config["keep_alive_max_attempt"])
            )
        if config.get("etcd_prefix"):
            changes["prefix"] = str(config["etcd_prefix"]).rstrip("/") + "/"
        return cls(run_id, min_nodes, max_nodes, **changes)

    @property
    def lease_ttl(self) -> int:
        """The time to live of a lease, in whole seconds."""
        return round(self.keep_alive_interval * self.keep_alive_max_attempt)

    @property
    def root(self) -> str:
        """The prefix of the run's keys."""
        return f"{self.prefix}{self.run_id}/"

    @property
    def lock_root(self) -> str:
        """The prefix of the keys by which runs hold the lock."""
        return f"{self.prefix}.lock/{self.lock}/"


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value} is not a number of seconds (PET_RDZV_CONF)") from None


# What is in etcd ----------------------------------------


@dataclass(frozen=True)
class Member:
    """One agent. With a new lease it gets a new `id`, but keeps its `base`.

    `ready` is the first round in which it can be placed. `finished` means that its processes have succeeded
    in the latest round.
    `slot` orders newcomers (the completion index of the pod).
    """

    id: str
    base: str
    slot: int
    address: str
    ready: int
    finished: bool = False

    def to_json(self) -> str:
        """The value of the member's key."""
        record = {"base": self.base, "slot": self.slot, "address": self.address, "ready": self.ready}
        return json.dumps({**record, "finished": self.finished}, sort_keys=True)

    @property
    def order(self) -> tuple[int, str]:
        """The sort key among newcomers."""
        return (self.slot, self.id)


@dataclass(frozen=True)
class Round:
    """One agreed world: the ids of the members, and their bases, by rank."""

    number: int
    members: tuple[str, ...]
    bases: tuple[str, ...]
    mod_revision: int = 0

    @functools.cached_property
    def ids(self) -> frozenset[str]:
        """The members, to look one up."""
        return frozenset(self.members)


@dataclass(frozen=True)
class View:
    """The keys of a run at one revision."""

    revision: int = 0
    members: Mapping[str, Member] = field(default_factory=dict)
    round: Round | None = None
    store: tuple[int, str] | None = None
    outcome: str = ""
    finished: frozenset[str] = frozenset()
    """Members of the latest round that have finished it, also those whose lease has ended since."""

    @property
    def number(self) -> int:
        """The number of the latest round; 0 before the first."""
        return self.round.number if self.round else 0

    def placed(self, member: Member) -> bool:
        """Whether the member trains in the latest round, rather than waiting for the next."""
        return self.round is not None and member.id in self.round.ids and member.ready <= self.round.number

    def leavers(self) -> set[str]:
        """Members of the latest round that left it unfinished: without a lease, or ready for the next."""
        if self.round is None:
            return set()
        here = {member.id for member in self.members.values() if self.placed(member)}
        return set(self.round.ids - here - self.finished)

    def arrivals(self) -> set[str]:
        """Members with a lease that are not in the latest round."""
        names = self.round.ids if self.round else frozenset()
        return {id for id in self.members if id not in names}

    def first(self) -> str:
        """The member of the latest round with the lowest rank among those with a lease."""
        names = self.round.members if self.round else ()
        return next((id for id in names if id in self.members), "")

    def all_finished(self) -> bool:
        """Whether every member of the latest round has finished it."""
        return self.round is not None and self.finished.issuperset(self.round.members)

    def after(self, previous: View) -> View:
        """This view, with the members that the previous one knew to have finished the same round."""
        if previous.number != self.number:
            return self
        return replace(self, finished=self.finished | (previous.finished - self.members.keys()))

    def changed(self, root: str, events: Iterable[etcd.Event]) -> View:
        """The view after changes of keys. Raises ValueError for a key of the run that cannot be read."""
        members, finished = dict(self.members), set(self.finished)
        round, store, outcome = self.round, self.store, self.outcome
        for event in events:
            kv, deleted = event.kv, event.deleted
            name = kv.key[len(root) :]
            try:
                record = {} if deleted else json.loads(kv.value)
                if name.startswith("members/") and deleted:
                    members.pop(name[8:], None)
                elif name.startswith("members/"):
                    member = members[name[8:]] = _member(name[8:], record)
                    (finished.add if member.finished else finished.discard)(member.id)
                elif name == "round":
                    round = None if deleted else _round(record, kv.mod_revision)
                    finished = {member.id for member in members.values() if member.finished}
                elif name == "store":
                    store = None if deleted else (int(record["round"]), str(record["address"]))
                elif name == "done":
                    outcome = "" if deleted else str(record.get("outcome", CLOSED))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                # Other keys are somebody else's.
                if name in ("round", "store", "done"):
                    raise ValueError(f"the key {kv.key} in etcd cannot be read: {error!r}") from error
        return View(self.revision, members, round, store, outcome, frozenset(finished))


def _member(id: str, record: Mapping[str, Any]) -> Member:
    slot, ready = int(record["slot"]), int(record["ready"])
    return Member(id, str(record["base"]), slot, str(record["address"]), ready, bool(record.get("finished")))


def _round(record: Mapping[str, Any], revision: int) -> Round:
    return Round(int(record["number"]), tuple(record["members"]), tuple(record["bases"]), revision)


def view_of(root: str, snapshot: etcd.Snapshot) -> View:
    """The view for all keys under the root."""
    view = View(snapshot.revision)
    return view.changed(root, (etcd.Event(kv, deleted=False) for kv in snapshot.keys))


# Decisions of a waiting member ----------------------------------------


@dataclass(frozen=True)
class Joined:
    """The latest round includes the member."""

    rank: int


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


Decision = Union[Joined, Propose, Wait, Over]


def decide(
    view: View, me: str, ready: int, settings: Settings, quiet_seconds: float, gathering_seconds: float = 0.0
) -> Decision:
    """What the member with id `me`, ready for round `ready`, does for this view.

    `quiet_seconds` is the time since the last new member arrived, `gathering_seconds` since the first one.
    """
    if view.round and me in view.round.members and view.round.number >= ready:
        return Joined(view.round.members.index(me))
    if view.outcome:
        return Over(view.outcome)
    if me not in view.members:
        return Wait("its own registration to appear")
    members = list(view.members.values())
    placed = [member.id for member in members if view.placed(member)]
    if placed:
        return Wait(f"{len(placed)} members of round {view.number} to stop, among them {placed[0]}")
    if len(members) < settings.min_nodes:
        return Wait(f"members: there are {len(members)}, and {settings.min_nodes} is the minimum")
    if me != min(members, key=lambda member: member.order).id:
        return Wait("another member to propose the round")
    if any(member.ready > view.number + 1 for member in members):
        # They know of a round that etcd does not. Others of that round may not know yet what happened.
        remaining = settings.lease_ttl - quiet_seconds
        if remaining > 0:
            return Wait("leases that may still live: etcd has lost its data", remaining)
    elif view.round is None and settings.first_nodes:
        remaining = max(settings.first_call_timeout, settings.lease_ttl) - gathering_seconds
        if remaining > 0 and len(members) < min(settings.first_nodes, settings.max_nodes):
            return Wait(f"workers: {len(members)} of the first {settings.first_nodes} are here", remaining)
    elif len(members) < settings.max_nodes and _newcomers(view, members):
        # After a mere loss of members there is no last call: lost members still block with their leases.
        remaining = settings.last_call_timeout - quiet_seconds
        if remaining > 0:
            return Wait("the last call to end", remaining)
    return Propose(_next_round(view, members, settings.max_nodes))


def _newcomers(view: View, members: list[Member]) -> bool:
    known = frozenset(view.round.bases if view.round else ())
    return any(member.base not in known for member in members)


def _next_round(view: View, members: list[Member], most: int) -> Round:
    """Members of the last round keep their order and newcomers follow by slot, up to the maximum.

    The number is higher than that of every round that etcd or one of the members knows.
    """
    known = {base: rank for rank, base in enumerate(view.round.bases if view.round else ())}
    survivors = sorted((m for m in members if m.base in known), key=lambda m: known[m.base])
    newcomers = sorted((m for m in members if m.base not in known), key=lambda m: m.order)
    chosen = (survivors + newcomers)[:most]
    number = max(view.number + 1, *(member.ready for member in members))
    return Round(number, tuple(m.id for m in chosen), tuple(m.base for m in chosen))


# A member ----------------------------------------


@dataclass(frozen=True)
class Identity:
    """What a member registers: a name that no other process has, its slot and its address."""

    base: str
    slot: int
    address: str


@dataclass(frozen=True)
class World:
    """A round as one of its members sees it."""

    number: int
    rank: int
    size: int
    mod_revision: int


class Rendezvous:
    """One member of a run, until `leave`. `join` may be called repeatedly, from one thread.

    Two threads of its own renew the lease and watch the keys. `client` may be shared.
    """

    def __init__(
        self, client: etcd.Client, settings: Settings, identity: Identity, board: fence.Board | None = None
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.board = board or fence.Board.new()
        self._client = client
        # The client for renewals has a timeout shorter than the lease.
        self._renewal_client = client.with_timeout(max(1.0, settings.lease_ttl / 6))
        self._changed = threading.Condition()
        self._view = View()
        self._reading = 0
        self._wanted_reading = 0
        self._trouble = "no answer yet"
        # The highest round that this member has ever seen; etcd may have lost it.
        self._highest = 0
        self._seen: set[str] = set()
        self._finishing = _Progress()
        self._first_arrival = self._last_arrival = time.monotonic()
        self._watch: etcd.Watch | None = None
        # The revision up to which the watch has told everything, and when it said so.
        self._followed = (0, 0.0)
        self._registration: _Registration | None = None
        self._registrations = 0
        self._world: World | None = None
        self._entered = 0.0
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._thread_ended = ""

    # Called by the agent ----------------------------------------

    def join(self) -> World:
        """Wait for a round that includes this member.

        The processes of an earlier round have ended. Raises RunOver, JoinTimeout, Unreachable,
        ThreadEnded, and etcd.AuthError or etcd.Refused.
        """
        self._admitted(None)
        self._check_threads()
        self._start_threads()
        while True:
            if self._registration is None or self._registration.lost:
                self._wait_for_lock()
            with contextlib.suppress(_Locked):
                return self._join(time.monotonic() + self.settings.join_timeout)

    def _join(self, deadline: float) -> World:
        self._get_ready(deadline)
        progress = _Progress()
        while True:
            with self._changed:
                self._check_threads()
                registration = self._registration
                lost = registration is None or registration.lost
                reading = self._view
                decision = self._decide() if registration and not lost else Wait("a new lease")
                if isinstance(decision, Joined) and self._uncertain():
                    decision = Wait("etcd to renew its lease")
                if isinstance(decision, Joined):
                    return self._enter(decision)
                if isinstance(decision, Wait) and not lost:
                    self._wait(decision, deadline, progress)
                    continue
            if isinstance(decision, Over):
                raise RunOver(decision.outcome)
            if isinstance(decision, Propose) and registration is not None:
                self._propose(decision.round, registration, reading, deadline)
            else:
                self._get_ready(deadline)

    def waiting(self) -> int:
        """The number of members that are a reason for a new round: arrivals and leavers. 0 means: train on.

        Arrivals count after the round's `settle_timeout`, or at once when there are leavers. While etcd
        cannot be reached, the last known view counts, until so much of the lease is over that the processes
        must stop (fence.py).
        """
        with self._changed:
            self._check_threads()
            if self._world is None or self._view.outcome == SUCCESS:
                return 0
            if (
                self._registration is None
                or self._registration.lost
                or self._uncertain()
                or self._view.number != self._world.number
            ):
                return 1
            leavers = len(self._view.leavers())
            arrivals = len(self._view.arrivals())
            ending = bool(self._view.finished)
            full = self._world.size >= self.settings.max_nodes
            settling = time.monotonic() - self._entered < self.settings.settle_timeout
            return arrivals + leavers if leavers or not (full or ending or settling) else 0

    @property
    def only_arrivals(self) -> bool:
        """Whether this member's round is whole, so that its processes can save before a new round."""
        with self._changed:
            world = self._world
        return world is not None and not self.broken(world)

    def broken(self, world: World) -> bool:
        """Whether this world's round has lost a member or is no longer the latest."""
        with self._changed:
            self._check_threads()
            lost = self._registration is None or self._registration.lost or self._uncertain()
            return lost or self._view.number != world.number or bool(self._view.leavers())

    def publish_store(self, world: World, address: str) -> bool:
        """Publish, as rank 0, the address of the round's store. Returns False when the round has ended."""
        registration = self._registration
        if registration is None or registration.lost:
            return False
        value = json.dumps({"round": world.number, "address": address})
        compare = [
            etcd.key_is_unchanged(self._key("round"), world.mod_revision),
            etcd.key_is_same(registration.key, registration.create_revision),
        ]
        deadline = time.monotonic() + self.settings.join_timeout
        while True:
            try:
                put = etcd.put_op(self._key("store"), value, registration.lease)
                return self._client.txn(compare, [put]).succeeded
            except (etcd.Unavailable, etcd.Ambiguous) as error:
                # Writing it twice is harmless, and the comparison prevents a write after the round's end.
                self._pause(deadline, error)
            except etcd.LeaseLost:
                return False

    def store_of(self, world: World) -> str | None:
        """Wait for the address from rank 0; None when the round broke before. Raises JoinTimeout."""
        deadline = time.monotonic() + self.settings.join_timeout
        while not self.broken(world):
            with self._changed:
                if self._view.store and self._view.store[0] == world.number:
                    return self._view.store[1]
                if time.monotonic() >= deadline:
                    raise JoinTimeout(f"rank 0 of round {world.number} did not open its store in time")
                self._changed.wait(0.5)
        return None

    def token(self, world: World) -> dict[str, str]:
        """The environment by which the processes of this world know, and can check, their round."""
        return fence.environment(self.settings.run_id, world.number, self._key("round"), self.board)

    def all_finished(self) -> bool:
        """Whether all members have finished the round, as this one has: then the run has succeeded.

        Call it repeatedly after the processes of this member have succeeded, until it returns True or
        `waiting` calls for another round, because a member failed or was lost before it had finished.
        """
        with self._changed:
            view, world, registration = self._view, self._world, self._registration
            self._check_threads()
            if view.outcome == SUCCESS:
                return True
            lost = registration is None or registration.lost
        if world is None or registration is None or lost or view.number != world.number:
            return False
        try:
            if not registration.member.finished:
                self._admitted(None)
                self._finishing = _Progress()
                finished = replace(registration.member, finished=True)
                self._write(registration, finished, time.monotonic())
            elif not view.all_finished():
                self._finishing.log(f"{world.size - len(view.finished)} members to finish")
            elif registration.member.id == view.first():
                return self._succeed(world)
        except etcd.LeaseLost:
            self._lose_registration()
        except (etcd.EtcdError, Unreachable) as error:
            self._finishing.log(f"etcd, to record that this member has finished: {error}")
        return False

    @property
    def outcome(self) -> str:
        """How the run ended, as last read; empty while it continues."""
        with self._changed:
            return self._view.outcome

    def leave(self) -> None:
        """Revoke the lease, which ends the membership. It closes nothing for other members."""
        self._closing.set()
        self._admitted(None)
        with self._changed:
            registration, self._registration, self._world = self._registration, None, None
            if self._watch:
                self._watch.close()
            self._changed.notify_all()
        if registration and not registration.lost:
            try:
                self._renewal_client.lease_revoke(registration.lease)
            except etcd.EtcdError as error:
                log.warning("cannot revoke the lease; it will expire: %s", error)
        for thread in self._threads:
            thread.join(self.settings.close_timeout)
        self._threads = []

    # Registering and proposing ----------------------------------------

    def _decide(self) -> Decision:
        assert self._registration is not None
        member, now = self._registration.member, time.monotonic()
        quiet, gathering = now - self._last_arrival, now - self._first_arrival
        return decide(self._view, member.id, member.ready, self.settings, quiet, gathering)

    def _enter(self, joined: Joined) -> World:
        current = self._view.round
        assert current is not None
        self._world = World(current.number, joined.rank, len(current.members), current.mod_revision)
        self._entered = time.monotonic()
        self._admitted(self._world)
        return self._world

    def _admitted(self, world: World | None) -> None:
        """Write on the board that the processes of this world may run; None: that there are none."""
        with self._changed:
            registration = self._registration
            if world is None or registration is None:
                self.board.clear()
            else:
                self.board.admit(world.number, self._until(registration, fence.KILL_SHARE))

    def _until(self, registration: _Registration, share: float) -> float:
        """When this share of the lease is over, by fence.now: of the shortest life that it can have."""
        return registration.renewed + share * self.settings.lease_ttl

    def _uncertain(self) -> bool:
        """Whether so much of the lease is over, without a renewal, that processes must not run."""
        registration = self._registration
        return registration is not None and fence.now() >= self._until(registration, fence.STOP_SHARE)

    def _wait(self, decision: Wait, deadline: float, progress: _Progress) -> None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise JoinTimeout(f"after {self.settings.join_timeout:.0f} s still waiting for {decision.reason}")
        progress.log(decision.reason)
        self._changed.wait(min(remaining, 10.0 if decision.seconds is None else decision.seconds + 0.001))

    def _get_ready(self, deadline: float) -> None:
        """Register, or update the registration, as ready for the next round."""
        while True:
            try:
                if self._registration is None or self._registration.lost:
                    self._register(deadline)
                else:
                    self._write(
                        self._registration,
                        replace(self._registration.member, ready=self._highest + 1, finished=False),
                        deadline,
                    )
                return
            except etcd.LeaseLost:
                self._lose_registration()

    def _register(self, deadline: float) -> None:
        # etcd may have been restored or emptied: read the current round before deriving `ready` from it.
        self._read_again(deadline)
        asked, lease = self._persist(
            lambda: (fence.now(), self._client.lease_grant(self.settings.lease_ttl)), deadline
        )
        self._registrations += 1
        id = f"{self.identity.base}.{self._registrations}"
        member = Member(id, self.identity.base, self.identity.slot, self.identity.address, self._highest + 1)
        registration = _Registration(self._key(f"members/{id}"), lease, member, asked)
        if self.settings.lock:
            self._claim(registration, deadline)
        self._write(registration, member, deadline)
        with self._changed:
            self._registration, self._world = registration, None
            self._changed.notify_all()

    def _claim(self, registration: _Registration, deadline: float) -> None:
        """Hold the lock under the member's lease. Raises _Locked when another run holds it."""
        root, mine = self.settings.lock_root, self._lock_key()
        compare = [etcd.none_in(root, mine), etcd.none_in(etcd.prefix_end(mine), etcd.prefix_end(root))]
        put = etcd.put_op(f"{mine}{registration.member.id}", "", registration.lease)
        # Doing it twice is harmless.
        if not self._persist(lambda: self._client.txn(compare, [put]), deadline).succeeded:
            with contextlib.suppress(etcd.EtcdError):
                self._renewal_client.lease_revoke(registration.lease)
            raise _Locked

    def _wait_for_lock(self) -> None:
        """Wait, for as long as it takes, until no other run holds the lock."""
        next_log = 0.0
        while self.settings.lock:
            self._check_threads()
            if self.outcome:
                raise RunOver(self.outcome)
            deadline = time.monotonic() + self.settings.join_timeout
            held = self._persist(lambda: self._client.range(self.settings.lock_root), deadline).keys
            others = [kv.key for kv in held if not kv.key.startswith(self._lock_key())]
            if not others:
                return
            if time.monotonic() >= next_log:
                next_log = time.monotonic() + _LOCK_LOG_SECONDS
                run = others[0][len(self.settings.lock_root) :].rpartition("/")[0]
                log.warning(
                    "waiting for run %s to end: it trains with %d workers, and two runs of %s must not write "
                    "one checkpoint", run, len(others), self.settings.lock,
                )  # fmt: skip
            if self._closing.wait(random.uniform(0.5, 1.5)):
                raise Unreachable("this member has left while it waited for another run to end")

    def _lock_key(self) -> str:
        return f"{self.settings.lock_root}{self.settings.run_id}/"

    def _write(self, registration: _Registration, member: Member, deadline: float) -> None:
        """Write this value to the member's key. A delayed duplicate of an older write cannot overwrite it."""
        value = member.to_json()
        while True:
            try:
                compare = [etcd.key_is_unchanged(registration.key, registration.mod_revision)]
                outcome = self._client.txn(
                    compare, [etcd.put_op(registration.key, value, registration.lease)]
                )
                if outcome.succeeded:
                    registration.wrote(member, outcome.revision)
                    return
                kv = self._client.get(registration.key)
            except etcd.Ambiguous as error:
                self._pause(deadline, error)
                kv = self._persist(lambda: self._client.get(registration.key), deadline)
            except etcd.Unavailable as error:
                self._pause(deadline, error)
                continue
            if kv is None and registration.mod_revision:
                raise etcd.LeaseLost("the member's key does not exist")
            if kv is not None and kv.value == value:
                registration.wrote(member, kv.mod_revision, kv.create_revision)
                return
            registration.mod_revision = kv.mod_revision if kv else 0

    def _propose(self, proposal: Round, registration: _Registration, view: View, deadline: float) -> None:
        """Try to write the proposal as the latest round. The view will show whether that succeeded."""
        value = json.dumps(
            {"number": proposal.number, "members": list(proposal.members), "bases": list(proposal.bases)}
        )
        compare = [
            etcd.key_is_unchanged(self._key("round"), view.round.mod_revision if view.round else 0),
            etcd.key_is_same(self._key("done"), 0),
            etcd.key_is_same(registration.key, registration.create_revision),
            etcd.none_newer(self._key("members/"), view.revision),
        ]
        try:
            self._client.txn(compare, [etcd.put_op(self._key("round"), value)])
        except (etcd.Unavailable, etcd.Ambiguous) as error:
            self._pause(deadline, error)
        with self._changed:
            # In either case a newer view will follow.
            if self._view is view:
                self._changed.wait(1.0)

    def _succeed(self, world: World) -> bool:
        """Mark the run as succeeded, unless a new round was agreed. Returns whether it is marked."""
        compare = [
            etcd.key_is_unchanged(self._key("round"), world.mod_revision),
            etcd.key_is_same(self._key("done"), 0),
        ]
        put = etcd.put_op(self._key("done"), json.dumps({"outcome": SUCCESS}))
        # If it is marked already, the view will show it.
        return self._client.txn(compare, [put]).succeeded

    def _lose_registration(self) -> None:
        if self._registration:
            self._mark_lost(self._registration)

    def _mark_lost(self, registration: _Registration) -> None:
        with self._changed:
            registration.lost = True
            if registration is self._registration:
                self.board.expel()
            self._changed.notify_all()

    def _persist(self, request: Any, deadline: float) -> Any:
        while True:
            try:
                return request()
            except (etcd.Unavailable, etcd.Ambiguous) as error:
                self._pause(deadline, error)

    def _pause(self, deadline: float, error: etcd.EtcdError) -> None:
        if time.monotonic() >= deadline or self._closing.wait(self._retry_seconds()):
            if isinstance(error, etcd.OutOfSpace):
                raise Unreachable(str(error)) from error
            raise Unreachable(f"etcd cannot be reached: {error}") from error

    def _renewal_seconds(self) -> float:
        """How long to wait between renewals: longer if many members renew, at most a quarter of the lease."""
        share = len(self._view.members) / _RENEWALS_PER_SECOND
        quarter = max(self.settings.keep_alive_interval, self.settings.lease_ttl / 4)
        return random.uniform(0.8, 1.0) * min(quarter, max(self.settings.keep_alive_interval, share))

    def _retry_seconds(self) -> float:
        """How long to wait before another attempt: the longer the more members do the same."""
        return random.uniform(0.5, 1.5) * max(
            _RETRY_SECONDS, _RETRY_SECONDS_PER_MEMBER * len(self._view.members)
        )

    def _key(self, name: str) -> str:
        return self.settings.root + name

    # The threads ----------------------------------------

    def _start_threads(self) -> None:
        if self._closing.is_set():
            raise RuntimeError("this member has left the run")
        if self._threads:
            return
        for target in (self._renew, self._follow):
            name = f"bireme-{target.__name__.strip('_')}"
            thread = threading.Thread(target=self._work, args=(target,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _work(self, target: Callable[[], None]) -> None:
        try:
            target()
        except Exception as error:
            if self._closing.is_set():
                return
            name = threading.current_thread().name
            log.exception("the thread %s ended", name)
            with self._changed:
                self._thread_ended = f"the thread {name} ended unexpectedly: {type(error).__name__}: {error}"
                self._changed.notify_all()

    def _check_threads(self) -> None:
        if self._thread_ended:
            raise ThreadEnded(self._thread_ended)

    def _renew(self) -> None:
        pause = 0.0
        while not self._closing.wait(pause):
            pause = self._renewal_seconds()
            registration = self._registration
            if registration is None or registration.lost:
                continue
            asked = fence.now()
            try:
                self._renewal_client.lease_keepalive(registration.lease)
                self._renewed(registration, asked)
                self._mind_the_watch()
            except etcd.LeaseLost:
                log.warning(
                    "the lease of %s has ended: the others continue without it until it joins again",
                    registration.key,
                )
                self._mark_lost(registration)
            except etcd.EtcdError as error:
                pause = self._retry_seconds()
                log.info("cannot renew the lease: %s", error)

    def _renewed(self, registration: _Registration, asked: float) -> None:
        with self._changed:
            registration.renewed = asked
            if registration is self._registration and not registration.lost:
                self.board.extend(self._until(registration, fence.KILL_SHARE))
            self._changed.notify_all()

    def _follow(self) -> None:
        known = False
        while not self._closing.is_set():
            with self._changed:
                wanted = self._wanted_reading
                known = known and self._reading == wanted
            try:
                if not known:
                    self._show(view_of(self.settings.root, self._client.range(self.settings.root)))
                    known = True
                self._watch_from_here(wanted)
            except etcd.Idle:
                # The next watch tells whether this one's connection was dead.
                continue
            except etcd.EtcdError as error:
                known = known and not isinstance(error, etcd.Compacted)
                log.info("watching the members again: %s", error)
                self._trouble = str(error)
                self._closing.wait(self._retry_seconds())

    def _watch_from_here(self, wanted: int) -> None:
        """Follow what was written after the view. Raises Compacted when the keys must be read again."""
        idle = random.uniform(0.8, 1.2) * _WATCH_IDLE_SECONDS
        watch = self._client.watch(self.settings.root, self._view.revision + 1, idle)
        with self._changed:
            self._watch = watch
        try:
            for revision, events in watch:
                if revision < self._view.revision:
                    raise etcd.Compacted("etcd has older data than this member has seen")
                if events:
                    view = self._view.changed(self.settings.root, events)
                    self._show(replace(view, revision=max(revision, view.revision)))
                    self._followed = (revision, time.monotonic())
                    continue
                with self._changed:
                    self._reading = wanted
                    self._followed = (revision, time.monotonic())
                    self._changed.notify_all()
                    if self._wanted_reading != wanted or self._closing.is_set():
                        return
        finally:
            watch.close()

    def _mind_the_watch(self) -> None:
        """End a watch that has told nothing for a while although etcd has newer data: it may be blind."""
        revision, since = self._followed
        if self._renewal_client.revision > revision and time.monotonic() - since > _BLIND_SECONDS:
            with self._changed:
                if self._watch:
                    self._watch.close()

    def _show(self, view: View) -> None:
        with self._changed:
            self._view = view = view.after(self._view)
            self._highest = max(self._highest, view.number)
            if not view.members.keys() <= self._seen:
                self._last_arrival = time.monotonic()
                if not self._seen:
                    self._first_arrival = self._last_arrival
                self._seen |= view.members.keys()
            registration = self._registration
            if (
                registration
                and registration.mod_revision <= view.revision
                and registration.member.id not in view.members
            ):
                self._mark_lost(registration)
            self._changed.notify_all()

    def _read_again(self, deadline: float) -> None:
        """Wait until the view has been read after the start of this call."""
        with self._changed:
            self._wanted_reading += 1
            wanted = self._wanted_reading
            if self._watch:
                self._watch.close()
            while self._reading < wanted:
                self._check_threads()
                if time.monotonic() >= deadline or self._closing.is_set():
                    raise Unreachable(f"etcd cannot be reached: {self._trouble}")
                self._changed.wait(0.5)


class _Registration:
    """The member's key and its lease, and when the lease's last renewal was sent, by fence.now."""

    def __init__(self, key: str, lease: int, member: Member, renewed: float) -> None:
        self.key = key
        self.lease = lease
        self.member = member
        self.renewed = renewed
        self.create_revision = 0
        self.mod_revision = 0
        self.lost = False

    def wrote(self, member: Member, revision: int, create_revision: int = 0) -> None:
        self.member = member
        self.mod_revision = revision
        self.create_revision = self.create_revision or create_revision or revision


class _Progress:
    """Logs what a member waits for, at most every 30 seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 10

    def log(self, reason: str) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 30
            log.warning("rendezvous: waiting for %s", reason)


# For processes that are no member ----------------------------------------


def new_base(name: str) -> str:
    """An identity that no other process has. `name` makes it readable."""
    return f"{name}-{secrets.token_hex(4)}"


def outcome_of(client: etcd.Client, root: str) -> str:
    """How the run ended, or an empty string while it continues."""
    kv = client.get(root + "done")
    return str(json.loads(kv.value).get("outcome", CLOSED)) if kv else ""


def has_begun(client: etcd.Client, root: str) -> bool:
    """Whether a round was ever agreed, or a member is here."""
    return bool(client.get(root + "round") or client.range(root + "members/").keys)


def end_run(client: etcd.Client, root: str, outcome: str) -> None:
    """Mark the run as ended, unless it is marked already. Raises etcd.EtcdError after three attempts."""
    put = etcd.put_op(root + "done", json.dumps({"outcome": outcome}))
    for attempt in range(3):
        try:
            client.txn([etcd.key_is_same(root + "done", 0)], [put])
            return
        except (etcd.Ambiguous, etcd.Unavailable):
            # The comparison makes a repetition harmless.
            if attempt == 2:
                raise
            time.sleep(_RETRY_SECONDS)


def leases_of(client: etcd.Client, root: str, base: str) -> tuple[int, ...]:
    """The leases of the member with this base; normally one, or none."""
    keys = client.range(f"{root}members/{base}.").keys
    return tuple(sorted({kv.lease for kv in keys if kv.lease}))
