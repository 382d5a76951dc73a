"""The dispatcher's coordinator on a real etcd, with a simulated clock."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bireme_runtime.dispatcher.service.coordinator import MOST_DATASETS, Coordinator
from bireme_runtime.dispatcher.service.election import Leadership, NotLeader
from bireme_runtime.dispatcher.service.keys import Keys
from bireme_runtime.dispatcher.service.requests import Answer, Definition, Settled, TrainerRequest
from bireme_runtime.etcd import client as etcd
from tests.runtime.etcd_servers import EtcdServer, NewEtcd, Proxy

SET = "set"


@dataclass
class Office:
    """Coordinators, one after the other, and requests of trainers to them."""

    server: EtcdServer
    prefix: str
    now: float = 0.0
    lease: int = 0
    network: etcd.Client = field(init=False)

    def __post_init__(self) -> None:
        self.proxy = Proxy(self.server.port)
        self.network = etcd.Client(etcd.parse_endpoints(self.proxy.endpoint), timeout=60)
        self.client = etcd.Client(etcd.parse_endpoints(self.server.endpoint), timeout=60)
        self.coordinator = self.take_over()

    def take_over(self) -> Coordinator:
        """The coordinator of a new leader; the lease of the last leader has ended."""
        if self.lease:
            self.client.lease_revoke(self.lease)
        self.lease = self.client.lease_grant(600)
        leadership = Leadership(self.network, f"{self.prefix}leader", "here:1", self.lease)
        assert leadership.campaign()
        self.coordinator = Coordinator(
            self.network, self.prefix, leadership, lambda: self.now, lambda: self.now
        )
        return self.coordinator

    def define(self, shards: int, **limits: Any) -> Definition:
        definition = Definition(shards, "abcdef01", **limits)
        keys = Keys(self.prefix, SET)
        for block in range(definition.blocks):
            numbers = range(definition.start_of(block), definition.start_of(block + 1))
            self.client.put(keys.block("abcdef01", block), json.dumps([f"s{n}" for n in numbers]))
        assert self.ask("add", "", definition=definition) == {"added": True}
        return definition

    def join(self, *names: str) -> None:
        for name in names:
            lease = self.client.lease_grant(600)
            assert self.ask("join", name, lease=lease) == {"trainer": name}

    def answer(self, verb: str, trainer: str, **fields: Any) -> Answer | None:
        return self.coordinator.handle([TrainerRequest(verb, SET, trainer, **fields)])[0]

    def ask(self, verb: str, trainer: str, **fields: Any) -> dict[str, Any]:
        answer = self.answer(verb, trainer, **fields)
        assert answer is not None
        assert answer.status == 200, answer
        return dict(answer.body)

    def take(self, trainer: str, **fields: Any) -> Settled:
        shard = self.ask("next", trainer, **fields)["shard"]
        return Settled(shard["shard"], shard["token"])

    def status(self) -> dict[str, Any]:
        (found,) = self.coordinator.report()["datasets"]
        return dict(found)

    def counts(self) -> tuple[int, int, int, int]:
        status = self.status()
        return status["todo"], status["pending"], status["done"], status["failed"]

    def kill(self, trainer: str) -> str:
        """End a trainer's lease; returns its key, which the leader's watch would report."""
        key = Keys(self.prefix, SET).trainer(trainer)
        held = self.client.get(key)
        assert held is not None
        self.client.lease_revoke(held.lease)
        return key


@pytest.fixture
def office(shared_etcd: EtcdServer, prefix: str) -> Office:
    return Office(shared_etcd, prefix)


def test_a_hung_trainers_shard_is_reassigned_and_its_late_answer_changes_nothing(office: Office) -> None:
    # Defect 2 of the old master: a late acknowledgement completed a shard that another trainer had.
    office.define(1, timeout=60)
    office.join("slow", "quick")
    late = office.take("slow")
    office.now = 61
    office.coordinator.tick()
    mine = office.take("quick")
    assert office.ask("settle", "slow", done=(late,)) == {"acknowledged": [False]}
    assert office.counts() == (0, 1, 0, 0)
    assert office.ask("settle", "slow", failed=(late,), released=(late,)) == {"acknowledged": []}
    assert office.counts() == (0, 1, 0, 0)
    assert office.ask("settle", "quick", done=(mine,)) == {"acknowledged": [True]}
    assert office.status()["over"]


@pytest.mark.parametrize("end", ["timeout", "failed", "lost", "takeover"])
def test_a_pass_ends_however_its_last_shard_ends(office: Office, end: str) -> None:
    # Defect 1 of the old master: only an acknowledgement started the next pass.
    office.define(2, passes=2, failures=1, timeout=60)
    office.join("a", "b")
    office.ask("settle", "a", done=(office.take("a"),))
    last = office.take("b")
    if end == "timeout":
        office.now = 61
        office.coordinator.tick()
    elif end == "failed":
        office.ask("settle", "b", failed=(last,))
    elif end == "lost":
        office.coordinator.trainers_gone([office.kill("b")])
    else:
        office.kill("b")
        office.take_over()
    status = office.status()
    assert (status["pass"], status["todo"], status["done"], status["failed"]) == (1, 2, 0, 0)
    assert office.take("a").shard == 0


@pytest.mark.parametrize("trouble", ["refuse", "silent", "lose answers"])
def test_a_shard_whose_assignment_was_not_saved_is_assigned_again(office: Office, trouble: str) -> None:
    # Defect 4 of the old master: the task stayed pending, and nothing ever timed it out.
    office.define(2)
    office.join("a")
    office.proxy.mode = trouble
    office.proxy.cut()
    office.network._timeout = 0.5
    with contextlib.suppress(etcd.EtcdError, NotLeader):
        assert office.coordinator.handle([TrainerRequest("next", SET, "a")])[0].status == 503  # type: ignore[union-attr]
    office.network._timeout = 60
    office.proxy.mode = "pass"
    office.proxy.cut()
    first = office.take("a")
    second = office.take("a", have=(first.token,))
    assert {first.shard, second.shard} == {0, 1}
    assert office.counts() == (0, 2, 0, 0)


def test_a_shard_whose_answer_was_lost_is_sent_to_the_same_trainer_again(office: Office) -> None:
    office.define(3)
    office.join("a")
    lost = office.take("a")
    assert office.take("a") == lost
    assert office.take("a", have=(lost.token,)).shard == 1
    assert office.ask("settle", "a", done=(lost,)) == {"acknowledged": [True]}
    # The next answer may be lost as well.
    assert office.ask("settle", "a", done=(lost,)) == {"acknowledged": [True]}
    assert office.counts() == (1, 1, 1, 0)


def test_a_new_leader_continues_where_the_last_one_stopped(office: Office) -> None:
    office.define(7, block=2, failures=2)
    office.join("a", "b")
    done = office.take("a")
    office.ask("settle", "a", done=(done,))
    in_hand = office.take("a")
    failed = office.take("b")
    office.ask("settle", "b", failed=(failed,))
    former = office.coordinator
    office.take_over()
    assert office.counts() == (5, 1, 1, 0)
    assert office.ask("settle", "a", done=(in_hand,)) == {"acknowledged": [True]}
    # A repeated acknowledgement, whose first answer may have been lost with the former leader.
    assert office.ask("settle", "a", done=(done,)) == {"acknowledged": [True]}
    with pytest.raises(NotLeader):
        former.handle([TrainerRequest("next", SET, "b")])
    rest: list[Settled] = []
    for _ in range(5):
        rest.append(office.take("b", have=tuple(each.token for each in rest)))
    # Failed shards come last.
    assert [each.shard for each in rest] == [3, 4, 5, 6, 2]


def test_a_trainer_without_a_lease_gets_nothing(office: Office) -> None:
    office.define(2)
    office.join("a")
    office.kill("a")
    answer = office.answer("next", "a")
    assert answer is not None
    assert answer.status == 410
    assert office.counts() == (2, 0, 0, 0)


def test_names_of_datasets_are_bounded(office: Office) -> None:
    def status_of(*numbers: int) -> set[tuple[int, str]]:
        requests = [TrainerRequest("settle", f"name-{number}") for number in numbers]
        answers = office.coordinator.handle(requests)
        return {(each.status, each.body.get("error", "")) for each in answers if each}

    for start in range(0, MOST_DATASETS, 50):
        assert status_of(*range(start, start + 50)) == {(200, "")}
    sentence = f"there are {MOST_DATASETS} datasets: delete those that are over"
    assert status_of(MOST_DATASETS) == {(400, sentence)}


def test_many_requests_become_few_transactions(office: Office) -> None:
    office.define(200)
    trainers = [f"t{number}" for number in range(100)]
    office.join(*trainers)
    before = office.coordinator.commits
    answers = office.coordinator.handle([TrainerRequest("next", SET, name) for name in trainers])
    shards = {answer.body["shard"]["shard"] for answer in answers if answer is not None}
    assert shards == set(range(100))
    assert office.coordinator.commits - before <= 3


def test_the_marks_of_a_pass_are_deleted_during_the_next_one(office: Office) -> None:
    office.define(6, passes=3, block=2)
    office.join("a")
    for _ in range(3 * 6):
        office.ask("settle", "a", done=(office.take("a"),))
    keys = Keys(office.prefix, SET)
    assert [office.client.count(keys.done(p), keys.done(p + 1)) for p in range(3)] == [0, 0, 6]
    ended = office.client.range(f"{keys.root}passes/").keys
    assert [json.loads(kv.value)["done"] for kv in ended] == [6, 6, 6]


def test_neither_keys_nor_the_writes_of_a_step_grow_with_the_dataset(office: Office) -> None:
    # Defect 5 of the old master: one value held the whole state, and every step rewrote it.
    office.define(5000)
    office.join("a")
    first = office.take("a")
    before = office.client.range(office.prefix).revision
    second = office.take("a", done=(first,))
    state = [kv for kv in office.client.range(office.prefix).keys if "/blocks/" not in kv.key]
    keys = Keys(office.prefix, SET)
    changed = {kv.key for kv in state if kv.mod_revision > before}
    assert changed == {keys.done(0, first.shard), keys.held(second.shard)}
    assert max(len(kv.value) for kv in state) < 200


@pytest.mark.parametrize("trouble", ["conflict", "takeover"])
def test_the_time_that_a_trainer_has_had_a_shard_survives_a_reload(office: Office, trouble: str) -> None:
    office.define(3, timeout=600)
    office.join("hung", "well")
    office.take("hung")
    for office.now in (400.0, 500.0, 599.0):
        if trouble == "takeover":
            office.take_over()
        else:
            # A key that changed behind the leader's back makes its next transaction fail.
            late = office.take("well")
            office.client.put(
                Keys(office.prefix, SET).held(late.shard), json.dumps({"trainer": "x", "name": "s"})
            )
            office.answer("settle", "well", done=(late,))
        office.coordinator.tick()
    assert office.status()["redispatched"].get("timeout", 0) == 0
    office.now = 601
    office.coordinator.tick()
    assert office.status()["redispatched"]["timeout"] >= 1


def keys_below(office: Office) -> list[str]:
    root = Keys(office.prefix, SET).root
    return [kv.key.removeprefix(root) for kv in office.client.range(root).keys]


def test_a_finished_dataset_leaves_a_few_keys_and_the_same_status(office: Office) -> None:
    office.define(40, passes=2, block=10, failures=1)
    office.join("a")
    done: tuple[Settled, ...] = ()
    office.ask("settle", "a", failed=(office.take("a"),))
    while "shard" in (body := office.ask("next", "a", done=done)):
        done = (Settled(body["shard"]["shard"], body["shard"]["token"]),)
    office.ask("leave", "a")
    before = office.status()
    for _ in range(3):
        office.coordinator.tick()
    assert keys_below(office) == ["finished", "meta", "pass", "passes/0000000", "passes/0000001"]
    assert office.status() == before
    office.take_over()
    assert (office.status()["done"], office.status()["finished"]) == (40, True)
    assert office.ask("add", "", definition=Definition(40, "abcdef01", passes=2, block=10, failures=1)) == {
        "added": False
    }
    office.join("late")
    assert office.ask("next", "late")["over"]


def test_a_deleted_dataset_leaves_no_keys_and_its_name_is_free(office: Office) -> None:
    office.define(30, block=10)
    office.join("a")
    office.ask("settle", "a", done=(office.take("a"),))
    refused = office.answer("delete", "")
    assert refused is not None
    assert (refused.status, "has 1 trainers (a): end them first" in refused.body["error"]) == (409, True)
    office.ask("leave", "a")
    assert office.answer("delete", "") is None
    # The next leader goes on with it.
    office.take_over()
    busy = office.answer("add", "", definition=Definition(5, "abcdef02"))
    assert busy is not None
    assert busy.status == 503
    for _ in range(3):
        office.coordinator.tick()
    assert keys_below(office) == []
    assert office.coordinator.report()["datasets"] == []
    assert office.ask("delete", "") == {"gone": True}
    office.define(3)
    assert office.counts() == (3, 0, 0, 0)


# Shards that are got ahead ----------------------------------------


def ahead_of(office: Office, trainer: str, working: Settled, *done: Settled) -> Settled | None:
    """What a trainer gets while it works on another shard; None if it gets nothing."""
    body = office.ask("next", trainer, have=(working.token,), done=done, ahead=True)
    shard = body.get("shard")
    return Settled(shard["shard"], shard["token"]) if shard else None


def test_the_time_of_a_shard_got_ahead_starts_with_its_work(office: Office) -> None:
    office.define(9, timeout=60)
    office.join("a")
    first = office.take("a")
    second = ahead_of(office, "a", first)
    assert second is not None
    office.now = 59
    third = ahead_of(office, "a", second, first)
    assert third is not None
    office.now = 118
    office.coordinator.tick()
    assert office.counts() == (6, 2, 1, 0)
    office.now = 120
    office.coordinator.tick()
    # Its trainer hangs in the second one: the third one goes back too, and is no failure.
    assert (office.counts(), office.status()["redispatched"]) == ((8, 0, 1, 0), {"released": 1, "timeout": 1})


@pytest.mark.parametrize("end", ["lost", "lost without a leader", "leave"])
def test_a_trainer_that_ends_gives_back_both_shards_and_one_counts(office: Office, end: str) -> None:
    office.define(5, failures=1)
    office.join("a", "b")
    first = office.take("a")
    assert ahead_of(office, "a", first) is not None
    assert office.status()["trainers"][0]["inHand"] == ["s0", "s1"]
    if end == "leave":
        office.ask("leave", "a")
        answer = office.answer("next", "a")
        assert answer is not None
        assert answer.status == 410
    elif end == "lost":
        office.coordinator.trainers_gone([office.kill("a")])
    else:
        office.kill("a")
        office.take_over()
    given_up = [] if end == "leave" else ["s0"]
    assert (office.status()["failedShards"], office.status()["pending"]) == (given_up, 0)
    rest = [office.take("b")]
    while office.status()["todo"]:
        rest.append(office.take("b", have=tuple(each.token for each in rest)))
    assert sorted(each.shard for each in rest) == ([0, 1, 2, 3, 4] if end == "leave" else [1, 2, 3, 4])


def test_a_new_leader_gives_a_shard_got_ahead_its_time(office: Office) -> None:
    office.define(9, timeout=60)
    office.join("a")
    first = office.take("a")
    second = ahead_of(office, "a", first)
    assert second is not None
    office.now = 50
    office.ask("settle", "a", done=(first,))
    office.take_over()
    office.now = 109
    office.coordinator.tick()
    assert office.counts() == (7, 1, 1, 0)
    office.now = 121
    office.coordinator.tick()
    assert (office.counts(), office.status()["redispatched"]) == ((8, 0, 1, 0), {"timeout": 1})


def test_the_last_shards_are_not_got_ahead_while_others_could_do_them(office: Office) -> None:
    office.define(4)
    office.join("a", "b")
    first = office.take("a")
    second = ahead_of(office, "a", first)
    assert second is not None
    assert ahead_of(office, "a", second, first) is None
    assert office.counts() == (2, 1, 1, 0)


def test_a_shard_that_lost_its_trainer_is_not_got_ahead(office: Office) -> None:
    office.define(9)
    office.join("a", "b")
    office.take("a")
    working = office.take("b")
    office.coordinator.trainers_gone([office.kill("a")])
    assert ahead_of(office, "b", working) is None
    again = office.take("b", done=(working,))
    next_one = ahead_of(office, "b", again)
    assert next_one is not None
    assert (again.shard, next_one.shard) == (0, 2)


def test_what_an_older_etcd_does_not_know_to_be_done_is_handed_out_again(
    new_etcd: NewEtcd, prefix: str, tmp_path: Path
) -> None:
    server = new_etcd().start()
    data, older = server.folder / "data", tmp_path / "older"
    office = Office(server, prefix)
    office.define(3)
    office.join("a")
    first = office.take("a")
    server.stop()
    shutil.copytree(data, older)
    server.start()
    second = office.take("a", done=(first,))
    office.ask("settle", "a", done=(second,))
    assert office.counts() == (1, 0, 2, 0)
    server.stop()
    shutil.rmtree(data)
    shutil.copytree(older, data)
    server.start()
    # The first answer of these data shows that they are younger.
    office.join("b")
    office.join("c")
    assert office.counts() == (2, 1, 0, 0)
    assert office.ask("settle", "a", done=(first,)) == {"acknowledged": [True]}
    taken = [office.take(name).shard for name in ("b", "c")]
    assert sorted([first.shard, *taken]) == [0, 1, 2]


def test_a_pass_does_not_end_before_etcd_has_a_mark_of_every_shard(office: Office) -> None:
    office.define(2)
    office.join("a")
    lost = office.take("a")
    last = office.take("a", done=(lost,))
    mark = Keys(office.prefix, SET).done(0, lost.shard)
    office.client.txn([], [etcd.delete_op(mark)])
    office.answer("settle", "a", done=(last,))
    assert not office.status()["over"]
    assert office.take("a").shard == lost.shard
