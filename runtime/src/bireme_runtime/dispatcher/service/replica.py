"""A replica of the dispatcher: it campaigns and, while it leads, runs the coordinator in a thread."""

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

from bireme_runtime.dispatcher.service.coordinator import Coordinator
from bireme_runtime.dispatcher.service.election import Leadership, NotLeader, leader_address
from bireme_runtime.dispatcher.service.keys import leader_key, trainers_of
from bireme_runtime.dispatcher.service.requests import Answer, TrainerRequest, not_now, refusal
from bireme_runtime.etcd import client as etcd

# The largest batch: more requests would delay the last ones, fewer would need more transactions.
_BATCH = 200
_TICK_SECONDS = 0.25
_WATCH_IDLE_SECONDS = 10.0
_RETRY_SECONDS = 0.2
# The least time between two log lines about a failure that repeats.
_LOG_SECONDS = 10.0

_NO_LEADER = refusal(503, "no leader at the moment: try again")

log = logging.getLogger("bireme_runtime")

Reply = Callable[[Answer], None]


@dataclass(frozen=True)
class Waiting:
    """A request that may wait for its answer until `deadline`, while its client is connected."""

    request: TrainerRequest
    reply: Reply
    deadline: float
    is_connected: Callable[[], bool]


@dataclass(frozen=True)
class Call:
    """A call of the coordinator between requests. `reply` gets its result, as "result", or a refusal."""

    act: Callable[[Coordinator], Any]
    reply: Reply


Item = Union[Waiting, Call]


class Replica:
    """Answers requests while it leads, and knows the leader while it does not. Thread-safe."""

    def __init__(self, client: etcd.Client, prefix: str, address: str, leader_seconds: int) -> None:
        self._client = client
        self._prefix = prefix
        self._address = address
        self._leader_seconds = leader_seconds
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)
        self._logged = -_LOG_SECONDS
        self.leader = ""
        self.terms = 0

    @property
    def leads(self) -> bool:
        """Whether this replica leads."""
        return bool(self.leader) and self.leader == self._address

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start to campaign."""
        self._thread.start()

    def stop(self) -> None:
        """Give up the lead, if this replica has it, so that another replica can take it at once."""
        self._over.set()
        self._items.put(None)
        self._thread.join(10)

    def put(self, item: Item) -> None:
        """Answer a request or carry out a call, and tell its `reply`, from another thread or at once."""
        if self.leads:
            self._items.put(item)
        else:
            item.reply(_NO_LEADER)

    # The thread ----------------------------------------

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._campaign()
            except (etcd.EtcdError, NotLeader) as error:
                if time.monotonic() - self._logged >= _LOG_SECONDS:
                    self._logged = time.monotonic()
                    log.info("no leader is known: %s", error)
            except Exception:
                log.exception("the coordinator failed; another replica takes over")
            else:
                continue
            finally:
                self._refuse_all()
            self.leader = ""
            self._over.wait(_RETRY_SECONDS)

    def _campaign(self) -> None:
        """Lead, or follow until there is no leader."""
        key = leader_key(self._prefix)
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
            self._client.with_timeout(5.0).lease_revoke(lease)

    def _follow(self, key: str) -> None:
        watch = self._client.watch(key, 0, _WATCH_IDLE_SECONDS)

        def close_when_over() -> None:
            self._over.wait(_WATCH_IDLE_SECONDS + 1)
            watch.close()

        threading.Thread(target=close_when_over, daemon=True).start()
        # A watch without events may have lost its connection: after a while the leader is read again.
        with contextlib.closing(watch), contextlib.suppress(etcd.Unavailable):
            # The leader may have changed between the first reading and the start of the watch.
            self.leader = leader_address(self._client, key)
            for _, events in watch:
                if events or not self.leader:
                    return

    def _refuse_all(self) -> None:
        while True:
            try:
                item = self._items.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                item.reply(_NO_LEADER)


class _Term:
    """The time in which a replica leads."""

    def __init__(self, replica: Replica, leadership: Leadership) -> None:
        self._replica = replica
        self._client = replica._client
        self._leadership = leadership
        self._lost = threading.Event()
        self._watch: etcd.Watch | None = None
        self._waiting: dict[tuple[str, str, str], deque[Waiting]] = {}
        self._ticked = 0.0

    def serve(self) -> None:
        """Answer requests until the lead is lost. Raises NotLeader, etcd.EtcdError."""
        replica = self._replica
        threads = [threading.Thread(target=act, daemon=True) for act in (self._keep_lease, self._watch_all)]
        threads[0].start()
        try:
            coordinator = Coordinator(self._client, replica._prefix, self._leadership)
            threads[1].start()
            replica.leader = replica._address
            replica.terms += 1
            log.info("leading, at %s", replica.leader)
            while not (self._lost.is_set() or replica._over.is_set()):
                self._turn(coordinator, self._gather())
        finally:
            replica.leader = ""
            self._lost.set()
            if self._watch is not None:
                self._watch.close()
            for asked in (asked for group in self._waiting.values() for asked in group):
                asked.reply(_NO_LEADER)

    def _gather(self) -> list[Item]:
        """The next batch of requests and calls; waits a moment if there are none."""
        items: list[Item] = []
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

    def _turn(self, coordinator: Coordinator, items: list[Item]) -> None:
        try:
            # A disconnected client retries and sends everything again, so its requests are skipped.
            self._answer(
                coordinator, [item for item in items if isinstance(item, Waiting) and item.is_connected()]
            )
            for call in (item for item in items if isinstance(item, Call)):
                call.reply(Answer(200, {"result": call.act(coordinator)}))
            while ready := self._answerable(coordinator):
                items += ready
                self._answer(coordinator, ready)
            if time.monotonic() - self._ticked >= _TICK_SECONDS:
                self._ticked = time.monotonic()
                coordinator.tick()
                self._end_waits(coordinator)
        except etcd.EtcdError as error:
            log.warning("etcd: %s", error)
            for item in items:
                # A second reply to a request that already has one is ignored.
                item.reply(not_now(error))
            self._replica._over.wait(_RETRY_SECONDS)
        except BaseException:
            for item in items:
                item.reply(_NO_LEADER)
            raise

    def _answer(self, coordinator: Coordinator, asked: list[Waiting]) -> None:
        if not asked:
            return
        for each, answer in zip(asked, coordinator.handle([each.request for each in asked])):
            if answer is not None:
                each.reply(answer)
            else:
                key = (each.request.verb, each.request.dataset, each.request.name)
                self._waiting.setdefault(key, deque()).append(each)

    def _answerable(self, coordinator: Coordinator) -> list[Waiting]:
        """The waiting requests that may get an answer now."""
        ready: list[Waiting] = []
        for (verb, dataset, _), group in self._waiting.items():
            if not group or not coordinator.may_answer(group[0].request):
                continue
            state = coordinator.datasets.get(dataset)
            # At most as many requests as there are shards; the others would only be put back.
            most = state.todo if state and verb == "next" and not state.over else len(group)
            most = min(most, _BATCH - len(ready))
            while group and most > 0:
                asked = group.popleft()
                if asked.is_connected():
                    ready.append(asked)
                    most -= 1
        return ready

    def _end_waits(self, coordinator: Coordinator) -> None:
        """Answer the requests whose time is over. They hear whether there is such a dataset at all."""
        now = time.monotonic()
        for key, group in list(self._waiting.items()):
            kept = deque(asked for asked in group if asked.deadline > now and asked.is_connected())
            for asked in group:
                if asked.deadline <= now:
                    is_defined = coordinator.is_defined(asked.request.dataset)
                    asked.reply(Answer(200, {"wait": True, "defined": is_defined}))
            if kept:
                self._waiting[key] = kept
            else:
                del self._waiting[key]

    # Threads beside it ----------------------------------------

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
        """Tell the coordinator which trainers' leases have ended."""
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
        self._do(lambda coordinator: coordinator.trainers_are(alive, revision))
        self._watch = self._client.watch(prefix, revision + 1, _WATCH_IDLE_SECONDS)
        if self._lost.is_set():
            self._watch.close()
        for _, events in self._watch:
            gone = [event.kv.key for event in events if event.deleted]
            if gone:
                self._do(lambda coordinator, keys=gone: coordinator.trainers_gone(keys))  # type: ignore[misc]

    def _do(self, act: Callable[[Coordinator], Any]) -> None:
        self._replica._items.put(Call(act, lambda answer: None))
