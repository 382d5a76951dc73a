"""What the leader of the dispatchers does: every change of a shard, decided in memory and made in etcd.

A `Desk` has no threads and no clock of its own. It takes many requests at a time and writes their changes in
as few transactions as etcd allows; each compares that we still lead and the revision of every key it changes.
When one fails, or its answer is lost, nothing in memory is believed any more: everything is read again, at a
cost that hardly depends on the number of shards, and the requests, which may be repeated, are answered anew.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from bireme_runtime.dispatcher.service.election import Leadership
from bireme_runtime.dispatcher.service.keys import (
    Answer,
    BadRequest,
    Definition,
    InHand,
    Keys,
    Request,
    after,
    last_part,
    sentence,
    trainers_of,
)
from bireme_runtime.etcd import client as etcd

# etcd takes 128 comparisons and 128 operations in a transaction, unless told otherwise.
_MOST = 120
# Throughput is averaged over about so long.
_RATE_SECONDS = 30.0
_SHOWN_FAILED = 1000

log = logging.getLogger("bireme_runtime")

# An answer that is ready, one that needs the revision of the commit, or None: nothing to say for the moment.
Reply = Optional[Callable[[], Answer]]


class _Conflict(etcd.EtcdError):
    """A comparison did not hold: memory and etcd differ."""


_MENDED_BY_READING = (_Conflict, etcd.Refused, etcd.Ambiguous)


@dataclass
class Held:
    """A shard in a trainer's hand. `token` is 0 until it is in etcd."""

    shard: int
    name: str
    trainer: str
    deadline: float
    token: int = 0


@dataclass
class Work:
    """What a trainer has done since `since`: how many shards, which one last, and how fast."""

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
        """Shards per second, of late."""
        warm = 1 - math.exp(-max(now - self.since, 1.0) / _RATE_SECONDS)
        return self._rate * math.exp(-(now - self._rated) / _RATE_SECONDS) / warm


@dataclass
class Trainer:
    """A trainer whose lease lives. `created` is the revision of its key."""

    id: str
    lease: int
    work: Work
    created: int = 0
    hand: dict[int, Held] = field(default_factory=dict)


@dataclass
class Task:
    """Something that one trainer does once while the others wait. `trainer` is empty when it is done."""

    trainer: str
    revision: int = 0


class Book:
    """One dataset, as far as the leader needs it in memory: what is in hand, not what is to do or done."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.definition: Definition | None = None
        self.number = 0
        self.pass_revision = 0
        self.started = 0.0
        self.over = False
        self.finished = False
        # Finished, and etcd knows it: nothing of it changes any more but trainers that come too late.
        self.is_closed = False
        self.done = 0
        self.failed: dict[int, str] = {}
        self.tries: dict[int, int] = {}
        self.held: dict[int, Held] = {}
        self.trainers: dict[str, Trainer] = {}
        self.tasks: dict[str, Task] = {}
        self.returned: Counter[str] = Counter()
        self.start_over()

    def start_over(self) -> None:
        """Look for what is to do from the first block on."""
        self.cursor = 0
        self.ready: deque[tuple[int, str]] = deque()
        self.again: deque[tuple[int, str]] = deque()

    def close(self) -> None:
        """Etcd knows that it is finished."""
        self.is_closed = True

    @property
    def todo(self) -> int:
        """How many shards of the pass nobody has in hand, has done or has given up."""
        if self.definition is None or self.over:
            return 0
        return self.definition.shards - self.done - len(self.failed) - len(self.held)

    def status(self, now: float) -> dict[str, Any]:
        """What people and programs are shown."""
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
            "redispatched": dict(sorted(self.returned.items())),
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
    """Changes on their way to etcd, and what is to be known once they are there."""

    def __init__(self) -> None:
        self.compare: list[dict[str, Any]] = []
        self.operations: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.then: list[Callable[[int], None]] = []


class Desk:
    """The leader's desk. Every method may raise NotLeader and etcd.Unavailable; `clock` is monotonic."""

    def __init__(
        self,
        client: etcd.Client,
        prefix: str,
        leadership: Leadership,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._leadership = leadership
        self._clock = clock
        self._transaction = _Transaction()
        self.commits = 0
        self.commit_seconds = 0.0
        self.reloads = 0
        self.books: dict[str, Book] = {}
        self._is_stale = True
        with self._in_step():
            pass

    @contextlib.contextmanager
    def _in_step(self) -> Iterator[None]:
        """Memory and etcd are in step afterwards, or memory is read anew the next time."""
        if self._is_stale:
            self._reload()
        self._is_stale = True
        yield
        self._settle_books()
        self._commit()
        self._is_stale = False

    # Requests ----------------------------------------

    def handle(self, requests: Sequence[Request]) -> list[Answer | None]:
        """Answer requests in order. None means that there is nothing to say before something changes."""
        try:
            return self._together(requests)
        except _MENDED_BY_READING as error:
            log.info("reading everything again: %s", error)
        return [self._alone(request) for request in requests]

    def _together(self, requests: Iterable[Request]) -> list[Answer | None]:
        with self._in_step():
            replies = [self._perform(request) for request in requests]
        return [reply() if reply else None for reply in replies]

    def _alone(self, request: Request) -> Answer | None:
        """One request that failed among others; what fails again is that request's fault, or etcd's."""
        error: Exception | None = None
        for _ in range(3):
            try:
                return self._together([request])[0]
            except _MENDED_BY_READING as failure:
                error = failure
        if isinstance(error, etcd.LeaseLost):
            return sentence(410, f"the trainer {request.trainer} is gone: join again")
        return sentence(503, f"etcd did not carry it out: {error}")

    def _perform(self, request: Request) -> Reply:
        """Decide on one request; its changes join the transaction."""
        try:
            book = self._book(request.dataset)
            act: Callable[[Book, Request], Reply] = getattr(self, "_do_" + request.verb.replace("-", "_"))
            return act(book, request)
        except BadRequest as bad:
            return _say(sentence(400, str(bad)))

    def _book(self, dataset: str) -> Book:
        if dataset not in self.books:
            book = self.books[dataset] = Book(Keys(self._prefix, dataset))
            self._change([], [etcd.put_op(book.keys.registered, "")], [book.keys.registered])
        return self.books[dataset]

    def may_answer(self, request: Request) -> bool:
        """Whether a request that had no answer may have one now."""
        book = self.books.get(request.dataset)
        if book is None:
            return False
        if request.verb == "next":
            return book.over or book.todo > 0
        if request.verb == "once":
            task = book.tasks.get(request.name)
            return task is None or task.trainer in ("", request.trainer)
        return book.finished

    def _do_add(self, book: Book, request: Request) -> Reply:
        wanted = request.definition
        assert wanted is not None
        if book.definition is not None:
            if book.definition == wanted:
                return _say(Answer(200, {"added": False}))
            words = f"dataset {book.keys.dataset} is there already, with other shards, passes or limits"
            return _say(Answer(409, {"error": f"{words}: give the new one another name", "differs": True}))
        blocks = book.keys.blocks(wanted.digest)
        if self._client.count(blocks, after(blocks)) != wanted.blocks:
            return _say(Answer(409, {"error": "the shards' names have not all arrived", "missing": True}))
        book.definition, book.started = wanted, self._clock()
        keys = [book.keys.meta, book.keys.current_pass]
        puts = [etcd.put_op(keys[0], wanted.to_json()), etcd.put_op(keys[1], _pass_record(0, False))]
        self._change([etcd.key_is_unchanged(key, 0) for key in keys], puts, keys, _sets_pass(book))
        return _say(Answer(200, {"added": True}))

    def _do_join(self, book: Book, request: Request) -> Reply:
        trainer = book.trainers.get(request.trainer)
        if trainer is None:
            trainer = Trainer(request.trainer, request.lease, Work(self._clock()))
            book.trainers[trainer.id] = trainer
            key = book.keys.trainer(trainer.id)
            created = _sets_created(trainer)
            put = etcd.put_op(key, "", trainer.lease)
            self._change([etcd.key_is_same(key, 0)], [put], [key], created)
        return _say(Answer(200, {"trainer": trainer.id}))

    def _do_settle(self, book: Book, request: Request) -> Reply:
        kept = [self._acknowledge(book, request.trainer, each) for each in request.done]
        for each in request.failed:
            self._give_back(book, each, "failed")
        for each in request.released:
            self._give_back(book, each, "released")
        return _say(Answer(200, {"acknowledged": kept}))

    def _do_next(self, book: Book, request: Request) -> Reply:
        settled = self._do_settle(book, request)
        trainer = book.trainers.get(request.trainer)
        if trainer is None:
            return _say(sentence(410, f"the trainer {request.trainer} is gone: join again"))
        body = dict(settled().body) if settled else {}
        if any(not held.token for held in trainer.hand.values()):
            self._commit()
        lost = [held for held in trainer.hand.values() if held.token and held.token not in request.have]
        held = lost[0] if lost else self._hand_out(book, trainer)
        if held is not None:
            found = held
            return lambda: Answer(200, {**body, "shard": _shard(book, found)})
        self._settle(book)
        if book.over:
            return _say(Answer(200, {**body, "over": True}))
        # The pass may have ended just now, and the next one begun.
        held = self._hand_out(book, trainer)
        if held is None:
            return None
        begun = held
        return lambda: Answer(200, {**body, "shard": _shard(book, begun)})

    def _do_leave(self, book: Book, request: Request) -> Reply:
        self._do_settle(book, request)
        self._bury(book, request.trainer, "released")
        return _say(Answer(200, {}))

    def _do_once(self, book: Book, request: Request) -> Reply:
        if request.trainer not in book.trainers:
            return _say(sentence(410, f"the trainer {request.trainer} is gone: join again"))
        task = book.tasks.get(request.name)
        if task is not None and task.trainer != request.trainer:
            return None if task.trainer else _say(Answer(200, {"state": "done"}))
        if task is None:
            task = book.tasks[request.name] = Task(request.trainer)
            self._write_task(book, request.name, task)
        return _say(Answer(200, {"state": "yours"}))

    def _do_once_done(self, book: Book, request: Request) -> Reply:
        task = book.tasks.get(request.name)
        if task is None or task.trainer not in ("", request.trainer):
            return _say(sentence(410, f"{request.name} is no longer this trainer's to do"))
        if task.trainer:
            task.trainer = ""
            self._write_task(book, request.name, task)
        return _say(Answer(200, {"state": "done"}))

    def _do_once_failed(self, book: Book, request: Request) -> Reply:
        task = book.tasks.get(request.name)
        if task is not None and task.trainer == request.trainer:
            self._drop_task(book, request.name)
        return _say(Answer(200, {}))

    def _do_finished(self, book: Book, request: Request) -> Reply:
        return _say(Answer(200, {"finished": True})) if book.finished else None

    def report(self) -> dict[str, Any]:
        """What people and programs are shown."""
        now = self._clock()
        return {
            "commits": self.commits,
            "commitSeconds": self.commit_seconds,
            "reloads": self.reloads,
            "datasets": [book.status(now) for _, book in sorted(self.books.items())],
        }

    # What happens by itself ----------------------------------------

    def tick(self) -> None:
        """Take shards back from trainers that have had them for too long."""
        now = self._clock()
        with self._mending():
            for book in self.books.values():
                # All have the same time, so those that were handed out first are due first.
                while book.held and next(iter(book.held.values())).deadline <= now:
                    self._fail(book, next(iter(book.held.values())), "timeout")

    def trainers_are(self, alive: set[str], revision: int) -> None:
        """Take shards back from trainers whose key was not among these when etcd was at that revision."""
        with self._mending():
            for book in self.books.values():
                for trainer in list(book.trainers.values()):
                    was_there = 0 < trainer.created <= revision
                    if was_there and book.keys.trainer(trainer.id) not in alive:
                        self._bury(book, trainer.id, "lost")

    def trainers_gone(self, keys: Iterable[str]) -> None:
        """Take shards back from the trainers that had these keys."""
        with self._mending():
            for key in keys:
                dataset, _, trainer = key[len(trainers_of(self._prefix)) :].partition("/")
                if dataset in self.books:
                    self._bury(self.books[dataset], trainer, "lost")

    @contextlib.contextmanager
    def _mending(self) -> Iterator[None]:
        """Changes of our own; reading everything anew finds the trainers that are gone as well."""
        try:
            with self._in_step():
                yield
        except _MENDED_BY_READING as error:
            log.info("reading everything again: %s", error)
            with self._in_step():
                pass

    # Shards ----------------------------------------

    def _hand_out(self, book: Book, trainer: Trainer) -> Held | None:
        found = self._take(book)
        definition = book.definition
        if found is None or definition is None:
            return None
        if not trainer.created:
            self._commit()
        shard, name = found
        held = Held(shard, name, trainer.id, self._clock() + definition.timeout)
        book.held[shard] = trainer.hand[shard] = held
        key = book.keys.held(shard)
        compare = [
            etcd.key_is_unchanged(key, 0),
            etcd.key_is_same(book.keys.trainer(trainer.id), trainer.created),
        ]
        put = etcd.put_op(key, json.dumps({"trainer": trainer.id, "name": name}))
        self._change(compare, [put], [key], _sets_token(held))
        return held

    def _take(self, book: Book) -> tuple[int, str] | None:
        """The next shard that is to do: those of dead trainers first, those that failed last."""
        if book.todo <= 0:
            return None
        while not book.ready and self._open_block(book):
            pass
        if book.ready:
            return book.ready.popleft()
        if book.again:
            return book.again.popleft()
        raise _Conflict(f"{book.todo} shards of {book.keys.dataset} are to do, and none can be found")

    def _open_block(self, book: Book) -> bool:
        """Read the names of the next block that has anything to do; False after the last one."""
        definition, keys = book.definition, book.keys
        assert definition is not None
        # What is on its way to etcd would be missing there.
        self._commit()
        self._skip_full_blocks(book)
        if book.cursor >= definition.blocks:
            return False
        block, book.cursor = book.cursor, book.cursor + 1
        first, end = definition.start_of(block), definition.start_of(block + 1)
        if book.number:
            last = book.number - 1
            self._client.delete_span(keys.done(last, first), keys.done(last, end))
        names = json.loads(_existing(self._client.get(keys.block(definition.digest, block))))
        marks = self._client.span(keys.done(book.number, first), keys.done(book.number, end), keys_only=True)
        taken = {int(last_part(mark.key)) for mark in marks.keys}
        waiting = {shard for shard, _ in book.again}
        for shard, name in enumerate(names, first):
            if shard in taken or shard in waiting or shard in book.held or shard in book.failed:
                continue
            (book.again if shard in book.tries else book.ready).append((shard, name))
        return True

    def _skip_full_blocks(self, book: Book) -> None:
        """Pass over blocks with nothing to do, by counting marks: what a former leader had handed out."""
        definition = book.definition
        assert definition is not None
        blocks, step = definition.blocks, 1
        while step and book.cursor < blocks:
            end = min(book.cursor + step, blocks)
            if self._is_full(book, definition.start_of(book.cursor), definition.start_of(end)):
                book.cursor = end
                step *= 2
            else:
                step //= 2

    def _is_full(self, book: Book, first: int, end: int) -> bool:
        keys, number = book.keys, book.number
        held = sum(first <= shard < end for shard in book.held)
        done = self._client.count(keys.done(number, first), keys.done(number, end))
        failed = sum(first <= shard < end for shard in book.failed)
        return held + done + failed == end - first

    def _acknowledge(self, book: Book, trainer: str, said: InHand) -> bool:
        """Mark a shard as done; False when it had been taken back before."""
        held = book.held.get(said.shard)
        if held is None or held.token != said.token:
            return self._was_acknowledged(book, trainer, said)
        self._drop(book, held)
        book.done += 1
        done = book.keys.done(book.number, said.shard)
        record = json.dumps({"trainer": held.trainer, "token": said.token})
        self._change_held(book, held, [etcd.put_op(done, record)], [done], [etcd.key_is_unchanged(done, 0)])
        worker = book.trainers.get(held.trainer)
        if worker is not None:
            work, now = worker.work, self._clock()
            self._transaction.then.append(lambda revision: work.acknowledged(said.shard, said.token, now))
        return True

    def _was_acknowledged(self, book: Book, trainer: str, said: InHand) -> bool:
        """Whether this very acknowledgement was made before, and its answer got lost."""
        self._commit()
        known = book.trainers.get(trainer)
        if known is not None and known.work.last == (said.shard, said.token):
            return True
        for number in (book.number, book.number - 1):
            mark = self._client.get(book.keys.done(number, said.shard)) if number >= 0 else None
            if mark is not None and json.loads(mark.value)["token"] == said.token:
                return True
        return False

    def _give_back(self, book: Book, said: InHand, reason: str) -> None:
        """What a trainer says of a shard that it did not do; too late is fine."""
        held = book.held.get(said.shard)
        if held is None or held.token != said.token:
            return
        if reason == "released":
            self._return(book, held)
        else:
            self._fail(book, held, reason, said.reason)

    def _return(self, book: Book, held: Held) -> None:
        """Back to those to do, in front, and no harm done."""
        self._drop(book, held)
        book.ready.appendleft((held.shard, held.name))
        book.returned["released"] += 1
        self._change_held(book, held)

    def _fail(self, book: Book, held: Held, reason: str, words: str = "") -> None:
        """Count a failure; the shard is to be done again, or given up for this pass."""
        definition = book.definition
        assert definition is not None
        self._drop(book, held)
        tries = book.tries[held.shard] = book.tries.get(held.shard, 0) + 1
        given_up = tries >= definition.failures
        key = (book.keys.failed if given_up else book.keys.tries)(book.number, held.shard)
        record = {"name": held.name, "failures": tries, "reason": reason, "words": words[:500]}
        if given_up:
            book.failed[held.shard] = held.name
            log.warning("%s is given up in pass %d: %s %s", held.name, book.number, reason, words)
        else:
            # A dead trainer's goes in front, so that the pass need not wait for it at its end.
            (book.ready.appendleft if reason == "lost" else book.again.append)((held.shard, held.name))
            book.returned[reason] += 1
        self._change_held(book, held, [etcd.put_op(key, json.dumps(record))], [key])

    def _drop(self, book: Book, held: Held) -> None:
        del book.held[held.shard]
        if held.trainer in book.trainers:
            book.trainers[held.trainer].hand.pop(held.shard, None)

    def _bury(self, book: Book, name: str, reason: str) -> None:
        """A trainer is gone: its shards go back, and what it alone was to do is anybody's again."""
        trainer = book.trainers.get(name)
        if trainer is None:
            return
        for held in list(trainer.hand.values()):
            if not held.token:
                self._commit()
            if reason == "released":
                self._return(book, held)
            else:
                self._fail(book, held, reason)
        for what in [what for what, task in book.tasks.items() if task.trainer == name]:
            self._drop_task(book, what)
        del book.trainers[name]
        key = book.keys.trainer(name)
        self._change([], [etcd.delete_op(key)], [key])

    # Passes ----------------------------------------

    def _settle_books(self) -> None:
        for book in self.books.values():
            self._settle(book)

    def _settle(self, book: Book) -> None:
        """Begin the next pass when nothing is to do nor in hand, whatever ended the last shard."""
        definition = book.definition
        if definition is not None and not (book.over or book.held or book.todo):
            self._commit()
            self._check_counts(book, definition)
            self._begin_pass(book, definition)
        if book.over and not book.finished and not book.trainers:
            book.finished = True
            finished = [etcd.put_op(book.keys.finished, "")]
            self._change([], finished, [book.keys.finished], lambda revision: book.close())

    def _check_counts(self, book: Book, definition: Definition) -> None:
        """A pass ends once, so it may be counted then."""
        keys, number = book.keys, book.number
        done = self._client.count(keys.done(number), after(keys.done(number)))
        failed = self._client.count(keys.failed(number), after(keys.failed(number)))
        if (done, failed, done + failed) != (book.done, len(book.failed), definition.shards):
            raise _Conflict(f"pass {number} of {keys.dataset} has {done} shards done and {failed} failed")

    def _begin_pass(self, book: Book, definition: Definition) -> None:
        keys, ended, now = book.keys, book.number, self._clock()
        summary = {"done": book.done, "failed": len(book.failed), "seconds": round(now - book.started, 3)}
        log.info("pass %d of %s is over: %s", ended, keys.dataset, summary)
        over = ended + 1 >= definition.passes
        if over:
            book.over = True
        else:
            book.number, book.done, book.started = ended + 1, 0, now
            book.failed, book.tries = {}, {}
            book.start_over()
        puts = [
            etcd.put_op(keys.current_pass, _pass_record(book.number, over)),
            etcd.put_op(keys.ended(ended), json.dumps(summary)),
            etcd.delete_op(keys.tries(ended), after(keys.tries(ended))),
        ]
        compare = [etcd.key_is_unchanged(keys.current_pass, book.pass_revision)]
        self._change(compare, puts, [keys.current_pass, keys.ended(ended)], _sets_pass(book))
        # The revision of the pass is needed for the next comparison.
        self._commit()

    # Tasks ----------------------------------------

    def _write_task(self, book: Book, what: str, task: Task) -> None:
        key = book.keys.once(what)
        self._commit()
        put = etcd.put_op(key, json.dumps({"trainer": task.trainer}))

        def written(revision: int) -> None:
            task.revision = revision

        self._change([etcd.key_is_unchanged(key, task.revision)], [put], [key], written)
        self._commit()

    def _drop_task(self, book: Book, what: str) -> None:
        task, key = book.tasks.pop(what), book.keys.once(what)
        self._change([etcd.key_is_unchanged(key, task.revision)], [etcd.delete_op(key)], [key])

    # etcd ----------------------------------------

    def _change_held(
        self,
        book: Book,
        held: Held,
        operations: Sequence[dict[str, Any]] = (),
        keys: Sequence[str] = (),
        compare: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Take a shard out of a hand, and do something else with it."""
        key = book.keys.held(held.shard)
        unchanged = etcd.key_is_unchanged(key, held.token)
        self._change([unchanged, *compare], [etcd.delete_op(key), *operations], [key, *keys])

    def _change(
        self,
        compare: Sequence[dict[str, Any]],
        operations: Sequence[dict[str, Any]],
        keys: Sequence[str],
        then: Callable[[int], None] | None = None,
    ) -> None:
        """Add a change to the transaction; one that has no room, or touches the same keys, goes off first."""
        pending = self._transaction
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
        """Write what has been decided. Raises _Conflict, Ambiguous, Unavailable and Refused."""
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
        """Void what is on its way, and read everything but the shards that are to do or done."""
        self._transaction = _Transaction()
        self.reloads += 1
        self._leadership.renew()
        before, self.books = self.books, {}
        for registered in self._client.range(f"{self._prefix}datasets/").keys:
            dataset = last_part(registered.key)
            known = before.get(dataset)
            if known is not None and known.is_closed and not known.trainers:
                self.books[dataset] = known
                continue
            book = Book(Keys(self._prefix, dataset))
            self._read(book)
            if known is not None:
                _keep_counts(known, book)
            self.books[dataset] = book
        self._return_orphans()

    def _read(self, book: Book) -> None:
        keys, get = book.keys, self._client.get
        for kv in self._client.range(keys.trainer()).keys:
            trainer = Trainer(last_part(kv.key), kv.lease, Work(self._clock()), kv.create_revision)
            book.trainers[trainer.id] = trainer
        for kv in self._client.range(keys.once()).keys:
            book.tasks[last_part(kv.key)] = Task(json.loads(kv.value)["trainer"], kv.mod_revision)
        book.finished = book.is_closed = get(keys.finished) is not None
        meta, current = get(keys.meta), get(keys.current_pass)
        if meta is None or current is None:
            return
        book.definition = Definition.from_json(json.loads(meta.value))
        record = json.loads(current.value)
        book.number, book.over, book.pass_revision = record["number"], record["over"], current.mod_revision
        book.started = self._clock()
        number = book.number
        book.done = self._client.count(keys.done(number), after(keys.done(number)))
        for kv in self._client.range(keys.failed(number)).keys:
            book.failed[int(last_part(kv.key))] = json.loads(kv.value)["name"]
        for kv in self._client.range(keys.tries(number)).keys:
            book.tries[int(last_part(kv.key))] = json.loads(kv.value)["failures"]
        deadline = self._clock() + book.definition.timeout
        for kv in sorted(self._client.range(keys.held()).keys, key=lambda kv: kv.mod_revision):
            record, shard = json.loads(kv.value), int(last_part(kv.key))
            held = Held(shard, record["name"], record["trainer"], deadline, kv.mod_revision)
            book.held[shard] = held
            if held.trainer in book.trainers:
                book.trainers[held.trainer].hand[shard] = held

    def _return_orphans(self) -> None:
        """Shards and tasks of trainers that went while nobody led."""
        for book in self.books.values():
            for held in [held for held in book.held.values() if held.trainer not in book.trainers]:
                self._fail(book, held, "lost")
            for what, task in list(book.tasks.items()):
                if task.trainer and task.trainer not in book.trainers:
                    self._drop_task(book, what)


def _keep_counts(before: Book, now: Book) -> None:
    """What is only shown outlives a reading."""
    now.returned, now.started = before.returned, before.started
    for trainer in now.trainers.values():
        known = before.trainers.get(trainer.id)
        if known is not None:
            trainer.work = known.work


def _say(answer: Answer) -> Callable[[], Answer]:
    return lambda: answer


def _shard(book: Book, held: Held) -> dict[str, Any]:
    return {"shard": held.shard, "name": held.name, "pass": book.number, "token": held.token}


def _existing(kv: etcd.KeyValue | None) -> str:
    if kv is None:
        raise _Conflict("a block of names is gone")
    return kv.value


def _pass_record(number: int, over: bool) -> str:
    return json.dumps({"number": number, "over": over})


def _sets_pass(book: Book) -> Callable[[int], None]:
    def written(revision: int) -> None:
        book.pass_revision = revision

    return written


def _sets_created(trainer: Trainer) -> Callable[[int], None]:
    def written(revision: int) -> None:
        trainer.created = revision

    return written


def _sets_token(held: Held) -> Callable[[int], None]:
    def written(revision: int) -> None:
        held.token = revision

    return written
