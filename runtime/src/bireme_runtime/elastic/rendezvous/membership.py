"""The rendezvous: members agree on rounds through etcd. Independent of torch (docs/adr/0005).

Keys under `<prefix><run id>/`:

    members/<id>   under the member's lease: its address, and the first round in which it can be placed
    round          the number and the members, in rank order, of the latest round; compare-and-swap only
    store          under the lease of rank 0: the address where the agents of this round exchange data
    call           a member has left this round, or newcomers wait and the round has to end
    (and under `<prefix>.unreached/<run id>/<round>/` the members that do not reach rank 0)
    done           the run has ended: {"outcome": "success"}, when all members of the round have finished

A member that trains in round n blocks round n+1 until it declares itself ready or its lease ends. So a lost
member delays the others at most by the life of its lease, and no member is placed in two rounds at once. Its
processes end before its lease can have ended (fence.py), so no two worlds train at once.

What one member writes, and that its lease has ended, is told to few: the first ranks of the latest round.
They count who waits and who has finished, propose rounds, and call when one is lost. Before the first round
the one with the first key proposes. All others hear of rounds, calls and the ends of these few only. So a
round of N members, or the loss of many, costs N messages and not N². What follows from these keys is in
rules.py, and the lock that keeps a second run of the same job waiting in lock.py.
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
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bireme_runtime.elastic import fence
from bireme_runtime.elastic.rendezvous import rules
from bireme_runtime.elastic.rendezvous.lock import Locked, RunLock
from bireme_runtime.elastic.rendezvous.rules import World as World
from bireme_runtime.etcd import client as etcd
from bireme_runtime.process.errors import BiremeError, Unreachable

# Seconds without an event after which the keys are watched anew, in case the watch's connection is dead.
_WATCH_IDLE_SECONDS = 60.0
_WATCH_IDLE_SECONDS_PER_MEMBER = 0.3
# The same if renewals show that something was written meanwhile, perhaps to other keys.
_BLIND_SECONDS = 10.0
_BLIND_SECONDS_PER_MEMBER = 0.05
# The number of members, from rank 0 on, that know all others of the round.
_KNOWING = 2
# For so long a member that does not reach rank 0 looks whether others do not either.
_UNREACHED_SECONDS = 10.0
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


class ThreadEnded(BiremeError):
    """A thread of this member ended unexpectedly, so that it does not know any more what the others do."""


class JoinTimeout(BiremeError):
    """No round with this member was agreed in time; the message says what was missing."""


# A member ----------------------------------------


@dataclass(frozen=True)
class Identity:
    """What a member registers: a name that no other process has, its slot, address and node's place."""

    base: str
    slot: int
    address: str
    place: tuple[str, ...] = ()


class Rendezvous:
    """One member of a run, until `leave`. `join` may be called repeatedly, from one thread.

    Two threads of its own renew the lease and watch the keys. `client` may be shared.
    """

    def __init__(
        self,
        client: etcd.Client,
        settings: rules.RunSettings,
        identity: Identity,
        board: fence.Board | None = None,
        may_join: Callable[[], bool] = lambda: True,
        reaches: Callable[[str], bool] = lambda address: True,
        wanted: Callable[[], int] = lambda: 0,
    ) -> None:
        # How many members train at most, beside the settings; 0: no fewer than these say.
        self._wanted = wanted
        # Asked while newcomers wait: whether they may interrupt the training.
        self._may_join = may_join
        # Asked before joining: whether this machine reaches the store at this address.
        self._reaches = reaches
        # The round that this member was called out of, because it did not reach the others.
        self._cut_from = 0
        self.settings = settings
        self.identity = identity
        self.board = board or fence.Board.new()
        self._client = client
        self._lock = RunLock(client, settings)
        # The client for renewals has a timeout shorter than the lease.
        self._renewal_client = client.with_timeout(max(1.0, settings.lease_ttl / 6))
        self._changed = threading.Condition()
        self._view = rules.View()
        self._reading = 0
        self._wanted_reading = 0
        # For a member outside of the latest round: the living member with the first key, once it is found.
        self._first, self._asked_first = "", 0
        # The members of a round whose ends are told to one of it that knows no others.
        self._followed_few: tuple[str, ...] = ()
        self._deletions = 0
        # Where the watches of a member without a whole view resume: of members, and of all other keys.
        self._resume = (0, 0)
        self._trouble = "no answer yet"
        # The highest round, and token, that this member has ever seen. etcd may have lost them.
        self._highest = self._highest_token = 0
        self._seen: set[str] = set()
        # For `join` and `all_finished`: the agent's thread is in one of them at a time.
        self._progress = _Progress()
        self._gathering = self._last_arrival = time.monotonic()
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
            if self._registration is None:
                self._wait_for_lock()
            with contextlib.suppress(Locked):
                return self._join(time.monotonic() + self.settings.join_timeout)

    def _join(self, deadline: float) -> World:
        self._get_ready(deadline)
        self._progress = _Progress()
        # The id of its latest registration, also when that is lost.
        me = ""
        while True:
            with self._changed:
                self._check_threads()
                registration, reading = self._registration, self._view
                me = registration.member.id if registration else me
                decision = self._decide() if registration else rules.Wait("a new lease")
                round = reading.round
                # As far as it knows, the others train without it: it waits as long as they do.
                is_spare = round is not None and me not in round.ids and not reading.leavers()
                if is_spare and not isinstance(decision, rules.Propose):
                    deadline = time.monotonic() + self.settings.join_timeout
                if isinstance(decision, World) and self._uncertain():
                    decision = rules.Wait("etcd to renew its lease")
                if isinstance(decision, rules.Propose) and (left := self._unsettled()) > 0:
                    decision = rules.Wait("leases that may still live in other data of etcd", left)
                if isinstance(decision, World):
                    self._world, self._entered = decision, time.monotonic()
                    self._admitted(decision)
                    return decision
                if isinstance(decision, rules.Wait) and registration:
                    self._wait(decision, deadline)
                    continue
            if isinstance(decision, rules.Over):
                raise RunOver(decision.outcome)
            if isinstance(decision, rules.Propose) and registration is not None:
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
            if self._world is None or self._view.outcome == rules.SUCCESS:
                return 0
            view, world, mine = self._view, self._world, self._registration
            if mine is None or self._uncertain() or view.token != world.token:
                return 1
            leavers = len(view.leavers())
            if leavers:
                return leavers + (len(view.arrivals()) if view.whole else 0)
            if view.finished or time.monotonic() - self._entered < self.settings.settle_timeout:
                return 0
            if view.called() or view.first() != mine.member.id or not view.whole:
                return int(view.called())
            # Who finds no place waits as a spare.
            arrivals = self._bounds().size(world.size + len(view.arrivals())) - world.size
        # The first one tells the others, which do not know of newcomers.
        try:
            agreed = arrivals > 0 and self._may_join() and self._call(self._renewal_client, world, "")
            return arrivals if agreed else 0
        except etcd.EtcdError as error:
            log.info("cannot call for another round: %s", error)
            return 0

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
            lost = self._registration is None or self._uncertain()
            return lost or self._view.token != world.token or bool(self._view.leavers())

    def publish_store(self, world: World, address: str) -> bool:
        """Publish, as rank 0, the address of the round's store. Returns False when the round has ended."""
        registration = self._registration
        if registration is None:
            return False
        value = json.dumps({"round": world.number, "address": address})
        compare = [etcd.key_is_unchanged(self._key("round"), world.mod_revision)]
        put = etcd.put_op(self._key("store"), value, registration.lease)
        deadline = time.monotonic() + self.settings.join_timeout
        try:
            # Writing it twice is harmless, and the comparison prevents a write after the round's end.
            return bool(self._persist(lambda: self._client.txn(compare, [put]).succeeded, deadline))
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

    def unreached(self, world: World) -> None:
        """Call somebody out of this round: this member reaches etcd, but not rank 0.

        It is rank 0 if most members of the round say the same within 10 s, and otherwise this one. Who is out
        joins again when it reaches the store of the latest round.
        """
        with self._changed:
            registration, current = self._registration, self._view.round
        if registration is None or current is None or self.broken(world):
            return
        me, first = registration.member.id, current.members[0]
        notes = f"{self.settings.prefix}.unreached/{self.settings.run_id}/{world.number}/"
        deadline = time.monotonic() + _UNREACHED_SECONDS
        try:
            self._client.put(notes + me, "", registration.lease)
            while not self.broken(world):
                most = 2 * self._client.count(notes, notes[:-1] + "0") > world.size - 1 > 1
                if most or time.monotonic() >= deadline:
                    out = first if most else me
                    log.warning("round %d: %s does not reach %s; %s leaves", world.number, me, first, out)
                    self._call(self._client, world, out, cut=True)
                    return
                self._closing.wait(self._retry_seconds())
        except etcd.EtcdError as error:
            log.info("cannot tell that rank 0 is not reached: %s", error)

    def token(self, world: World) -> dict[str, str]:
        """The environment by which the processes of this world know, and can check, their round."""
        key, run = self._key("round"), self.settings.run_id
        return fence.environment(run, world.number, world.token, key, self.board)

    def all_finished(self) -> bool:
        """Whether all members have finished the round, as this one has: then the run has succeeded.

        Call it repeatedly after the processes of this member have succeeded, until it returns True or
        `waiting` calls for another round, because a member failed or was lost before it had finished.
        """
        with self._changed:
            view, world, registration = self._view, self._world, self._registration
            self._check_threads()
            if view.outcome == rules.SUCCESS:
                return True
        if world is None or registration is None or view.token != world.token:
            return False
        try:
            if not registration.member.finished:
                self._admitted(None)
                self._progress = _Progress()
                finished = replace(registration.member, finished=True)
                self._write(registration, finished, time.monotonic())
            elif registration.member.id != view.first():
                self._progress.log(f"the others to finish, of whom {view.first()} keeps count")
            elif view.whole and view.all_finished(registration.member.id):
                # Its view may lack its own mark, where etcd lost as many revisions as were written since.
                return self._succeed(world)
            else:
                self._progress.log(f"{world.size - len(view.finished)} members to finish")
        except etcd.LeaseLost:
            self._mark_lost(registration)
        except (etcd.EtcdError, Unreachable) as error:
            self._progress.log(f"etcd, to record that this member has finished: {error}")
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
        if registration:
            try:
                self._renewal_client.lease_revoke(registration.lease)
            except etcd.EtcdError as error:
                log.warning("cannot revoke the lease; it will expire: %s", error)
        for thread in self._threads:
            thread.join(self.settings.close_timeout)
        self._threads = []

    # Registering and proposing ----------------------------------------

    def _decide(self) -> rules.Decision:
        assert self._registration is not None
        member, now = self._registration.member, time.monotonic()
        quiet, gathering = now - self._last_arrival, now - self._gathering
        waited = self._client.history.losses > 0
        return rules.decide(self._view, member.id, member.ready, self._bounds(), quiet, gathering, waited)

    def _bounds(self) -> rules.RunSettings:
        """The settings, for as many members as are wanted now."""
        settings, wanted = self.settings, self._wanted()
        if not 0 < wanted < settings.max_nodes:
            return settings
        return replace(settings, max_nodes=max(wanted, settings.min_nodes))

    def _admitted(self, world: World | None) -> None:
        """Write on the board that the processes of this world may run; None: that there are none."""
        with self._changed:
            registration = self._registration
            if world is None or registration is None:
                self.board.clear()
            else:
                self.board.admit(world.token, self._until(registration, fence.KILL_SHARE))

    def _until(self, registration: _Registration, share: float) -> float:
        """When this share of the lease is over, by fence.now: of the shortest life that it can have."""
        return registration.renewed + share * self.settings.lease_ttl

    def _uncertain(self) -> bool:
        """Whether so much of the lease is over, without a renewal, that processes must not run."""
        registration = self._registration
        return registration is not None and fence.now() >= self._until(registration, fence.STOP_SHARE)

    def _wait(self, decision: rules.Wait, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise JoinTimeout(f"after {self.settings.join_timeout:.0f} s still waiting for {decision.reason}")
        self._progress.log(decision.reason)
        self._changed.wait(min(remaining, 10.0 if decision.seconds is None else decision.seconds + 0.001))

    def _get_ready(self, deadline: float) -> None:
        """Register, or update the registration, as ready for the next round."""
        while True:
            try:
                mine = self._registration
                if mine and self._called_out():
                    # Its processes have ended.
                    self._persist(functools.partial(self._client.lease_revoke, mine.lease), deadline)
                    self._mark_lost(mine)
                    mine = None
                if mine is None:
                    self._register(deadline)
                else:
                    self._say_goodbye(mine, deadline)
                    self._write(mine, self._ready(mine.member), deadline)
                return
            except etcd.LeaseLost:
                if mine:
                    self._mark_lost(mine)

    def _say_goodbye(self, registration: _Registration, deadline: float) -> None:
        """Tell the members of a round that still trains that this one does not any more."""
        with self._changed:
            world, view = self._world, self._view
            known = world is None or view.token != world.token or bool(view.leavers())
        if world is None or known:
            return
        for _ in range(3):
            # Another member may call at the same time.
            if self._persist(lambda: self._call(self._client, world, registration.member.id), deadline):
                return

    def _called_out(self) -> bool:
        """Whether this member has to leave because it does not reach the others."""
        with self._changed:
            world, call, registration = self._world, self._view.call, self._registration
        if not (world and call and registration and call.cut):
            return False
        if (call.round, call.leaver) != (world.number, registration.member.id):
            return False
        self._cut_from = world.number
        return True

    def _wait_for_peers(self, deadline: float) -> None:
        """Wait until the store of the latest round is reached, if there is one.

        A round with this member could not train before. Who was called out waits until there is one.
        """
        progress = _Progress()
        while True:
            self._check_threads()
            view = self._view
            if view.outcome or (self._reaches(view.store[1]) if view.store else not self._cut_from):
                self._cut_from = 0
                return
            round = f"rank 0 of round {view.number}"
            if time.monotonic() >= deadline or self._closing.wait(random.uniform(0.5, 1.5)):
                raise Unreachable(f"this worker reaches etcd but not {round}: see whether its network is up")
            progress.log(f"the network: this worker reaches etcd, but not {round}")

    def _call(self, client: etcd.Client, world: World | rules.Round, leaver: str, cut: bool = False) -> bool:
        """Tell the members of this round that it has to end, unless it has ended or all know.

        A repetition is harmless. Returns whether they will know.
        """
        key = self._key("call")
        call = rules.view_of(self.settings.root, client.range(key)).call
        if call and call.round == world.number and (call.leaver or not leaver):
            return True
        value = json.dumps({"round": world.number, "leaver": leaver, **({"cut": True} if cut else {})})
        compare = [
            etcd.key_is_unchanged(self._key("round"), world.mod_revision),
            etcd.key_is_unchanged(key, call.mod_revision if call else 0),
        ]
        return client.txn(compare, [etcd.put_op(key, value)]).succeeded

    def _register(self, deadline: float) -> None:
        """Become a member with a new lease. Raises Locked when another run holds the lock."""
        # etcd may have been restored or emptied: read the current round before deriving `ready` from it.
        self._read_again(deadline)
        while self._client.history.losses and self._unsettled() > 0:
            # Others of a round that etcd has lost may not know yet.
            self._closing.wait(self._unsettled())
            self._read_again(deadline)
        self._wait_for_peers(min(deadline, time.monotonic() + self.settings.read_timeout))
        losses = self._client.history.losses
        asked, lease = self._persist(
            lambda: (fence.now(), self._client.lease_grant(self.settings.lease_ttl)), deadline
        )
        self._registrations += 1
        me = self.identity
        id = f"{me.base}.{self._registrations}"
        member = self._ready(rules.Member(id, me.base, me.slot, me.address, 0, place=me.place))
        registration = _Registration(self._key(f"members/{id}"), lease, member, asked, losses)
        if self.settings.lock:
            try:
                self._persist(lambda: self._lock.claim(id, lease), deadline)
            except Locked:
                with contextlib.suppress(etcd.EtcdError):
                    self._renewal_client.lease_revoke(lease)
                raise
        self._write(registration, member, deadline)
        self._persist(self._find_first, deadline)
        with self._changed:
            self._registration, self._world = registration, None
            # Without its watch the other thread reads again, which this member needs now.
            if self._watch and (self._needs_more() or not self._first):
                self._watch.close()
            self._changed.notify_all()

    def _ready(self, member: rules.Member) -> rules.Member:
        """The member as ready for the next round."""
        return replace(member, ready=self._highest + 1, token=self._highest_token, finished=False)

    def _unsettled(self) -> float:
        """Seconds until all leases have ended that were granted in data that etcd had before these.

        Who comes to an etcd does not know whether it had other data, which matters where runs are kept apart.
        """
        history = self._client.history
        return self.settings.lease_ttl - history.seconds if self.settings.lock or history.losses else 0.0

    def _wait_for_lock(self) -> None:
        """Wait, for as long as it takes, until no other run holds the lock."""
        next_log = 0.0
        while self.settings.lock:
            self._check_threads()
            if self.outcome:
                raise RunOver(self.outcome)
            deadline = time.monotonic() + self.settings.join_timeout
            awaited = self._persist(self._lock.awaited, deadline)
            if not awaited:
                return
            if time.monotonic() >= next_log:
                next_log = time.monotonic() + _LOCK_LOG_SECONDS
                both = f"two runs of {self.settings.lock} must not write one checkpoint"
                log.warning("waiting for %s, and %s", awaited, both)
            if self._closing.wait(random.uniform(0.5, 1.5)):
                raise Unreachable("this member has left while it waited for another run to end")

    def _write(self, registration: _Registration, member: rules.Member, deadline: float) -> None:
        """Write this value to the member's key. A delayed duplicate of an older write cannot overwrite it."""
        value = member.to_json()
        put = etcd.put_op(registration.key, value, registration.lease)
        while True:
            try:
                compare = [etcd.key_is_unchanged(registration.key, registration.mod_revision)]
                outcome = self._client.txn(compare, [put])
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

    def _propose(self, new: rules.Round, mine: _Registration, view: rules.View, deadline: float) -> None:
        """Try to write the new round as the latest. The view will show whether that succeeded.

        Raises JoinTimeout when none of this member's proposals has succeeded in time.
        """
        compare = [
            etcd.key_is_unchanged(self._key("round"), view.round.mod_revision if view.round else 0),
            etcd.key_is_same(self._key("done"), 0),
            etcd.key_is_same(mine.key, mine.create_revision),
            etcd.none_newer(self._key("members/"), view.revision),
        ]
        trouble = "the members change meanwhile"
        # By the clock, since etcd and all agents of before may be gone.
        new = replace(new, token=max(new.token, int(1000 * time.time())))
        try:
            if self._client.txn(compare, [etcd.put_op(self._key("round"), new.to_json())]).succeeded:
                trouble = "the view does not show it"
        except (etcd.Unavailable, etcd.Ambiguous) as error:
            trouble = str(error)
            self._pause(deadline, error)
        with self._changed:
            # In either case a newer view will follow.
            seconds = 1.0 if self._view is view else 0.0
            self._wait(rules.Wait(f"round {new.number} to be agreed: {trouble}", seconds), deadline)

    def _succeed(self, world: World) -> bool:
        """Mark the run as succeeded, unless a new round was agreed. Returns whether it is marked."""
        compare = [
            etcd.key_is_unchanged(self._key("round"), world.mod_revision),
            etcd.key_is_same(self._key("done"), 0),
        ]
        put = etcd.put_op(self._key("done"), json.dumps({"outcome": rules.SUCCESS}))
        # If it is marked already, the view will show it.
        return self._client.txn(compare, [put]).succeeded

    def _mark_lost(self, registration: _Registration) -> None:
        with self._changed:
            if registration is self._registration:
                self._registration = None
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
        share = self._crowd() / _RENEWALS_PER_SECOND
        quarter = max(self.settings.keep_alive_interval, self.settings.lease_ttl / 4)
        return random.uniform(0.8, 1.0) * min(quarter, max(self.settings.keep_alive_interval, share))

    def _retry_seconds(self) -> float:
        """How long to wait before another attempt: the longer the more members do the same."""
        return random.uniform(0.5, 1.5) * max(_RETRY_SECONDS, _RETRY_SECONDS_PER_MEMBER * self._crowd())

    def _crowd(self) -> int:
        """About how many members there are."""
        view = self._view
        placed = len(view.round.members) if view.round else self.settings.first_nodes
        return max(placed, len(view.members))

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
            if registration is None:
                continue
            asked = fence.now()
            try:
                self._renewal_client.lease_keepalive(registration.lease)
                if self._renewal_client.revision < self._client.history.revision:
                    # A server that lags behind, or one that has lost data.
                    self._renewal_client.get(self._key("round"))
                if self._client.history.losses != registration.losses:
                    raise etcd.LeaseLost("etcd has lost data")
                with self._changed:
                    registration.renewed = asked
                    if registration is self._registration:
                        self.board.extend(self._until(registration, fence.KILL_SHARE))
                    self._changed.notify_all()
                self._mind_the_watch()
            except etcd.LeaseLost as error:
                log.warning("%s: the others go on without %s until it joins again", error, registration.key)
                self._mark_lost(registration)
            except etcd.EtcdError as error:
                pause = self._retry_seconds()
                log.info("cannot renew the lease: %s", error)

    def _follow(self) -> None:
        known = False
        while not self._closing.is_set():
            with self._changed:
                wanted, more = self._wanted_reading, self._needs_more()
                known = known and self._reading == wanted and not more
            try:
                if not known:
                    self._show(self._read(more))
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

    def _needs_more(self) -> bool:
        """Whether this member needs the whole view and lacks it."""
        registration, view = self._registration, self._view
        if (view.whole and view.revision) or registration is None:
            return False
        return registration.member.id in (self._few() or [self._first])

    def _few(self) -> tuple[str, ...]:
        """Whose ends a member of the latest round has to know, if it does not know all."""
        view, mine = self._view, self._registration
        round = None if view.whole or mine is None else view.round
        if round is None or mine is None or mine.member.id not in round.ids:
            return ()
        return tuple(id for id in round.members[:_KNOWING] if id not in view.gone) or (view.first(),)

    def _follows(self, few: tuple[str, ...]) -> bool:
        """Whether the end of one of them, who tells of the others, is told; without them, of nobody."""
        return not set(few).isdisjoint(self._followed_few) if few else not self._followed_few

    def _look_at_few(self) -> None:
        """See who of the few lives, whose ends are told from here on."""
        few, view, members = self._few(), self._view, self._key("members/")
        if self._follows(few):
            return
        if few and view.round:
            names = [members + id for id in few]
            found = self._client.spans(*(etcd.Span(each, each + "\0", keys_only=True) for each in names))
            if not any(each.keys for each in found):
                found = (self._client.span(members, etcd.prefix_end(members), keys_only=True),)
                few = view.round.members
            here = {kv.key[len(members) :] for each in found for kv in each.keys}
            self._resume = (found[0].revision + 1, self._resume[1])
            self._show(replace(view, gone=view.gone | (set(few) - here)))
        with self._changed:
            self._first, self._followed_few = "", self._few()

    def _find_first(self) -> None:
        """Find the member with the first key. Only deletions change that for those that come after it."""
        members = self._key("members/")
        while True:
            with self._changed:
                self._asked_first += 1
                asked, deletions = self._asked_first, self._deletions
            # Not all need be members': some may be somebody else's.
            keys = self._client.span(members, etcd.prefix_end(members), limit=8)
            with self._changed:
                # If a lease has ended meanwhile, it may have been this one's.
                if self._deletions == deletions:
                    # Both threads ask. The answer to the later question counts, whichever comes last.
                    if asked == self._asked_first:
                        self._first = min(rules.view_of(self.settings.root, keys).members, default="")
                    return

    def _read(self, whole: bool) -> rules.View:
        """Read all keys, or all but those of the other members."""
        root, members = self.settings.root, self._key("members/")
        if whole:
            return rules.view_of(root, self._client.range(root))
        end = etcd.prefix_end(members).decode()
        before, after = self._client.spans(etcd.Span(root, members), etcd.Span(end, etcd.prefix_end(root)))
        with self._changed:
            self._first, self._followed_few = "", ()
            self._resume = (before.revision + 1, before.revision + 1)
        keys = (etcd.Event(kv, False) for kv in (*before.keys, *after.keys))
        return rules.View(before.revision, whole=False).changed(root, keys)

    def _watch_from_here(self, wanted: int) -> None:
        """Follow what was written after the view. Raises Compacted when the keys must be read again."""
        self._look_at_few()
        idle = max(_WATCH_IDLE_SECONDS, _WATCH_IDLE_SECONDS_PER_MEMBER * self._crowd())
        watch = self._new_watch(random.uniform(0.8, 1.2) * idle)
        with self._changed:
            self._watch = watch
        try:
            for revision, events in watch:
                if revision < self._view.revision:
                    raise etcd.Compacted("etcd has older data than this member has seen")
                if events:
                    view = self._view.changed(self.settings.root, events)
                    self._show(replace(view, revision=max(revision, view.revision)))
                    self._follow_from(events)
                    self._followed = (revision, time.monotonic())
                else:
                    self._check_data()
                    with self._changed:
                        self._reading = wanted
                        self._followed = (revision, time.monotonic())
                        self._changed.notify_all()
                self._tell_of_losses()
                few = self._few()
                if self._registration and not (self._first or few):
                    self._find_first()
                if not self._follows(few) or self._needs_more():
                    return
                if self._wanted_reading != wanted or self._closing.is_set():
                    return
        finally:
            watch.close()

    def _tell_of_losses(self) -> None:
        """Let those who do not know all hear that their round has lost a member."""
        view = self._view
        if view.whole and view.round and len(view.round.ids) > _KNOWING and not (view.told() or view.outcome):
            for lost in sorted(view.leavers())[:1]:
                self._call(self._client, view.round, lost)

    def _check_data(self) -> None:
        """See whether etcd has what this member has read and written. Raises Compacted if it has not."""
        view, mine = self._view, self._registration
        # Before it is read, because the other thread may write it meanwhile.
        wrote = (mine.member.ready, mine.member.finished) if mine else (0, False)
        names = (self._key("round"), mine.key if mine and mine.mod_revision else "")
        found = self._client.spans(*(etcd.Span(name, name + "\0") for name in names if name))
        latest, *own = (rules.view_of(self.settings.root, each) for each in found)
        if latest.round != view.round and (latest.round or rules.Round(0, ())).mod_revision <= view.revision:
            raise etcd.Compacted("etcd has other data than this member has read")
        if mine and own:
            member = own[0].members.get(mine.member.id)
            if member is None or (member.ready, member.finished) < wrote:
                self._mark_lost(mine)

    def _new_watch(self, idle: float) -> etcd.Watch:
        root, members = self.settings.root, self._key("members/")
        if self._view.whole:
            return self._client.watch(root, self._view.revision + 1, idle)
        end = etcd.prefix_end(members)
        of_members, of_others = self._resume
        # Outside a round, of those that may have the first key.
        ends = [(id, id + "\0") for id in self._followed_few] or [("", self.identity.base + "/")]
        spans = [
            etcd.Span(root, members, revision=of_others),
            etcd.Span(end.decode(), etcd.prefix_end(root), revision=of_others),
            *(etcd.Span(members + a, members + b, revision=of_members, deletions=True) for a, b in ends),
        ]
        return self._client.watch_spans(spans, idle)

    def _follow_from(self, events: tuple[etcd.Event, ...]) -> None:
        """Note where watches resume, and whether the first member is gone."""
        members = self._key("members/")
        of_members, of_others = self._resume
        for event in events:
            if not event.kv.key.startswith(members):
                of_others = max(of_others, event.kv.mod_revision + 1)
                continue
            of_members = max(of_members, event.kv.mod_revision + 1)
            if event.deleted:
                with self._changed:
                    self._deletions += 1
                    if event.kv.key[len(members) :] == self._first:
                        self._first = ""
        self._resume = (of_members, of_others)

    def _mind_the_watch(self) -> None:
        """End a watch that has told nothing for a while although etcd has newer data: it may be blind."""
        revision, since = self._followed
        patience = max(_BLIND_SECONDS, _BLIND_SECONDS_PER_MEMBER * self._crowd())
        if self._renewal_client.revision > revision and time.monotonic() - since > patience:
            with self._changed:
                if self._watch:
                    self._watch.close()

    def _show(self, view: rules.View) -> None:
        with self._changed:
            self._view = view = view.after(self._view)
            self._highest = max(self._highest, view.number)
            self._highest_token = max(self._highest_token, view.token)
            if not view.members.keys() <= self._seen:
                self._last_arrival = time.monotonic()
                self._seen |= view.members.keys()
            registration = self._registration
            if registration and (
                registration.member.id in view.gone
                or (
                    view.whole
                    and registration.mod_revision <= view.revision
                    and registration.member.id not in view.members
                )
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

    def __init__(self, key: str, lease: int, member: rules.Member, renewed: float, losses: int) -> None:
        self.key = key
        self.lease = lease
        self.member = member
        self.renewed = renewed
        self.losses = losses
        self.create_revision = self.mod_revision = 0

    def wrote(self, member: rules.Member, revision: int, create_revision: int = 0) -> None:
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
    return str(json.loads(kv.value).get("outcome", rules.CLOSED)) if kv else ""


def spares_of(client: etcd.Client, root: str) -> tuple[str, ...]:
    """The names of the members that wait while others train, without those that are ready for a new round."""
    keys = client.range(root + "round").keys
    round = rules.view_of(root, etcd.Snapshot(0, keys)).round
    if round is None:
        return ()
    members = root + "members/"
    here = client.span(members, etcd.prefix_end(members), keys_only=True).keys
    ids = (kv.key[len(members) :] for kv in here)
    return tuple(id.rsplit("-", 1)[0] for id in ids if id not in round.ids)


def has_begun(client: etcd.Client, root: str) -> bool:
    """Whether a round was ever agreed, or a member is here."""
    members = root + "members/"
    here = client.span(members, etcd.prefix_end(members), limit=1).keys
    return bool(here or client.get(root + "round"))


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
