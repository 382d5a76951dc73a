"""The leader's decisions: every change of a shard is decided in memory and written to etcd.

A `Coordinator` has no threads and no clock of its own. It handles requests in batches and writes their
changes in as few transactions as etcd allows. Each transaction compares that this replica still leads, and
the revision of every key that it changes. When a transaction fails, or its answer is lost, the state in
memory is discarded and read again, at a cost that hardly depends on the number of shards. Then the requests,
which may be repeated, are handled again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from bireme_runtime.dispatcher.service.election import Leadership
from bireme_runtime.dispatcher.service.keys import Keys, after, datasets_of, last_part, trainers_of
from bireme_runtime.dispatcher.service.requests import (
    Answer,
    BadRequest,
    Definition,
    Settled,
    TrainerRequest,
    refusal,
)
from bireme_runtime.etcd import client as etcd

# By default etcd accepts 128 comparisons and 128 operations in a transaction.
_MOST = 120
# Time constant of the moving average of a trainer's throughput, in seconds.
_RATE_SECONDS = 30.0
_SHOWN_FAILED = 1000
# The number of marks that one tick deletes of a dataset that is over.
_SWEPT = 10_000

MOST_DATASETS = 1000
"""Each costs a key in etcd, and six series of metrics."""

log = logging.getLogger("bireme_runtime")

# An answer, or what makes it after the commit, when revisions are known; None if the request has to wait.
Reply = Union[Answer, Callable[[], Answer], None]


class _Conflict(etcd.EtcdError):
    """A comparison failed: the state in memory differs from etcd."""


# The value of `finished` of a dataset that is being deleted.
_GOES = "goes"

_FIXED_BY_RELOAD = (_Conflict, etcd.Refused, etcd.Ambiguous)


@dataclass
class Held:
    """A shard that a trainer has. `token` is 0 until it is written to etcd.

    One that a trainer got ahead, while it works on another one, has no deadline until it has settled that.
    """

    shard: int
    name: str
    trainer: str
    deadline: float
    token: int = 0
    ahead: bool = False

    @property
    def is_begun(self) -> bool:
        """Whether its trainer works on it."""
        return self.deadline < math.inf


@dataclass
class Work:
    """What a trainer has done since `since`: the number of shards, the last one, and the throughput."""

    since: float
    done: int = 0
    last: tuple[int, int] = (-1, 0)
    _rate: float = 0.0
    _rated: float = 0.0

    def acknowledged(self, shard: int, token: int, now: float) -> None:
        """Count a shard."""
        self._rate = self._rate * math.exp(-(now - self._rated) / _RATE_SECONDS) + 1 / _RATE_SECONDS
        self._rated, self.last, self.done = now, (shard, token), self.done + 1

    def per_second(self, now: float) -> float:
        """Shards per second, a moving average."""
        weight = 1 - math.exp(-max(now - self.since, 1.0) / _RATE_SECONDS)
        return self._rate * math.exp(-(now - self._rated) / _RATE_SECONDS) / weight


@dataclass
class Trainer:
    """A trainer with a lease. `created` is the revision of its key."""

    id: str
    lease: int
    work: Work
    created: int = 0
    hand: dict[int, Held] = field(default_factory=dict)


@dataclass
class Task:
    """A task that one trainer does once while the others wait. `trainer` is empty when it is done."""

    trainer: str
    revision: int = 0


class DatasetState:
    """The leader's memory of one dataset: shards that trainers have, not those done or still to do."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.definition: Definition | None = None
        self.number = 0
        self.pass_revision = 0
        self.started = 0.0
        self.over = False
        self.finished = False
        # Recorded as finished in etcd: nothing changes any more except trainers that join too late.
        self.is_closed = False
        # Of a closed dataset: the first shard whose mark may still be there, and whether all of it is to go.
        self.swept: float = 0
        self.goes = False
        self.done = 0
        self.failed: dict[int, str] = {}
        self.tries: dict[int, int] = {}
        self.held: dict[int, Held] = {}
        self.trainers: dict[str, Trainer] = {}
        self.tasks: dict[str, Task] = {}
        self.redispatched: Counter[str] = Counter()
        self.start_over()

    def start_over(self) -> None:
        """Search for shards to do from the first block on."""
        self.cursor = 0
        # What a trainer has given back, or had when it was lost; what nobody has had; what failed.
        self.returned: deque[tuple[int, str]] = deque()
        self.ready: deque[tuple[int, str]] = deque()
        self.again: deque[tuple[int, str]] = deque()

    @property
    def todo(self) -> int:
        """The number of shards of the pass that are neither held nor done nor given up."""
        if self.definition is None or self.over:
            return 0
        return self.definition.shards - self.done - len(self.failed) - len(self.held)

    def status(self, now: float) -> dict[str, Any]:
        """The status."""
        definition = self.definition
        return {
            "dataset": self.keys.dataset,
            "defined": definition is not None,
            "shards": definition.shards if definition else 0,
            "pass": self.number,
            "passes": definition.passes if definition else 0,
            "todo": self.todo,
            "pending": len(self.held),
            "done": self.done,
            "failed": len(self.failed),
            "failedShards": [self.failed[shard] for shard in sorted(self.failed)[:_SHOWN_FAILED]],
            "redispatched": dict(sorted(self.redispatched.items())),
            "over": self.over,
            "finished": self.finished,
            "trainers": [
                {
                    "trainer": each.id,
                    "inHand": [held.name for held in each.hand.values()],
                    "done": each.work.done,
                    "perSecond": round(each.work.per_second(now), 3),
                }
                for each in self.trainers.values()
            ],
        }


class _Transaction:
    """Changes to be committed, and functions to be called with the revision of the commit."""

    def __init__(self) -> None:
        self.compare: list[dict[str, Any]] = []
        self.operations: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.then: list[Callable[[int], None]] = []


class Coordinator:
    """Handles the leader's requests. `clock` returns monotonic seconds.

    Every method may raise NotLeader and etcd.Unavailable.
    """

    def __init__(
        self,
        client: etcd.Client,
        prefix: str,
        leadership: Leadership,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._leadership = leadership
        self._clock = clock
        # Only this clock means the same to the next leader.
        self._wall = wall
        self._transaction = _Transaction()
        self.commits = 0
        self.commit_seconds = 0.0
        self.reloads = 0
        self.datasets: dict[str, DatasetState] = {}
        self._is_stale, self._losses = True, client.history.losses
        with self._synchronised():
            pass

    @contextlib.contextmanager
    def _synchronised(self) -> Iterator[None]:
        """Commit the block's changes. If that fails, the state is read again before the next block."""
        losses = self._client.history.losses
        if losses != self._losses:
            log.warning("etcd has lost data: what trainers have done since is handed out again")
        if self._is_stale or losses != self._losses:
            self._losses = losses
            self._reload()
        self._is_stale = True
        yield
        for state in self.datasets.values():
            self._settle(state)
        self._commit()
        self._is_stale = False

    # Requests ----------------------------------------

    def handle(self, requests: Sequence[TrainerRequest]) -> list[Answer | None]:
        """Answer requests in order. None means that a request has to wait for a change."""
        try:
            return self._in_one_batch(requests)
        except _FIXED_BY_RELOAD as error:
            log.info("reading all state again: %s", error)
        return [self._by_itself(request) for request in requests]

    def _in_one_batch(self, requests: Iterable[TrainerRequest]) -> list[Answer | None]:
        with self._synchronised():
            replies = [self._perform(request) for request in requests]
        return [reply() if callable(reply) else reply for reply in replies]

    def _by_itself(self, request: TrainerRequest) -> Answer | None:
        """Handle a request of a failed batch alone, so that its failure does not affect others."""
        error: Exception | None = None
        for _ in range(3):
            try:
                return self._in_one_batch([request])[0]
            except _FIXED_BY_RELOAD as failure:
                error = failure
        if isinstance(error, etcd.LeaseLost):
            return refusal(410, f"the lease of trainer {request.trainer} has ended: join again")
        return refusal(503, f"etcd did not carry out the request: {error}")

    def _perform(self, request: TrainerRequest) -> Reply:
        """Decide on one request and add its changes to the transaction."""
        if request.dataset not in self.datasets and request.verb in ("delete", "finished"):
            # Who only asks, which anybody may, makes no dataset.
            return Answer(200, {"gone": True}) if request.verb == "delete" else None
        try:
            state = self._state_of(request.dataset)
            act: Callable[[DatasetState, TrainerRequest], Reply] = getattr(
                self, "_do_" + request.verb.replace("-", "_")
            )
            return act(state, request)
        except BadRequest as bad:
            return refusal(400, str(bad))

    def _state_of(self, dataset: str) -> DatasetState:
        if dataset not in self.datasets:
            if len(self.datasets) >= MOST_DATASETS:
                raise BadRequest(f"there are {MOST_DATASETS} datasets: delete those that are over")
            state = self.datasets[dataset] = DatasetState(Keys(self._prefix, dataset))
            self._change([etcd.put_op(state.keys.registered, "")])
        return self.datasets[dataset]

    def is_defined(self, dataset: str) -> bool:
        """Whether the shards of a dataset have been added."""
        return dataset in self.datasets and self.datasets[dataset].definition is not None

    def may_answer(self, request: TrainerRequest) -> bool:
        """Whether a request that had to wait may be answered now."""
        state = self.datasets.get(request.dataset)
        if state is None:
            return request.verb == "delete"
        if request.verb == "delete":
            return False
        if request.verb == "next":
            return state.over or state.todo > 0
        if request.verb == "once":
            task = state.tasks.get(request.name)
            return task is None or task.trainer in ("", request.trainer)
        return state.finished

    def _do_add(self, state: DatasetState, request: TrainerRequest) -> Reply:
        wanted = request.definition
        assert wanted is not None
        if state.goes:
            return refusal(503, f"dataset {state.keys.dataset} is being deleted: try again")
        if state.definition is not None:
            if state.definition == wanted:
                return Answer(200, {"added": False})
            difference = f"dataset {state.keys.dataset} exists already, with other shards, passes or limits"
            return refusal(409, f"{difference}: choose another name")
        blocks = state.keys.blocks(wanted.digest)
        if self._client.count(blocks, after(blocks)) != wanted.blocks:
            return Answer(409, {"error": "not all names of the shards have arrived", "missing": True})
        state.definition, state.started = wanted, self._clock()
        values = {state.keys.meta: wanted.to_json(), state.keys.current_pass: _pass_record(0, False)}
        puts = [etcd.put_op(key, value) for key, value in values.items()]
        new = [etcd.key_is_unchanged(key, 0) for key in values]
        self._change(puts, compare=new, then=_sets_revision(state, "pass_revision"))
        return Answer(200, {"added": True})

    def _do_join(self, state: DatasetState, request: TrainerRequest) -> Reply:
        trainer = state.trainers.get(request.trainer)
        if trainer is None:
            trainer = Trainer(request.trainer, request.lease, Work(self._clock()))
            state.trainers[trainer.id] = trainer
            key = state.keys.trainer(trainer.id)
            put = etcd.put_op(key, "", trainer.lease)
            unused = etcd.key_is_same(key, 0)
            self._change([put], compare=[unused], then=_sets_revision(trainer, "created"))
        return Answer(200, {"trainer": trainer.id})

    def _do_settle(self, state: DatasetState, request: TrainerRequest) -> Answer:
        kept = [self._acknowledge(state, request.trainer, each) for each in request.done]
        for reason, settled in (("failed", request.failed), ("released", request.released)):
            for each in settled:
                held = state.held.get(each.shard)
                # Otherwise it has been taken back already.
                if held is not None and held.token == each.token:
                    self._take_back(state, held, reason, each.reason)
        return Answer(200, {"acknowledged": kept})

    def _do_next(self, state: DatasetState, request: TrainerRequest) -> Reply:
        body = dict(self._do_settle(state, request).body)
        trainer = state.trainers.get(request.trainer)
        if trainer is None:
            return refusal(410, f"the lease of trainer {request.trainer} has ended: join again")
        if any(not held.token for held in trainer.hand.values()):
            self._commit()
        lost = [held for held in trainer.hand.values() if held.token and held.token not in request.have]
        held = lost[0] if lost else self._hand_out(state, trainer, request.ahead)
        if held is not None:
            return _handed(state, held, body)
        if request.ahead:
            return Answer(200, {**body, "wait": True})
        self._settle(state)
        if state.over:
            return Answer(200, {**body, "over": True})
        # That may have ended the pass and started the next one.
        held = self._hand_out(state, trainer)
        return _handed(state, held, body) if held is not None else None

    def _do_leave(self, state: DatasetState, request: TrainerRequest) -> Reply:
        self._do_settle(state, request)
        is_known = request.trainer in state.trainers
        self._remove_trainer(state, request.trainer, "lost" if request.lost else "released", request.lost)
        return Answer(200, {"left": is_known})

    def _do_once(self, state: DatasetState, request: TrainerRequest) -> Reply:
        if request.trainer not in state.trainers:
            return refusal(410, f"the lease of trainer {request.trainer} has ended: join again")
        task = state.tasks.get(request.name)
        if task is not None and task.trainer != request.trainer:
            return None if task.trainer else Answer(200, {"state": "done"})
        if task is None:
            task = state.tasks[request.name] = Task(request.trainer)
            self._write_task(state, request.name, task)
        return Answer(200, {"state": "yours"})

    def _do_once_done(self, state: DatasetState, request: TrainerRequest) -> Reply:
        task = state.tasks.get(request.name)
        if task is None or task.trainer not in ("", request.trainer):
            return refusal(410, f"{request.name} is no longer this trainer's task")
        if task.trainer:
            task.trainer = ""
            self._write_task(state, request.name, task)
        return Answer(200, {"state": "done"})

    def _do_once_failed(self, state: DatasetState, request: TrainerRequest) -> Reply:
        task = state.tasks.get(request.name)
        if task is not None and task.trainer == request.trainer:
            self._drop_task(state, request.name)
        return Answer(200, {})

    def _do_delete(self, state: DatasetState, request: TrainerRequest) -> Reply:
        if state.trainers:
            some = ", ".join(sorted(state.trainers)[:3])
            sentence = (
                f"dataset {state.keys.dataset} has {len(state.trainers)} trainers ({some}): end them first"
            )
            return refusal(409, sentence)
        if not state.goes:
            # Marks go first: a dataset of the same name must not find them.
            state.over = state.finished = state.goes = True
            put = etcd.put_op(state.keys.finished, _GOES)
            self._change([put], then=_sets(state, "is_closed", True))
        return None

    def _do_finished(self, state: DatasetState, request: TrainerRequest) -> Reply:
        return Answer(200, {"finished": True}) if state.finished else None

    def report(self) -> dict[str, Any]:
        """The status."""
        now = self._clock()
        return {
            "commits": self.commits,
            "commitSeconds": self.commit_seconds,
            "reloads": self.reloads,
            "datasets": [state.status(now) for _, state in sorted(self.datasets.items())],
        }

    # Without a request ----------------------------------------

    def tick(self) -> None:
        """Take back shards that trainers have had longer than the dataset's timeout."""
        now = self._clock()
        with self._reload_on_conflict():
            for state in self.datasets.values():
                for held in [held for held in state.held.values() if held.deadline <= now]:
                    # A hung trainer would not begin what it got ahead.
                    self._return_ahead(state, held.trainer)
                    self._take_back(state, held, "timeout")
            for state in [state for state in self.datasets.values() if state.is_closed]:
                self._sweep(state)

    def _sweep(self, state: DatasetState) -> None:
        """Delete some of the keys of a dataset that is over; at last all but what its status needs."""
        keys, shards = state.keys, state.definition.shards if state.definition else 0

        if state.swept < shards:
            first, end = int(state.swept), int(state.swept) + _SWEPT
            marks = keys.done(state.number, first), keys.done(state.number, end)
            self._change([etcd.delete_op(*marks)], then=_sets(state, "swept", end))
        elif state.goes:
            del self.datasets[keys.dataset]
            everything = etcd.delete_op(keys.root, after(keys.root))
            self._change([everything, etcd.delete_op(keys.registered)])
        elif state.swept < math.inf:
            whole = (keys.all_done, keys.all_blocks, keys.tries(state.number))
            # The status shows what was given up in the last pass.
            rest = [*((each, after(each)) for each in whole), (keys.failed(0), keys.failed(state.number))]
            self._change([etcd.delete_op(*each) for each in rest], then=_sets(state, "swept", math.inf))

    def trainers_are(self, alive: set[str], revision: int) -> None:
        """Take back the shards of trainers whose keys are not in `alive`, as read at `revision`."""
        with self._reload_on_conflict():
            for state in self.datasets.values():
                for trainer in list(state.trainers.values()):
                    was_there = 0 < trainer.created <= revision
                    if was_there and state.keys.trainer(trainer.id) not in alive:
                        self._remove_trainer(state, trainer.id, "lost")

    def trainers_gone(self, keys: Iterable[str]) -> None:
        """Take back the shards of the trainers with these keys."""
        with self._reload_on_conflict():
            for key in keys:
                dataset, _, trainer = key[len(trainers_of(self._prefix)) :].partition("/")
                if dataset in self.datasets:
                    self._remove_trainer(self.datasets[dataset], trainer, "lost")

    @contextlib.contextmanager
    def _reload_on_conflict(self) -> Iterator[None]:
        """Commit the block's changes. On a conflict, read all state again, which has the same effect."""
        try:
            with self._synchronised():
                yield
        except _FIXED_BY_RELOAD as error:
            log.info("reading all state again: %s", error)
            with self._synchronised():
                pass

    # Shards ----------------------------------------

    def _hand_out(self, state: DatasetState, trainer: Trainer, ahead: bool = False) -> Held | None:
        found = self._take_ahead(state) if ahead else self._take(state)
        definition = state.definition
        if found is None or definition is None:
            return None
        if not trainer.created:
            self._commit()
        shard, name = found
        ahead = ahead and bool(trainer.hand)
        deadline = math.inf if ahead else self._clock() + definition.timeout
        held = Held(shard, name, trainer.id, deadline, ahead=ahead)
        state.held[shard] = trainer.hand[shard] = held
        key = state.keys.held(shard)
        compare = [
            etcd.key_is_unchanged(key, 0),
            etcd.key_is_same(state.keys.trainer(trainer.id), trainer.created),
        ]
        record = {"trainer": trainer.id, "name": name, "since": round(self._wall(), 3)}
        if ahead:
            record["ahead"] = True
        put = etcd.put_op(key, json.dumps(record))
        self._change([put], compare=compare, then=_sets_revision(held, "token"))
        return held

    def _take(self, state: DatasetState) -> tuple[int, str] | None:
        """The next shard to do: first those of lost trainers, last those that failed."""
        if state.todo <= 0:
            return None
        while not (state.returned or state.ready) and self._open_block(state):
            pass
        for source in (state.returned, state.ready, state.again):
            if source:
                return source.popleft()
        raise _Conflict(
            f"{state.todo} shards of {state.keys.dataset} are to do by the counts, but none was found"
        )

    def _take_ahead(self, state: DatasetState) -> tuple[int, str] | None:
        """A shard for a trainer that still has one, unless others could want for it.

        It takes only shards that nobody has had. One that may have killed its trainer is handed out alone,
        so that its failure counts for no other shard.
        """
        if state.returned or state.todo <= len(state.trainers):
            return None
        while not state.ready and self._open_block(state):
            pass
        return state.ready.popleft() if state.ready else None

    def _open_block(self, state: DatasetState) -> bool:
        """Read the names of the next block with shards to do; False after the last one."""
        definition, keys = state.definition, state.keys
        assert definition is not None
        # Marks that are not committed yet would be missing in etcd.
        self._commit()
        self._skip_full_blocks(state)
        if state.cursor >= definition.blocks:
            return False
        block, state.cursor = state.cursor, state.cursor + 1
        first, end = definition.start_of(block), definition.start_of(block + 1)
        if state.number:
            last = state.number - 1
            self._client.delete_span(keys.done(last, first), keys.done(last, end))
        kv = self._client.get(keys.block(definition.digest, block))
        if kv is None:
            raise _Conflict("a block of names does not exist")
        marks = self._client.span(
            keys.done(state.number, first), keys.done(state.number, end), keys_only=True
        )
        taken = {int(last_part(mark.key)) for mark in marks.keys}
        waiting = {shard for shard, _ in state.again}
        for shard, name in enumerate(json.loads(kv.value), first):
            if shard in taken or shard in waiting or shard in state.held or shard in state.failed:
                continue
            (state.again if shard in state.tries else state.ready).append((shard, name))
        return True

    def _skip_full_blocks(self, state: DatasetState) -> None:
        """Skip blocks without shards to do, which an earlier leader handed out, by counting marks."""
        definition = state.definition
        assert definition is not None
        blocks, step = definition.blocks, 1
        while step and state.cursor < blocks:
            end = min(state.cursor + step, blocks)
            if self._is_full(state, definition.start_of(state.cursor), definition.start_of(end)):
                state.cursor = end
                step *= 2
            else:
                step //= 2

    def _is_full(self, state: DatasetState, first: int, end: int) -> bool:
        keys, number = state.keys, state.number
        held = sum(first <= shard < end for shard in state.held)
        done = self._client.count(keys.done(number, first), keys.done(number, end))
        failed = sum(first <= shard < end for shard in state.failed)
        return held + done + failed == end - first

    def _acknowledge(self, state: DatasetState, trainer: str, settled: Settled) -> bool:
        """Mark a shard as done; False if it had been taken back before."""
        held = state.held.get(settled.shard)
        if held is None or held.token != settled.token:
            return self._was_acknowledged(state, trainer, settled)
        self._drop(state, held)
        state.done += 1
        done = state.keys.done(state.number, settled.shard)
        record = json.dumps({"trainer": held.trainer, "token": settled.token})
        self._change_held(state, held, [etcd.put_op(done, record)], [etcd.key_is_unchanged(done, 0)])
        worker = state.trainers.get(held.trainer)
        if worker is not None:
            work, now = worker.work, self._clock()
            self._transaction.then.append(
                lambda revision: work.acknowledged(settled.shard, settled.token, now)
            )
        return True

    def _was_acknowledged(self, state: DatasetState, trainer: str, settled: Settled) -> bool:
        """Whether this acknowledgement was carried out before and its answer was lost."""
        self._commit()
        known = state.trainers.get(trainer)
        if known is not None and known.work.last == (settled.shard, settled.token):
            return True
        for number in (state.number, state.number - 1):
            mark = self._client.get(state.keys.done(number, settled.shard)) if number >= 0 else None
            if mark is not None and json.loads(mark.value)["token"] == settled.token:
                return True
        return False

    def _take_back(self, state: DatasetState, held: Held, reason: str, details: str = "") -> None:
        """Let others do a shard. Unless it was released, that is a failure: too many end it for this pass."""
        self._drop(state, held)
        if reason == "released":
            state.returned.appendleft((held.shard, held.name))
            state.redispatched[reason] += 1
            self._change_held(state, held)
            return
        definition = state.definition
        assert definition is not None
        tries = state.tries[held.shard] = state.tries.get(held.shard, 0) + 1
        given_up = tries >= definition.failures
        key = (state.keys.failed if given_up else state.keys.tries)(state.number, held.shard)
        record = {"name": held.name, "failures": tries, "reason": reason, "words": details[:500]}
        if given_up:
            state.failed[held.shard] = held.name
            log.warning("%s is given up in pass %d: %s %s", held.name, state.number, reason, details)
        else:
            # A lost trainer's shard goes to the front, so that the end of the pass need not wait for it.
            (state.returned.appendleft if reason == "lost" else state.again.append)((held.shard, held.name))
            state.redispatched[reason] += 1
        self._change_held(state, held, [etcd.put_op(key, json.dumps(record))])

    def _return_ahead(self, state: DatasetState, trainer: str) -> None:
        """Return shards that a trainer was given ahead. It has not begun them, so no failure counts."""
        hand = state.trainers[trainer].hand if trainer in state.trainers else {}
        for held in [held for held in hand.values() if not held.is_begun]:
            if not held.token:
                self._commit()
            self._take_back(state, held, "released")

    def _drop(self, state: DatasetState, held: Held) -> None:
        del state.held[held.shard]
        if held.trainer in state.trainers:
            hand = state.trainers[held.trainer].hand
            hand.pop(held.shard, None)
            # The time of what the trainer has got ahead starts when it has nothing else any more.
            first = next(iter(hand.values()), None)
            if first is not None and not first.is_begun and state.definition is not None:
                first.deadline = self._clock() + state.definition.timeout

    def _remove_trainer(self, state: DatasetState, name: str, reason: str, words: str = "") -> None:
        """Forget a trainer; its shards and tasks are to be done by others."""
        trainer = state.trainers.get(name)
        if trainer is None:
            return
        self._return_ahead(state, name)
        for held in list(trainer.hand.values()):
            if not held.token:
                self._commit()
            self._take_back(state, held, reason, words)
        for what in [what for what, task in state.tasks.items() if task.trainer == name]:
            self._drop_task(state, what)
        del state.trainers[name]
        self._change([etcd.delete_op(state.keys.trainer(name))])

    # Passes ----------------------------------------

    def _settle(self, state: DatasetState) -> None:
        """Start the next pass when no shard is held or to do, however the last one ended."""
        definition = state.definition
        if definition is not None and not (state.over or state.held or state.todo):
            self._commit()
            self._check_counts(state, definition)
            self._begin_pass(state, definition)
        if state.over and not state.finished and not state.trainers:
            state.finished = True
            self._change([etcd.put_op(state.keys.finished, "")], then=_sets(state, "is_closed", True))

    def _check_counts(self, state: DatasetState, definition: Definition) -> None:
        """Compare the counts in memory with the marks in etcd. This is done once, at the end of a pass."""
        keys, number = state.keys, state.number
        done = self._client.count(keys.done(number), after(keys.done(number)))
        failed = self._client.count(keys.failed(number), after(keys.failed(number)))
        if (done, failed, done + failed) != (state.done, len(state.failed), definition.shards):
            raise _Conflict(f"pass {number} of {keys.dataset} has {done} shards done and {failed} failed")

    def _begin_pass(self, state: DatasetState, definition: Definition) -> None:
        keys, ended, now = state.keys, state.number, self._clock()
        summary = {"done": state.done, "failed": len(state.failed), "seconds": round(now - state.started, 3)}
        log.info("pass %d of %s has ended: %s", ended, keys.dataset, summary)
        over = ended + 1 >= definition.passes
        if over:
            state.over = True
        else:
            state.number, state.done, state.started = ended + 1, 0, now
            state.failed, state.tries = {}, {}
            state.start_over()
        puts = [
            etcd.put_op(keys.current_pass, _pass_record(state.number, over)),
            etcd.put_op(keys.ended(ended), json.dumps(summary)),
            etcd.delete_op(keys.tries(ended), after(keys.tries(ended))),
        ]
        compare = [etcd.key_is_unchanged(keys.current_pass, state.pass_revision)]
        self._change(puts, compare=compare, then=_sets_revision(state, "pass_revision"))
        # The next comparison needs the revision of this commit.
        self._commit()

    # Tasks ----------------------------------------

    def _write_task(self, state: DatasetState, what: str, task: Task) -> None:
        key = state.keys.once(what)
        self._commit()
        put = etcd.put_op(key, json.dumps({"trainer": task.trainer}))
        unchanged = etcd.key_is_unchanged(key, task.revision)
        self._change([put], compare=[unchanged], then=_sets_revision(task, "revision"))
        self._commit()

    def _drop_task(self, state: DatasetState, what: str) -> None:
        task, key = state.tasks.pop(what), state.keys.once(what)
        self._change([etcd.delete_op(key)], compare=[etcd.key_is_unchanged(key, task.revision)])

    # etcd ----------------------------------------

    def _change_held(
        self,
        state: DatasetState,
        held: Held,
        operations: Sequence[dict[str, Any]] = (),
        compare: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Delete the key of a held shard, together with other changes."""
        key = state.keys.held(held.shard)
        unchanged = etcd.key_is_unchanged(key, held.token)
        self._change([etcd.delete_op(key), *operations], compare=[unchanged, *compare])

    def _change(
        self,
        operations: Sequence[dict[str, Any]],
        *,
        compare: Sequence[dict[str, Any]] = (),
        then: Callable[[int], None] | None = None,
    ) -> None:
        """Add a change to the transaction. Commit first if it is full or has the same keys."""
        pending = self._transaction
        keys = {request["key"] for operation in operations for request in operation.values()}
        too_many = (
            max(len(pending.compare) + len(compare), len(pending.operations) + len(operations)) >= _MOST
        )
        if too_many or not pending.keys.isdisjoint(keys):
            self._commit()
            pending = self._transaction
        pending.compare += compare
        pending.operations += operations
        pending.keys.update(keys)
        if then is not None:
            pending.then.append(then)

    def _commit(self) -> None:
        """Commit the transaction. Raises _Conflict, Ambiguous, Unavailable and Refused."""
        pending, self._transaction = self._transaction, _Transaction()
        if not pending.operations:
            return
        started = time.perf_counter()
        outcome = self._client.txn([self._leadership.unchanged, *pending.compare], pending.operations)
        self.commits += 1
        self.commit_seconds += time.perf_counter() - started
        if not outcome.succeeded:
            raise _Conflict("a key has changed")
        for each in pending.then:
            each(outcome.revision)

    def _reload(self) -> None:
        """Discard the transaction and read all state except shards that are done or to do."""
        self._transaction = _Transaction()
        self.reloads += 1
        self._leadership.renew()
        before, self.datasets = self.datasets, {}
        for registered in self._client.range(datasets_of(self._prefix)).keys:
            dataset = last_part(registered.key)
            known = before.get(dataset)
            if known is not None and known.is_closed and not known.trainers:
                self.datasets[dataset] = known
                continue
            state = DatasetState(Keys(self._prefix, dataset))
            self._read(state, known)
            if known is not None:
                # Statistics are not in etcd.
                state.redispatched, state.started = known.redispatched, known.started
                for name in state.trainers.keys() & known.trainers.keys():
                    state.trainers[name].work = known.trainers[name].work
            self.datasets[dataset] = state
        self._take_back_orphans()

    def _read(self, state: DatasetState, known: DatasetState | None) -> None:
        keys, get = state.keys, self._client.get
        for kv in self._client.range(keys.trainer()).keys:
            trainer = Trainer(last_part(kv.key), kv.lease, Work(self._clock()), kv.create_revision)
            state.trainers[trainer.id] = trainer
        for kv in self._client.range(keys.once()).keys:
            state.tasks[last_part(kv.key)] = Task(json.loads(kv.value)["trainer"], kv.mod_revision)
        finished = get(keys.finished)
        state.finished = state.is_closed = finished is not None
        state.goes = finished is not None and finished.value == _GOES
        meta, current = get(keys.meta), get(keys.current_pass)
        if meta is None or current is None:
            return
        state.definition = Definition.from_json(json.loads(meta.value))
        record = json.loads(current.value)
        state.number, state.over, state.pass_revision = record["number"], record["over"], current.mod_revision
        state.started = self._clock()
        number = state.number
        ended = get(keys.ended(number)) if state.finished else None
        if ended is not None:
            # The marks of a finished dataset are deleted.
            state.done = json.loads(ended.value)["done"]
        else:
            state.done = self._client.count(keys.done(number), after(keys.done(number)))
        for kv in self._client.range(keys.failed(number)).keys:
            state.failed[int(last_part(kv.key))] = json.loads(kv.value)["name"]
        for kv in self._client.range(keys.tries(number)).keys:
            state.tries[int(last_part(kv.key))] = json.loads(kv.value)["failures"]
        for held in sorted(self._held(state, known), key=lambda held: held.token):
            state.held[held.shard] = held
            if held.trainer in state.trainers:
                hand = state.trainers[held.trainer].hand
                if held.ahead and hand:
                    held.deadline = math.inf
                hand[held.shard] = held

    def _held(self, state: DatasetState, known: DatasetState | None) -> Iterator[Held]:
        """The shards that trainers have. The time that they have had them counts.

        etcd does not know when the work on a shard that was got ahead began: at the latest one limit after it
        was handed out.
        """
        assert state.definition is not None
        now, wall, limit = self._clock(), self._wall(), state.definition.timeout
        before = known.held if known else {}
        for kv in self._client.range(state.keys.held()).keys:
            record, shard = json.loads(kv.value), int(last_part(kv.key))
            ahead = bool(record.get("ahead"))
            deadline = now + (2 if ahead else 1) * limit - max(wall - record.get("since", wall), 0.0)
            if shard in before and before[shard].token == kv.mod_revision and before[shard].is_begun:
                deadline = before[shard].deadline
            yield Held(shard, record["name"], record["trainer"], deadline, kv.mod_revision, ahead)

    def _take_back_orphans(self) -> None:
        """Take back shards and tasks of trainers that were lost while there was no leader."""
        for state in self.datasets.values():
            worked: set[str] = set()
            # In the order in which they were handed out: a trainer worked on its first one.
            for held in [held for held in state.held.values() if held.trainer not in state.trainers]:
                is_begun = not (held.ahead and held.trainer in worked)
                self._take_back(state, held, "lost" if is_begun else "released")
                worked.add(held.trainer)
            for what, task in list(state.tasks.items()):
                if task.trainer and task.trainer not in state.trainers:
                    self._drop_task(state, what)


def _handed(state: DatasetState, held: Held, body: Mapping[str, Any]) -> Callable[[], Answer]:
    """Gives a shard: its token is known after the commit."""
    told = {"shard": held.shard, "name": held.name, "pass": state.number}
    return lambda: Answer(200, {**body, "shard": {**told, "token": held.token}})


def _pass_record(number: int, over: bool) -> str:
    return json.dumps({"number": number, "over": over})


def _sets(target: object, name: str, value: object) -> Callable[[int], None]:
    """Sets an attribute after a commit."""
    return lambda revision: setattr(target, name, value)


def _sets_revision(target: object, name: str) -> Callable[[int], None]:
    """Keeps the revision of a commit as an attribute."""
    return lambda revision: setattr(target, name, revision)
