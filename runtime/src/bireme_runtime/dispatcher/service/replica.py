"""One of the dispatchers: it campaigns, and while it leads a thread of its own serves the desk."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union

from bireme_runtime.dispatcher.service.coordinator import Desk
from bireme_runtime.dispatcher.service.election import Leadership, NotLeader, leader_address
from bireme_runtime.dispatcher.service.keys import Answer, Request, sentence, trainers_of
from bireme_runtime.etcd import client as etcd

# More would make those at the end wait for long; fewer, many small transactions.
_BATCH = 200
_TICK_SECONDS = 0.25
_WATCH_IDLE_SECONDS = 10.0
_RETRY_SECONDS = 0.2
# Between two lines of the log about what is tried again and again.
_PAUSE_SECONDS = 10.0

_NOBODY = sentence(503, "no leader at the moment: ask again")

log = logging.getLogger("bireme_runtime")

Reply = Callable[[Answer], None]


@dataclass(frozen=True)
class _Asked:
    """A request; it may wait until `deadline` for something to happen, as long as its client is there."""

    request: Request
    reply: Reply
    deadline: float
    is_there: Callable[[], bool]


@dataclass(frozen=True)
class _Call:
    """Something to do at the desk, between requests; `reply` gets what it returns, or why not."""

    act: Callable[[Desk], Any]
    reply: Reply


_Item = Union[_Asked, _Call]


class Replica:
    """Serves the desk while it leads, and knows who leads while it does not. Thread-safe."""

    def __init__(self, client: etcd.Client, prefix: str, address: str, leader_seconds: int) -> None:
        self._client = client
        self._prefix = prefix
        self._address = address
        self._leader_seconds = leader_seconds
        self._items: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="desk", daemon=True)
        self._said = -_PAUSE_SECONDS
        self.leader = ""
        self.terms = 0

    @property
    def leads(self) -> bool:
        """Whether this replica answers itself."""
        return bool(self.leader) and self.leader == self._address

    @property
    def is_alive(self) -> bool:
        """Whether its thread works."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to campaign."""
        self._thread.start()

    def stop(self) -> None:
        """Give the lead up, if it is ours, so that another one takes it at once."""
        self._over.set()
        self._items.put(None)
        self._thread.join(10)

    def ask(
        self, request: Request, reply: Reply, wait: float = 0.0, is_there: Callable[[], bool] = lambda: True
    ) -> None:
        """Have a request answered, from another thread, at the latest after `wait` seconds."""
        self._put(_Asked(request, reply, time.monotonic() + wait, is_there))

    def call(self, act: Callable[[Desk], Any], reply: Reply) -> None:
        """Do something at the desk; the answer's body has what it returned under "result"."""
        self._put(_Call(act, reply))

    def _put(self, item: _Item) -> None:
        if self.leads:
            self._items.put(item)
        else:
            item.reply(_NOBODY)

    # The thread ----------------------------------------

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._campaign()
            except (etcd.EtcdError, NotLeader) as error:
                self._say(f"no leader is known: {error}")
            except Exception:
                log.exception("the desk failed; another leader takes over")
            else:
                continue
            finally:
                self._refuse_all()
            self.leader = ""
            self._over.wait(_RETRY_SECONDS)

    def _say(self, words: str) -> None:
        """Log what is tried again and again, now and then."""
        now = time.monotonic()
        if now - self._said >= _PAUSE_SECONDS:
            self._said = now
            log.info(words)

    def _campaign(self) -> None:
        """Lead, or follow until the leader is gone."""
        key = f"{self._prefix}leader"
        self.leader = leader_address(self._client, key)
        if self.leader:
            self._follow(key)
            return
        lease = self._client.lease_grant(self._leader_seconds)
        try:
            leadership = Leadership(self._client, key, self._address, lease)
            if leadership.campaign():
                _Term(self, leadership).serve()
        finally:
            self._client.with_timeout(1.0).lease_revoke(lease)

    def _follow(self, key: str) -> None:
        watch = self._client.watch(key, 0, _WATCH_IDLE_SECONDS)
        timer = threading.Thread(target=self._close_when_over, args=(watch,), daemon=True)
        timer.start()
        # A watch that is silent for long may be dead: then everything is looked at anew.
        with contextlib.closing(watch), contextlib.suppress(etcd.Unavailable):
            # What changed between reading and watching shows now.
            self.leader = leader_address(self._client, key)
            for _, events in watch:
                if events or not self.leader:
                    return

    def _close_when_over(self, watch: etcd.Watch) -> None:
        self._over.wait(_WATCH_IDLE_SECONDS + 1)
        watch.close()

    def _refuse_all(self) -> None:
        while True:
            try:
                item = self._items.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                item.reply(_NOBODY)


class _Term:
    """From becoming leader to losing that."""

    def __init__(self, replica: Replica, leadership: Leadership) -> None:
        self._replica = replica
        self._client = replica._client
        self._leadership = leadership
        self._lost = threading.Event()
        self._watch: etcd.Watch | None = None
        self._parked: dict[tuple[str, str, str], deque[_Asked]] = {}
        self._handed: list[tuple[Reply, Answer]] = []
        self._ticked = 0.0

    def serve(self) -> None:
        """Answer until the lead is lost. Raises NotLeader, etcd.EtcdError."""
        replica = self._replica
        threads = [threading.Thread(target=act, daemon=True) for act in (self._keep_lease, self._watch_all)]
        threads[0].start()
        try:
            desk = Desk(self._client, replica._prefix, self._leadership)
            threads[1].start()
            replica.leader = replica._address
            replica.terms += 1
            log.info("leading, at %s", replica.leader)
            while not (self._lost.is_set() or replica._over.is_set()):
                self._turn(desk, self._gather())
        finally:
            replica.leader = ""
            self._lost.set()
            if self._watch is not None:
                self._watch.close()
            for asked in (asked for group in self._parked.values() for asked in group):
                asked.reply(_NOBODY)

    def _gather(self) -> list[_Item]:
        """What is to do now; waits for it, for a moment."""
        items: list[_Item] = []
        source = self._replica._items
        try:
            item = source.get(timeout=_TICK_SECONDS)
            while item is not None:
                items.append(item)
                if len(items) >= _BATCH:
                    break
                item = source.get_nowait()
        except queue.Empty:
            pass
        return items

    def _turn(self, desk: Desk, items: list[_Item]) -> None:
        try:
            # Who has gone asks again, and says all that was said here.
            self._answer(desk, [item for item in items if isinstance(item, _Asked) and item.is_there()])
            for call in (item for item in items if isinstance(item, _Call)):
                call.reply(Answer(200, {"result": call.act(desk)}))
            while ready := self._ready(desk):
                items += ready
                self._answer(desk, ready)
            if time.monotonic() - self._ticked >= _TICK_SECONDS:
                self._ticked = time.monotonic()
                desk.tick()
                self._end_waits()
        except etcd.EtcdError as error:
            log.warning("etcd: %s", error)
            for item in items:
                # Who has had an answer already does not mind a second one.
                item.reply(sentence(503, f"etcd does not answer: {error}"))
            self._replica._over.wait(_RETRY_SECONDS)
        except BaseException:
            for item in items:
                item.reply(_NOBODY)
            raise

    def _answer(self, desk: Desk, asked: list[_Asked]) -> None:
        if not asked:
            return
        for each, answer in zip(asked, desk.handle([each.request for each in asked])):
            if answer is not None:
                each.reply(answer)
            else:
                key = (each.request.verb, each.request.dataset, each.request.name)
                self._parked.setdefault(key, deque()).append(each)

    def _ready(self, desk: Desk) -> list[_Asked]:
        """Those waiting for whom there may be something now."""
        ready: list[_Asked] = []
        for (verb, dataset, _), group in self._parked.items():
            if not group or not desk.may_answer(group[0].request):
                continue
            book = desk.books[dataset]
            # Only as many as there are shards, or the others would come here for nothing again and again.
            most = len(group) if verb != "next" or book.over else book.todo
            most = min(most, _BATCH - len(ready))
            while group and most > 0:
                asked = group.popleft()
                if asked.is_there():
                    ready.append(asked)
                    most -= 1
        return ready

    def _end_waits(self) -> None:
        now = time.monotonic()
        for key, group in list(self._parked.items()):
            kept = deque(asked for asked in group if asked.deadline > now and asked.is_there())
            for asked in group:
                if asked.deadline <= now:
                    asked.reply(Answer(200, {"wait": True}))
            if kept:
                self._parked[key] = kept
            else:
                del self._parked[key]

    # Beside it ----------------------------------------

    def _keep_lease(self) -> None:
        ttl = self._replica._leader_seconds
        client = self._client.with_timeout(max(0.5, ttl / 4))
        heard = time.monotonic()
        while not self._lost.wait(ttl / 4):
            try:
                client.lease_keepalive(self._leadership.lease)
                heard = time.monotonic()
            except etcd.LeaseLost:
                break
            except etcd.EtcdError:
                if time.monotonic() - heard > ttl:
                    break
        self._lost.set()

    def _watch_all(self) -> None:
        """Tell the desk about trainers whose leases ended."""
        prefix = trainers_of(self._replica._prefix)
        while not self._lost.is_set():
            try:
                self._watch_from_now(prefix)
            except etcd.EtcdError as error:
                log.debug("watching trainers: %s", error)
                self._lost.wait(_RETRY_SECONDS)

    def _watch_from_now(self, prefix: str) -> None:
        there = self._client.range(prefix)
        alive, revision = {kv.key for kv in there.keys}, there.revision
        self._do(lambda desk: desk.trainers_are(alive, revision))
        self._watch = self._client.watch(prefix, revision + 1, _WATCH_IDLE_SECONDS)
        if self._lost.is_set():
            self._watch.close()
        for _, events in self._watch:
            gone = [event.kv.key for event in events if event.deleted]
            if gone:
                self._do(lambda desk, keys=gone: desk.trainers_gone(keys))  # type: ignore[misc]

    def _do(self, act: Callable[[Desk], Any]) -> None:
        self._replica._items.put(_Call(act, lambda answer: None))
