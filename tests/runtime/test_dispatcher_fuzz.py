"""The dispatcher's coordinator under random trainers, deaths, leader changes, clocks, lost and late answers.

One thread plays everybody against a real etcd: whoever talks to it may be interrupted at any request by the
deeds of others. What is checked is etcd's own history, event by event. BIREME_FUZZ_SECONDS (6) says for how
long, BIREME_FUZZ_SEED (by chance) in which order.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bireme_runtime.dispatcher.service.coordinator import Coordinator
from bireme_runtime.dispatcher.service.election import Leadership, NotLeader
from bireme_runtime.dispatcher.service.keys import Keys
from bireme_runtime.dispatcher.service.requests import Answer, Definition, Settled, TrainerRequest
from bireme_runtime.etcd import client as etcd
from tests.runtime.etcd_servers import EtcdServer, NewEtcd

SECONDS = float(os.environ.get("BIREME_FUZZ_SECONDS", "6"))
# Long enough that leases end only when the test ends them.
LONG = 3600


class Network(etcd.Client):
    """A client of etcd that loses requests and answers, delays some, and lets others act in between."""

    def __init__(self, fuzz: Fuzz) -> None:
        super().__init__(etcd.parse_endpoints(fuzz.server.endpoint), timeout=3)
        self.fuzz = fuzz

    def call(self, path: str, body: dict[str, Any], repeatable: bool = True) -> dict[str, Any]:
        fuzz = self.fuzz
        fuzz.interrupt()
        if fuzz.is_calm or "/lease/" in path:
            return super().call(path, body, repeatable)
        fate = fuzz.chance.random()
        if fate < 0.01:
            raise etcd.Unavailable("the network is down")
        if path.endswith("deleterange") and fate < 0.5:
            fuzz.late.append((path, body))
        if not repeatable and fate < 0.03:
            fuzz.late.append((path, body))
            raise etcd.Ambiguous("late")
        answer = super().call(path, body, repeatable)
        if not repeatable and fate < 0.05:
            raise etcd.Ambiguous("the answer is lost")
        return answer


@dataclass
class Trainer:
    """The state of a simulated trainer."""

    id: str
    lease: int
    dataset: str
    joined: bool = False
    hand: dict[int, Settled] = field(default_factory=dict)
    unreported: dict[int, Settled] = field(default_factory=dict)
    task: str = ""


class Fuzz:
    """Coordinators, trainers, and random events."""

    def __init__(self, server: EtcdServer, prefix: str, seed: int) -> None:
        self.server = server
        self.prefix = prefix
        self.chance = random.Random(seed)
        self.plain = etcd.Client(etcd.parse_endpoints(server.endpoint))
        self.network = Network(self)
        self.now = 0.0
        self.is_calm = True
        self.depth = 0
        self.coordinator: Coordinator | None = None
        self.lease = 0
        self.former: list[Coordinator] = []
        self.busy: list[Coordinator] = []
        self.trainers: list[Trainer] = []
        self.everybody: list[Trainer] = []
        self.gone: list[str] = []
        self.late: list[tuple[str, dict[str, Any]]] = []
        self.sent: list[TrainerRequest] = []
        self.datasets: dict[str, Definition] = {}
        self.accepted: dict[tuple[str, int], Settled] = {}
        self.deeds: Counter[str] = Counter()
        self.count = 0
        self.add_dataset()
        self.is_calm = False

    @property
    def dataset(self) -> str:
        return list(self.datasets)[-1]

    # Events ----------------------------------------

    def act(self) -> None:
        deeds = {
            self.step: 60, self.batch: 10, self.come: 8, self.leave: 2, self.die: 3, self.lose_lease: 2,
            self.depose: 2, self.lead: 8, self.tell: 6, self.look: 3, self.wait: 3, self.tick: 5,
            self.forget: 2, self.arrive: 3, self.repeat: 3, self.ask_a_former_leader: 6, self.do_once: 4,
        }  # fmt: skip
        (deed,) = self.chance.choices(list(deeds), list(deeds.values()))
        self.deeds[deed.__name__] += 1
        deed()

    def interrupt(self) -> None:
        """Another event happens while a request is in transit."""
        if not self.is_calm and self.depth == 0 and self.chance.random() < 0.05:
            self.depth += 1
            try:
                self.act()
            finally:
                self.depth -= 1

    def add_dataset(self) -> None:
        self.count += 1
        shards = self.chance.randint(1, 20)
        definition = Definition(
            shards, "d" * 8, self.chance.randint(1, 4), timeout=10, failures=self.chance.randint(1, 4),
            block=self.chance.choice([3, 9]),
        )  # fmt: skip
        name = f"set-{self.count}"
        keys = Keys(self.prefix, name)
        for block in range(definition.blocks):
            numbers = range(definition.start_of(block), definition.start_of(block + 1))
            self.plain.put(keys.block(definition.digest, block), json.dumps([f"s{n}" for n in numbers]))
        self.datasets[name] = definition

    def send(
        self, requests: list[TrainerRequest], coordinator: Coordinator | None = None
    ) -> list[Answer | None]:
        """The coordinator's answers; none if it does not lead, or if the answers are lost."""
        coordinator = coordinator or self.coordinator
        self.sent = [*self.sent[-20:], *requests]
        answers: list[Answer | None] = [None] * len(requests)
        self.at(
            coordinator, lambda coordinator: answers.__setitem__(slice(None), coordinator.handle(requests))
        )
        if not self.is_calm and self.chance.random() < 0.1:
            return [None] * len(requests)
        return answers

    def at(self, coordinator: Coordinator | None, act: Callable[[Coordinator], None]) -> None:
        """Call a coordinator, which handles one call at a time."""
        if coordinator is None or coordinator in self.busy:
            return
        self.busy.append(coordinator)
        try:
            act(coordinator)
        except NotLeader:
            self.coordinator = None if coordinator is self.coordinator else self.coordinator
        except etcd.EtcdError:
            return
        finally:
            self.busy.remove(coordinator)

    def come(self) -> None:
        if len(self.trainers) < 5:
            lease = self.plain.lease_grant(LONG)
            trainer = Trainer(f"t.{lease:x}", lease, self.dataset)
            self.trainers.append(trainer)
            self.everybody.append(trainer)
            self.join(trainer)

    def join(self, trainer: Trainer) -> None:
        request = TrainerRequest("join", trainer.dataset, trainer.id, lease=trainer.lease)
        (answer,) = self.send([request])
        self.digest(trainer, answer)
        trainer.joined = trainer.joined or (answer is not None and answer.status == 200)

    def chosen(self) -> Trainer | None:
        return self.chance.choice(self.trainers) if self.trainers else None

    def step(self) -> None:
        """A trainer reports on its shards and requests another one."""
        trainer = self.chosen()
        if trainer is None:
            self.come()
        elif not trainer.joined:
            self.join(trainer)
        else:
            self.digest(trainer, *self.send([self.request(trainer)]))

    def batch(self) -> None:
        trainers = [each for each in self.trainers if each.joined]
        some = self.chance.sample(trainers, self.chance.randint(0, len(trainers)))
        definition = self.datasets[self.dataset]
        add = TrainerRequest("add", self.dataset, definition=definition)
        answers = self.send([add, *(self.request(each) for each in some)])
        for trainer, answer in zip(some, answers[1:], strict=True):
            self.digest(trainer, answer)

    def request(self, trainer: Trainer) -> TrainerRequest:
        failed: list[Settled] = []
        released: list[Settled] = []
        while trainer.hand and self.chance.random() < 0.8:
            _, in_hand = trainer.hand.popitem()
            (fate,) = self.chance.choices(["done", "failed", "released"], [90, 7, 3])
            if self.is_calm or fate == "done":
                trainer.unreported[in_hand.token] = in_hand
            else:
                (failed if fate == "failed" else released).append(in_hand)
        # A trainer has two shards at most.
        verb = "settle" if len(trainer.hand) > 1 else "next"
        have, done = tuple(trainer.hand), tuple(trainer.unreported.values())
        request = TrainerRequest(verb, trainer.dataset, trainer.id, have=have, done=done)
        ahead = bool(trainer.hand) and self.chance.random() < 0.5
        return replace(request, failed=tuple(failed), released=tuple(released), ahead=ahead)

    def digest(self, trainer: Trainer, answer: Answer | None) -> None:
        if answer is None:
            return
        if answer.status == 410:
            if trainer in self.trainers:
                self.trainers.remove(trainer)
            return
        reported = list(trainer.unreported.values())
        for in_hand, kept in zip(reported, answer.body.get("acknowledged", ()), strict=False):
            trainer.unreported.pop(in_hand.token)
            if kept:
                known = self.accepted.setdefault(
                    (trainer.dataset, in_hand.token * 100 + in_hand.shard), in_hand
                )
                assert known == in_hand
        shard = answer.body.get("shard")
        if shard:
            trainer.hand[shard["token"]] = Settled(shard["shard"], shard["token"])
        if answer.body.get("over") and self.chance.random() < 0.5:
            self.goodbye(trainer)

    def leave(self) -> None:
        trainer = self.chosen()
        if trainer is not None:
            self.goodbye(trainer)

    def goodbye(self, trainer: Trainer) -> None:
        (answer,) = self.send([TrainerRequest("leave", trainer.dataset, trainer.id)])
        if answer is not None and trainer in self.trainers:
            self.trainers.remove(trainer)
            self.plain.lease_revoke(trainer.lease)

    def die(self) -> None:
        """A trainer dies, and its lease ends."""
        trainer = self.chosen()
        if trainer is not None:
            self.trainers.remove(trainer)
            self.end_lease(trainer)

    def lose_lease(self) -> None:
        """A trainer's lease ends while it runs."""
        trainer = self.chosen()
        if trainer is not None:
            self.end_lease(trainer)

    def end_lease(self, trainer: Trainer) -> None:
        self.plain.lease_revoke(trainer.lease)
        self.gone.append(Keys(self.prefix, trainer.dataset).trainer(trainer.id))

    def do_once(self) -> None:
        trainer = self.chosen()
        if trainer is None or not trainer.joined:
            return
        name = f"task-{self.chance.randrange(3)}"
        if trainer.task:
            verb = self.chance.choice(["once-done", "once-done", "once-failed"])
            (answer,) = self.send([TrainerRequest(verb, trainer.dataset, trainer.id, trainer.task)])
            trainer.task = "" if answer is not None else trainer.task
        else:
            (answer,) = self.send([TrainerRequest("once", trainer.dataset, trainer.id, name)])
            if answer is not None and answer.body.get("state") == "yours":
                trainer.task = name

    def depose(self) -> None:
        """The leader loses its lease and continues for a while without knowing."""
        if self.coordinator is not None:
            self.former = [*self.former[-2:], self.coordinator]
            self.coordinator = None
            self.plain.lease_revoke(self.lease)

    def lead(self) -> None:
        if self.coordinator is not None:
            return
        self.plain.lease_revoke(self.lease)
        lease = self.plain.lease_grant(LONG)
        self.lease = lease
        delay = self.chance.choice([0, 0, 5, 100])
        try:
            leadership = Leadership(self.network, f"{self.prefix}leader", f"host-{lease:x}", lease)
            if leadership.campaign():
                self.coordinator = Coordinator(
                    self.network, self.prefix, leadership, lambda: self.now + delay
                )
        except (NotLeader, etcd.EtcdError):
            self.plain.lease_revoke(lease)

    def tell(self) -> None:
        """The leader's watch reports ended leases.

        A new leader does not get the reports to the former one.
        """
        some, self.gone = self.gone[:2], self.gone[2:]
        self.at(self.coordinator, lambda coordinator: coordinator.trainers_gone(some))

    def look(self) -> None:
        """The leader's watch restarts with a list of living trainers, some time later."""
        there = self.plain.range(f"{self.prefix}trainers/")
        alive = {kv.key for kv in there.keys}
        if not self.is_calm and self.depth == 0:
            self.depth += 1
            self.act()
            self.depth -= 1
        self.at(self.coordinator, lambda coordinator: coordinator.trainers_are(alive, there.revision))

    def wait(self) -> None:
        self.now += self.chance.choice([0.1, 2, 11])

    def forget(self) -> None:
        """The leases of trainers that left end, even if their request to leave was lost."""
        gone = [trainer for trainer in self.everybody if trainer not in self.trainers]
        self.everybody = list(self.trainers)
        for trainer in gone:
            self.end_lease(trainer)

    def tick(self) -> None:
        self.at(self.coordinator, lambda coordinator: coordinator.tick())

    def arrive(self) -> None:
        """A delayed request arrives although its sender has given it up."""
        if self.late:
            path, body = self.late.pop(self.chance.randrange(len(self.late)))
            try:
                self.plain.call(path, body, repeatable=False)
            except etcd.Refused:
                return

    def repeat(self) -> None:
        if self.sent:
            self.send([self.chance.choice(self.sent)])

    def ask_a_former_leader(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            trainer = self.chosen()
            if self.former and trainer is not None and trainer.joined:
                self.digest(trainer, *self.send([self.request(trainer)], self.former[-1]))

    # Runs ----------------------------------------

    def go_on(self, end: float) -> None:
        """Let random events happen, on a few datasets, because a new leader reads all of them."""
        while time.monotonic() < end:
            self.act()
            if self.is_finished(self.dataset):
                if self.count == 5:
                    return
                self.add_dataset()
        self.settle()

    def is_finished(self, name: str) -> bool:
        state = self.coordinator.datasets.get(name) if self.coordinator else None
        return state is not None and state.finished and self.plain.get(state.keys.finished) is not None

    def settle(self) -> None:
        """Without further failures every pass and every dataset ends."""
        self.is_calm = True
        for _ in range(300):
            self.lead()
            if self.is_finished(self.dataset):
                return
            self.forget()
            self.tell()
            self.look()
            self.now += 0.5
            self.tick()
            self.come()
            for trainer in [trainer for trainer in self.trainers if not trainer.joined]:
                self.join(trainer)
            self.batch()
        assert self.coordinator is not None
        raise AssertionError(f"{self.dataset} does not end: {self.coordinator.report()}")


def history(client: etcd.Client, prefix: str) -> list[etcd.Event]:
    """All events of etcd with the prefix."""
    events: list[etcd.Event] = []
    last = client.put(f"{prefix}end-of-test", "")
    watch = client.watch(prefix, 1, idle_timeout=20)
    for _, some in watch:
        events += some
        if events and events[-1].kv.mod_revision >= last:
            watch.close()
    return events


@dataclass
class Ledger:
    """A dataset reconstructed from etcd's events."""

    definition: Definition
    number: int = -1
    over: bool = False
    held: dict[int, str] = field(default_factory=dict)
    done: dict[int, dict[int, int]] = field(default_factory=dict)
    failed: dict[int, set[int]] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    finished: bool = False

    def take(self, event: etcd.Event, what: str, rest: list[str]) -> None:
        getattr(self, f"_{what}", lambda event, rest: None)(event, rest)

    def _pass(self, event: etcd.Event, rest: list[str]) -> None:
        record = json.loads(event.kv.value)
        everything = set(range(self.definition.shards))
        if self.number >= 0:
            ended = set(self.done.get(self.number, ())) | self.failed.get(self.number, set())
            assert ended == everything, f"pass {self.number} ended without {everything - ended}"
            assert not self.held, "a pass ended while shards were in hand"
            assert record["number"] == self.number + (not record["over"]), "a pass was left out, or repeated"
        assert not self.over, "something came after the last pass"
        self.number, self.over = record["number"], record["over"]
        assert self.number < self.definition.passes

    def _held(self, event: etcd.Event, rest: list[str]) -> None:
        shard = int(rest[0])
        if event.deleted:
            self.held.pop(shard, None)
            return
        assert shard not in self.held, f"shard {shard} was given to a second trainer while one had it"
        assert shard not in self.done.get(self.number, ()), f"shard {shard} was handed out after it was done"
        assert shard not in self.failed.get(self.number, ()), (
            f"shard {shard} was handed out after it was given up"
        )
        self.held[shard] = json.loads(event.kv.value)["trainer"]

    def _done(self, event: etcd.Event, rest: list[str]) -> None:
        number, shard = int(rest[0]), int(rest[1])
        if event.deleted:
            assert number < self.number or self.finished, "a mark went before its pass was over"
            return
        assert number == self.number, "a mark for another pass"
        marks = self.done.setdefault(number, {})
        assert shard not in marks, f"shard {shard} was acknowledged twice in pass {number}"
        marks[shard] = json.loads(event.kv.value)["token"]

    def _failed(self, event: etcd.Event, rest: list[str]) -> None:
        number, shard = int(rest[0]), int(rest[1])
        if event.deleted:
            assert self.finished, "the failed list lost a shard"
            assert number < self.number, "the failed list of the last pass lost a shard"
            return
        assert number == self.number, "a failure for another pass"
        assert shard not in self.done.get(number, ()), f"shard {shard} failed after it was done"
        assert json.loads(event.kv.value)["failures"] == self.definition.failures, "given up at the limit"
        self.failed.setdefault(number, set()).add(shard)

    def _once(self, event: etcd.Event, rest: list[str]) -> None:
        before = self.tasks.get(rest[0])
        assert before != "", f"{rest[0]} was done already"
        if event.deleted:
            self.tasks.pop(rest[0], None)
            return
        now = json.loads(event.kv.value)["trainer"]
        assert before is None or now == "", f"{rest[0]} was taken from {before} by {now}"
        self.tasks[rest[0]] = now

    def _finished(self, event: etcd.Event, rest: list[str]) -> None:
        assert self.over, "finished before the passes were over"
        assert not self.finished
        self.finished = True


def check(fuzz: Fuzz) -> dict[str, Ledger]:
    ledgers = {name: Ledger(definition) for name, definition in fuzz.datasets.items()}
    root = f"{fuzz.prefix}d/"
    # etcd orders the events of one transaction by key; marks have to come first here.
    events = [event for event in history(fuzz.plain, fuzz.prefix) if event.kv.key.startswith(root)]
    rank = {"held": 1, "done": 2, "failed": 3, "pass": 4}
    for event in sorted(
        events, key=lambda event: (event.kv.mod_revision, not event.deleted, rank.get(_what(event, root), 0))
    ):
        name, what, *rest = event.kv.key[len(root) :].split("/")
        ledgers[name].take(event, what, rest)
    for (name, _), in_hand in fuzz.accepted.items():
        marks = [marks.get(in_hand.shard) for marks in ledgers[name].done.values()]
        assert marks.count(in_hand.token) == 1, "what was acknowledged to a trainer is in etcd once"
    assert all(ledger.finished for ledger in ledgers.values()), "every pass of every dataset ends"
    return ledgers


def _what(event: etcd.Event, root: str) -> str:
    return event.kv.key[len(root) :].split("/")[1]


def test_each_shard_is_acknowledged_once_or_given_up_and_every_pass_ends(
    new_etcd: NewEtcd, prefix: str
) -> None:
    seed = int(os.environ.get("BIREME_FUZZ_SEED", random.randrange(10**6)))
    server, end = new_etcd().start(), time.monotonic() + SECONDS
    sums: Counter[str] = Counter()
    while not sums or time.monotonic() < end:
        fuzz = Fuzz(server, f"{prefix}{seed}/", seed)
        try:
            fuzz.go_on(end)
            ledgers = check(fuzz)
        except BaseException:
            print(f"BIREME_FUZZ_SEED={seed} BIREME_FUZZ_SECONDS={SECONDS}", dict(fuzz.deeds), sep="\n")
            raise
        sums["deeds"] += fuzz.deeds.total()
        sums["datasets"] += len(ledgers)
        for ledger in ledgers.values():
            sums["passes"] += ledger.number + 1
            sums["shards acknowledged"] += sum(map(len, ledger.done.values()))
            sums["given up"] += sum(map(len, ledger.failed.values()))
        seed += 1
    print(", ".join(f"{count} {what}" for what, count in sums.items()), f"to seed {seed - 1}")
