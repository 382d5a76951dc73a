"""The rendezvous: its decisions alone, and its members with a real etcd."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from bireme_runtime.elastic import fence
from bireme_runtime.elastic.rendezvous import membership, rules
from bireme_runtime.elastic.rendezvous.lock import Locked, RunLock
from bireme_runtime.elastic.rendezvous.membership import Rendezvous
from bireme_runtime.elastic.rendezvous.rules import (
    Member,
    Over,
    Propose,
    Round,
    RunSettings,
    View,
    Wait,
    World,
)
from bireme_runtime.etcd import client as etcd
from tests.runtime.etcd_servers import EtcdServer, Proxy
from tests.support import waiting

# Decisions ----------------------------------------

SETTINGS = RunSettings("run", 2, 3)
until = partial(waiting.until, every=0.01)


def member(base: str, slot: int, ready: int = 1, **fields: Any) -> Member:
    return Member(f"{base}.1", base, slot, f"10.0.0.{slot}", ready, **fields)


def view(*members: Member, round: Round | None = None, outcome: str = "") -> View:
    return View(7, {each.id: each for each in members}, round, None, outcome)


def world(number: int, *bases: str) -> Round:
    return Round(number, tuple(f"{base}.1" for base in bases), 5)


def test_there_is_a_last_call_for_newcomers_unless_the_round_is_full() -> None:
    two, three = (member("a", 0), member("b", 1)), (member("a", 0), member("b", 1), member("c", 2))
    assert rules.decide(view(*two), "a.1", 1, SETTINGS, 0.25) == Wait("the last call to end", 0.75)
    assert rules.decide(view(*two), "a.1", 1, SETTINGS, 1.1) == Propose(
        replace(world(1, "a", "b"), mod_revision=0, token=1)
    )
    assert rules.decide(view(*three), "a.1", 1, SETTINGS, 0) == Propose(
        replace(world(1, "a", "b", "c"), mod_revision=0, token=1)
    )


def test_the_first_round_waits_for_the_workers_that_are_expected_but_not_for_ever() -> None:
    settings = replace(SETTINGS, max_nodes=9, first_nodes=3, first_call_timeout=60)
    two, three = (member("a", 0), member("b", 1)), (member("a", 0), member("b", 1), member("c", 2))
    decision = rules.decide(view(*two), "a.1", 1, settings, 50, 58)
    assert decision == Wait("workers: 2 of the first 3 are here", 2)
    assert isinstance(rules.decide(view(*two), "a.1", 1, settings, 50, 61), Propose)
    assert isinstance(rules.decide(view(*three), "a.1", 1, settings, 0, 0), Propose)
    later = view(member("a", 0, ready=5), member("d", 3), round=world(4, "a", "b"))
    assert isinstance(rules.decide(later, "a.1", 5, settings, 2, 2), Propose)


def test_after_a_loss_of_etcds_data_a_lease_passes_and_no_round_number_comes_again() -> None:
    here = view(member("a", 0, ready=8), member("b", 1, ready=1), member("c", 2, ready=8))
    decision = rules.decide(here, "a.1", 8, SETTINGS, SETTINGS.lease_ttl - 1)
    assert decision == Wait("leases that may still live: etcd has lost its data", 1)
    # Who has noticed it has waited before it registered, and the others come within moments.
    assert isinstance(rules.decide(here, "a.1", 8, SETTINGS, 3, waited=True), Wait)
    assert isinstance(rules.decide(here, "a.1", 8, SETTINGS, 4, waited=True), Propose)
    decision = rules.decide(here, "a.1", 8, SETTINGS, SETTINGS.lease_ttl)
    assert decision == Propose(replace(world(8, "a", "b", "c"), mod_revision=0, token=1))


def test_a_look_at_ten_thousand_members_takes_no_square_of_that() -> None:
    ids = tuple(f"m-{number}.1" for number in range(10_000))
    members = {id: Member(id, id[:-2], 0, "a", 1) for id in ids}
    members["z-0.1"] = Member("z-0.1", "z-0", 0, "a", 2)
    view = View(1, members, Round(1, ids[:-1]))
    began = time.monotonic()
    for _ in range(20):
        assert (view.leavers(), view.arrivals(), view.first()) == (set(), {ids[-1], "z-0.1"}, ids[0])
    assert time.monotonic() - began < 60, "a pass takes milliseconds, and its square minutes"


def test_one_member_proposes_or_the_first_of_the_latest_round_since_a_new_one_may_have_to_wait() -> None:
    here = view(member("a", 1), member("b", 0))
    assert rules.decide(here, "b.1", 1, SETTINGS, 9) == Wait("another member to propose the round")
    assert isinstance(rules.decide(here, "a.1", 1, SETTINGS, 9), Propose)
    here = view(member("a", 0), member("b", 1, 2), member("c", 2, 2), round=world(1, "b", "c"))
    assert isinstance(rules.decide(here, "b.1", 2, SETTINGS, 9), Propose)
    assert rules.decide(here, "c.1", 2, SETTINGS, 9) == Wait("another member to propose the round")


def test_survivors_keep_their_order_and_newcomers_follow_up_to_the_maximum() -> None:
    here = view(
        member("a", 9, 5), member("b", 8, 5), member("c", 1), member("d", 0), round=world(4, "a", "x", "b")
    )
    decision = rules.decide(here, "a.1", 5, SETTINGS, 9)
    assert decision == Propose(replace(world(5, "a", "b", "d"), mod_revision=0, token=1))


def test_a_world_has_whole_units_of_members_and_who_is_left_over_waits() -> None:
    settings = replace(SETTINGS, max_nodes=6, unit=2)
    three = view(member("a", 9, 5), member("b", 8, 5), member("c", 1), round=world(4, "b", "x", "y", "a"))
    decision = rules.decide(three, "a.1", 5, settings, 9)
    assert decision == Propose(replace(world(5, "b", "a"), mod_revision=0, token=1))
    alone = view(member("a", 0))
    assert rules.decide(alone, "a.1", 1, settings, 9) == Wait("members: there are 1, and 2 is the minimum")
    with pytest.raises(ValueError, match="the minimum of 3 is no multiple of 2"):
        replace(settings, min_nodes=3)


def test_neighbours_in_the_network_get_neighbouring_ranks_and_survivors_stay_first() -> None:
    left, right = ("zone", "left"), ("zone", "right")
    here = view(
        member("a", 9, 5, place=right), member("b", 8, 5, place=left),
        member("c", 1, place=left), member("d", 0, place=right),
        round=world(4, "a", "x", "b"),
    )  # fmt: skip
    decision = rules.decide(here, "a.1", 5, replace(SETTINGS, max_nodes=4), 9)
    assert decision == Propose(replace(world(5, "a", "d", "b", "c"), mod_revision=0, token=1))


def test_after_a_mere_loss_there_is_no_last_call() -> None:
    here = view(member("a", 0, 5), member("b", 1, 5), round=world(4, "a", "b", "c"))
    assert isinstance(rules.decide(here, "a.1", 5, SETTINGS, 0), Propose)


def test_a_member_that_has_finished_a_broken_round_is_in_the_next_one_too() -> None:
    here = view(member("a", 0, 1, finished=True), member("b", 1, 2), member("c", 2), round=world(1, "a", "b"))
    decision = rules.decide(here, "b.1", 2, SETTINGS, 9)
    assert decision == Wait("1 members of round 1 to stop, among them a.1")
    again = replace(here, members={**here.members, "a.1": member("a", 0, 2)})
    decision = rules.decide(again, "a.1", 2, SETTINGS, 9)
    assert decision == Propose(replace(world(2, "a", "b", "c"), mod_revision=0, token=1))


def test_what_a_member_has_finished_stays_known_until_the_next_round() -> None:
    known = replace(view(member("b", 1), round=world(1, "a", "b")), finished=frozenset({"a.1"}))
    read_again = view(member("b", 1, finished=True), round=world(1, "a", "b"))
    assert read_again.leavers() == {"a.1"}
    assert read_again.after(known).leavers() == set()
    later = replace(world(2, "a", "b"), token=2)
    assert view(member("b", 1), round=later).after(known).leavers() == {"a.1"}
    # A member that is ready for the next round has not finished this one.
    assert view(member("a", 0, 2), member("b", 1), round=world(1, "a", "b")).after(known).leavers() == {"a.1"}


def test_a_placed_member_joins_although_the_run_has_just_ended() -> None:
    here = view(member("a", 0), member("b", 1), round=world(1, "a", "b"), outcome="success")
    assert rules.decide(here, "b.1", 1, SETTINGS, 0) == World(1, 1, 2, 5, 0)
    assert rules.decide(here, "b.1", 2, SETTINGS, 0) == Over("success")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"join_timeout": "soon"}, "join_timeout=soon is not a number of seconds"),
        ({"join_timeout": "0"}, "join_timeout must be more than 0 seconds"),
        ({"keep_alive_interval": "0.1"}, "must be 2 seconds or more"),
        ({"last_call_timeout": "-1"}, "last_call_timeout must not be negative"),
        ({"settle_timeout": "-1"}, "settle_timeout must not be negative"),
    ],
)
def test_an_unusable_rendezvous_conf_is_reported(config: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        RunSettings.from_config("run", 1, 2, config)


def test_settings_are_read_under_torchs_names() -> None:
    config = {
        "join_timeout": "5",
        "keep_alive_interval": 2,
        "keep_alive_max_attempt": "4",
        "etcd_prefix": "/x",
    }
    settings = RunSettings.from_config("run", 1, 2, {**config, "last_call_timeout": None, "is_host": "1"})
    assert (settings.join_timeout, settings.lease_ttl, settings.root) == (5, 8, "/x/run/")
    assert settings.last_call_timeout == 1


# Members on a real etcd ----------------------------------------

Make = Callable[..., Rendezvous]
# For a member whose lease has to end in the test. All other leases outlast a machine that stands still.
BRIEF: dict[str, Any] = {"keep_alive_max_attempt": 20}


@pytest.fixture
def settings(prefix: str) -> RunSettings:
    return RunSettings(
        "run", 1, 4, prefix, join_timeout=120, last_call_timeout=0.2, settle_timeout=0,
        keep_alive_interval=0.3, keep_alive_max_attempt=200,
    )  # fmt: skip


@pytest.fixture
def make(shared_etcd: EtcdServer, settings: RunSettings) -> Iterator[Make]:
    """Make a member by slot; `endpoint` puts it behind a proxy."""
    members: list[Rendezvous] = []

    def make(
        slot: int,
        endpoint: str = shared_etcd.endpoint,
        wanted: Callable[[], int] = lambda: 0,
        **changes: Any,
    ) -> Rendezvous:
        client = etcd.Client(etcd.parse_endpoints(endpoint), timeout=10)
        if "lock" in changes:
            # As if it had known the data of etcd for long: it need not wait for leases of before.
            client.get("any")
            client.history._since = -1e9
        identity = membership.Identity(membership.new_base(f"m{slot}"), slot, f"10.0.0.{slot}")
        members.append(Rendezvous(client, replace(settings, **changes), identity, wanted=wanted))
        return members[-1]

    yield make
    for each in members:
        each.leave()


def join_all(*members: Rendezvous) -> list[membership.World]:
    """Have members join. The first round of a run waits for them all, as a worker waits for its job's others.

    Without that the first to come may form a world alone, and who comes later waits to be taken in.
    """
    for each in members:
        each.settings = replace(each.settings, first_nodes=len(members))
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(lambda each: each.join(), members))


def have_ready(member: Rendezvous) -> None:
    """Register a member before it joins, so that its join_timeout does not count that."""
    member._start_threads()
    member._get_ready(time.monotonic() + 120)


def end_leases(client: etcd.Client, member: Rendezvous) -> None:
    """End the leases of a member, as they would end without renewals."""
    for lease in membership.leases_of(client, member.settings.root, member.identity.base):
        client.lease_revoke(lease)


def test_members_that_start_together_form_one_world_ranked_by_slot(make: Make) -> None:
    worlds = join_all(*(make(slot) for slot in (2, 0, 3, 1)))
    assert [(world.number, world.rank, world.size) for world in worlds] == [
        (1, 2, 4), (1, 0, 4), (1, 3, 4), (1, 1, 4),
    ]  # fmt: skip


def test_a_late_member_is_reported_and_joins_while_the_others_keep_their_ranks(make: Make) -> None:
    a, b = make(5), make(6)
    join_all(a, b)
    assert (a.waiting(), b.waiting()) == (0, 0)
    late = make(0)
    with ThreadPoolExecutor(3) as pool:
        joining = pool.submit(late.join)
        until(lambda: a.waiting() == b.waiting() == 1)
        time.sleep(0.3)
        assert not joining.done(), "nobody joins while the others still train"
        worlds = [pool.submit(each.join) for each in (a, b)]
        assert [each.result().rank for each in (*worlds, joining)] == [0, 1, 2]


def test_a_late_member_interrupts_a_young_round_only_after_a_loss(make: Make) -> None:
    a, b = make(0, settle_timeout=1.5), make(1, settle_timeout=600)
    start = time.monotonic()
    join_all(a, b)
    with ThreadPoolExecutor(3) as pool:
        joining = pool.submit(make(2).join)
        until(a.waiting)
        assert time.monotonic() - start > 1.5
        assert b.waiting() == 0
        a.leave()
        until(b.waiting)
        assert [b.join().rank, joining.result().rank] == [0, 1]


def test_after_a_member_leaves_the_others_do_not_wait(make: Make) -> None:
    # The leases live longer than the test waits.
    a, b, c = (make(slot, keep_alive_max_attempt=2000) for slot in range(3))
    join_all(a, b, c)
    b.leave()
    until(lambda: a.waiting() and c.waiting())
    worlds = join_all(a, c)
    assert [(world.rank, world.size) for world in worlds] == [(0, 2), (1, 2)]


def test_members_interrupt_a_round_only_when_they_are_a_whole_unit(make: Make) -> None:
    a, b, c, d = (make(slot, min_nodes=2, unit=2) for slot in range(4))
    join_all(a, b)
    with ThreadPoolExecutor(4) as pool:
        third = pool.submit(c.join)
        until(lambda: len(membership.spares_of(a._client, a.settings.root)) == 1)
        assert (a.waiting(), b.waiting(), third.done()) == (0, 0, False)
        fourth = pool.submit(d.join)
        until(lambda: a.waiting() and b.waiting())
        again = [pool.submit(each.join) for each in (a, b)]
        assert [each.result().rank for each in (*again, third, fourth)] == [0, 1, 2, 3]
        d.leave()
        until(lambda: a.waiting() and b.waiting() and c.waiting())
        left = pool.submit(c.join)
        again = [pool.submit(each.join) for each in (a, b)]
        assert [each.result().size for each in again] == [2, 2]
        assert membership.spares_of(a._client, a.settings.root) == ("m2",)
        a.leave()
        until(b.waiting)
        assert (b.join().rank, left.result().rank) == (0, 1)


def test_a_spare_waits_until_a_worker_is_lost_or_more_are_wanted(make: Make) -> None:
    number = [2]
    a, b, c, d = (make(slot, wanted=lambda: number[0]) for slot in range(4))
    assert [world.rank for world in join_all(a, b)] == [0, 1]
    with ThreadPoolExecutor(4) as pool:
        third, fourth = pool.submit(c.join), pool.submit(d.join)
        until(lambda: len(membership.spares_of(a._client, a.settings.root)) == 2)
        assert (a.waiting(), b.waiting()) == (0, 0)
        b.leave()
        until(a.waiting)
        assert (a.join().rank, third.result().rank) == (0, 1)
        assert not fourth.done()
        number[0] = 3
        until(lambda: a.waiting() and c.waiting())
        again = [pool.submit(each.join) for each in (a, c)]
        assert [each.result().rank for each in (*again, fourth)] == [0, 1, 2]


def test_a_member_whose_proposals_are_all_refused_gives_up_and_says_why(
    make: Make, client: etcd.Client, settings: RunSettings
) -> None:
    def disturb() -> int:
        # Between each look at the members and the proposal, somebody writes a key beside theirs.
        client.put(f"{settings.root}members/somebody", "")
        return 0

    a = make(0, wanted=disturb, join_timeout=1.5)
    have_ready(a)
    until(lambda: isinstance(a._decide(), rules.Propose))
    with pytest.raises(membership.JoinTimeout, match=r"waiting for round 1 to be agreed: the members change"):
        a.join()


def test_who_waits_while_others_train_waits_as_long_as_they_do(make: Make) -> None:
    looks = 0

    def look() -> int:
        nonlocal looks
        looks += 1
        return 0

    a, spare = make(0, max_nodes=1), make(1, max_nodes=1, join_timeout=0.8, wanted=look)
    join_all(a)
    have_ready(spare)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(spare.join)
        time.sleep(1.6)
        assert (a.waiting(), waiting.done()) == (0, False), "a spare interrupts nobody"
        # When it looks again, it has two minutes to join the next round.
        spare.settings = replace(spare.settings, join_timeout=120)
        before = looks
        until(lambda: looks > before + 1)
        a.leave()
        assert waiting.result().rank == 0


def test_fewer_members_than_the_minimum_time_out_with_the_reason(make: Make) -> None:
    a = make(0, min_nodes=2, join_timeout=0.8)
    have_ready(a)
    until(lambda: a._registration is not None and a._registration.member.id in a._view.members)
    with pytest.raises(membership.JoinTimeout, match="there are 1, and 2 is the minimum"):
        a.join()


def test_a_cut_off_member_stops_before_the_others_can_miss_it_and_comes_back(
    client: etcd.Client, make: Make, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, later = fence.now, [0.0]
    monkeypatch.setattr(fence, "now", lambda: now() + later[0])
    a, b = (make(*place, keep_alive_max_attempt=1000) for place in ((0,), (1, proxy.endpoint)))
    join_all(a, b)
    proxy.mode = "silent"
    # The lease has 300 s.
    later[0] = 205
    until(lambda: b.waiting() and not a.waiting(), what="a renewal of the one that is not cut off")
    assert not b.board.expired, "there is time to stop before the supervisor kills"
    later[0] = 255
    assert b.board.expired
    end_leases(client, b)
    until(a.waiting)
    assert a.join().size == 1
    proxy.mode = "pass"
    proxy.cut()
    with ThreadPoolExecutor(1) as pool:
        back = pool.submit(b.join)
        until(a.waiting)
        assert (a.join().rank, back.result().rank) == (0, 1)
    assert not b.board.expired


def test_a_short_outage_of_etcd_interrupts_no_member(make: Make, new_etcd: Callable[..., EtcdServer]) -> None:
    server = new_etcd().start()
    a, b = (make(slot, server.endpoint) for slot in (0, 1))
    join_all(a, b)
    server.stop()
    time.sleep(1)
    server.start()
    time.sleep(1)
    assert (a.waiting(), b.waiting()) == (0, 0)
    late = make(2, server.endpoint)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(late.join)
        until(lambda: a.waiting() and b.waiting())
        assert {world.number for world in join_all(a, b)} == {2} == {joining.result().number}


def test_no_world_forms_beside_one_that_trains_when_etcd_comes_back_empty(
    make: Make, new_etcd: Callable[..., EtcdServer]
) -> None:
    server = new_etcd().start()
    proxy = Proxy(server.port)
    a, b = make(0, server.endpoint, **BRIEF), make(1, proxy.endpoint, **BRIEF)
    join_all(a, b)
    # b does not notice at once that etcd has lost its data.
    proxy.mode = "silent"
    server.stop()
    new_etcd(port=server.port, peer_port=server.peer_port).start()
    until(a.waiting)
    assert (a.join().size, b.board.expired) == (1, True)
    proxy.mode = "refuse"
    proxy.close()


def test_only_a_mark_ends_a_run_and_the_first_one_is_kept(
    make: Make, client: etcd.Client, settings: RunSettings
) -> None:
    a, b = make(0), make(1)
    join_all(a, b)
    a.leave()
    assert membership.outcome_of(client, settings.root) == ""
    membership.end_run(client, settings.root, rules.SUCCESS)
    membership.end_run(client, settings.root, rules.CLOSED)
    assert membership.outcome_of(client, settings.root) == "success"
    for each in (b, make(2)):
        with pytest.raises(membership.RunOver) as over:
            each.join()
        assert over.value.outcome == "success"


def test_rank_zero_publishes_its_store_and_a_broken_round_has_none(make: Make) -> None:
    a, b = make(0), make(1)
    first, second = join_all(a, b)
    assert a.publish_store(first, "10.0.0.1:5000")
    assert b.store_of(second) == "10.0.0.1:5000"
    a.leave()
    until(lambda: b.broken(second))
    assert b.store_of(second) is None
    assert not a.publish_store(first, "late")
    third = b.join()
    assert b.publish_store(third, "10.0.0.2:5000")
    assert not b.publish_store(second, "late")
    assert b.store_of(third) == "10.0.0.2:5000"


def test_a_run_succeeds_when_all_members_of_its_round_have_finished(
    make: Make, client: etcd.Client, settings: RunSettings
) -> None:
    a, b = make(0), make(1)
    join_all(a, b)
    for _ in range(6):
        assert not b.all_finished()
        time.sleep(0.05)
    assert (a.waiting(), b.waiting(), membership.outcome_of(client, settings.root)) == (0, 0, "")
    until(a.all_finished)
    assert membership.outcome_of(client, settings.root) == "success"
    a.leave()
    until(b.all_finished)
    with pytest.raises(membership.RunOver, match="success"):
        make(2).join()


def test_a_member_that_fails_calls_those_that_have_finished_to_a_new_round(
    make: Make, client: etcd.Client, settings: RunSettings
) -> None:
    a, b = make(0), make(1)
    join_all(a, b)
    with ThreadPoolExecutor(1) as pool:
        a.all_finished()
        again = pool.submit(b.join)
        until(lambda: not a.all_finished() and a.waiting())
        assert (a.join().size, again.result().number) == (2, 2)
    until(lambda: [a.all_finished(), b.all_finished()] == [True, True])
    assert membership.outcome_of(client, settings.root) == "success"


def test_a_member_that_is_lost_before_it_has_finished_calls_for_a_new_round(
    make: Make, client: etcd.Client, settings: RunSettings
) -> None:
    a, b = make(0), make(1, **BRIEF)
    join_all(a, b)
    a.all_finished()
    # Dead without a word: the threads end and the lease stays, until its time is over.
    b._closing.set()
    until(a.waiting)
    assert membership.leases_of(client, settings.root, b.identity.base) == ()
    assert not a.all_finished()
    assert (a.join().size, membership.outcome_of(client, settings.root)) == (1, "")


def test_a_member_that_goes_after_it_has_finished_interrupts_nobody(make: Make) -> None:
    a, b, replacement = make(0), make(1), make(2)
    join_all(a, b)
    a.all_finished()
    until(lambda: b._view.whole and b._view.finished, what="b to hear that a has finished")
    a.leave()
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(replacement.join)
        time.sleep(0.5)
        assert b.waiting() == 0, "neither that it goes nor who comes for it interrupts what b still saves"
        until(b.all_finished)
        with pytest.raises(membership.RunOver, match="success"):
            joining.result()


def test_a_member_finishes_while_etcd_is_out_of_reach_and_succeeds_afterwards(
    make: Make, proxy: Proxy
) -> None:
    a, b = make(0), make(1, proxy.endpoint)
    join_all(a, b)
    proxy.mode = "refuse"
    proxy.cut()
    assert not b.all_finished()
    proxy.mode = "pass"
    until(lambda: [a.all_finished(), b.all_finished()] == [True, True])


def test_a_second_run_of_a_release_waits_says_why_and_goes_on_when_the_first_is_gone(
    make: Make, client: etcd.Client, caplog: pytest.LogCaptureFixture
) -> None:
    first, more = (make(slot, run_id="first", lock="training/imagenet") for slot in (0, 1))
    join_all(first, more)
    second = make(0, run_id="second", lock="training/imagenet", join_timeout=1)
    other = make(0, run_id="other", lock="training/another")
    assert join_all(other)[0].size == 1
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(second.join)
        until(lambda: "waiting for run first" in caplog.text)
        assert "it trains with 2 workers, and two runs of training/imagenet must not" in caplog.text
        # Longer than its join_timeout; that one member of the first run goes is not enough.
        first.leave()
        time.sleep(1.5)
        assert not joining.done()
        assert more.join().size == 1, "the first run is disturbed by none of it"
        second.settings = replace(second.settings, join_timeout=120)
        # Its last member dies without a word, and its lease ends.
        more._closing.set()
        end_leases(client, more)
        assert joining.result(timeout=120).size == 1
    assert caplog.text.count("waiting for run first") == 1


@pytest.mark.parametrize(("holds", "comes"), [("run", "run-2"), ("run-2", "run")])
def test_no_run_takes_the_lock_that_another_holds_whichever_name_is_first(
    client: etcd.Client, settings: RunSettings, holds: str, comes: str
) -> None:
    lease = client.lease_grant(60)
    one, other = (RunLock(client, replace(settings, run_id=run, lock="job")) for run in (holds, comes))
    one.claim("m0", lease)
    with pytest.raises(Locked):
        other.claim("m0", lease)
    assert other.awaited() == f"run {holds} to end: it trains with 1 workers"
    one.claim("m1", lease)
    client.lease_revoke(lease)
    other.claim("m0", client.lease_grant(60))


def test_of_two_runs_that_start_at_the_same_time_one_trains(make: Make) -> None:
    members = [make(0, run_id=f"run-{n % 2}", lock="training/imagenet", min_nodes=2) for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        joining = [pool.submit(each.join) for each in members]
        until(lambda: sum(each.done() for each in joining) == 2)
        time.sleep(0.5)
        done = {each.settings.run_id for each, future in zip(members, joining, strict=True) if future.done()}
        assert len(done) == 1
        for each in members:
            if each.settings.run_id in done:
                each.leave()
        assert {future.result(timeout=120).size for future in joining} == {2}


def test_a_waiting_run_that_has_already_succeeded_ends(make: Make, client: etcd.Client) -> None:
    join_all(make(0, run_id="first", lock="training/imagenet"))
    second = make(0, run_id="second", lock="training/imagenet")
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(second.join)
        time.sleep(0.3)
        membership.end_run(client, second.settings.root, rules.SUCCESS)
        with pytest.raises(membership.RunOver):
            joining.result(timeout=120)


def test_foreign_keys_among_the_members_are_ignored(
    make: Make, client: etcd.Client, settings: RunSettings
) -> None:
    for name, value in (("text", "hello"), ("number", "5"), ("other", '{"a": 1}'), ("list", "[]")):
        client.put(f"{settings.root}members/{name}", value)
    a, b = make(0), make(1)
    assert [world.size for world in join_all(a, b)] == [2, 2]
    client.put(f"{settings.root}members/later", "hello")
    client.put(f"{settings.root}elsewhere", "hello")
    time.sleep(0.3)
    assert (a.waiting(), b.waiting()) == (0, 0)
    b.leave()
    until(a.waiting)


def test_a_thread_that_ends_unexpectedly_ends_the_member_with_a_sentence(
    make: Make, client: etcd.Client, settings: RunSettings
) -> None:
    a, b = make(0), make(1)
    join_all(a)
    client.put(f"{settings.root}round", "hello")
    with pytest.raises(
        membership.ThreadEnded, match=r"bireme-follow ended .*the key .*round .*cannot be read"
    ):
        until(a.waiting)
    for ask in (a.join, a.all_finished, b.join):
        with pytest.raises(membership.ThreadEnded):
            ask()


# At the moment of a write ----------------------------------------


def before_writing(member: Rendezvous, key: str, act: Callable[[], object]) -> None:
    """Have something happen once, between a member's decision to write this key and the write."""
    client, told = member._client, list[str]()
    txn, wanted = client.txn, etcd.put_op(f"{member.settings.root}{key}", "")["request_put"]["key"]

    def late(compare: Any, success: Any) -> Any:
        if not told and wanted == success[0]["request_put"]["key"]:
            told.append(key)
            act()
        return txn(compare, success)

    client.txn = late  # type: ignore[method-assign]


def test_who_has_finished_counts_itself_where_its_view_lacks_that() -> None:
    view = rules.View(round=rules.Round(1, ("a", "b")), finished=frozenset({"b"}))
    assert view.all_finished("a")
    assert not view.all_finished("b")


def test_who_registers_while_a_round_is_proposed_is_in_it(make: Make) -> None:
    a, late = make(0), make(1)
    with ThreadPoolExecutor(1) as pool:
        joining: list[Future[membership.World]] = []

        def register() -> None:
            joining.append(pool.submit(late.join))
            until(lambda: any("m1-" in kv.key for kv in late._client.range(late.settings.root).keys))

        before_writing(a, "round", register)
        world = a.join()
        assert (world.number, world.size) == (1, 2)
        assert joining[0].result().number == 1


def test_a_member_whose_lease_has_ended_proposes_no_round(make: Make, client: etcd.Client) -> None:
    a = make(0, keep_alive_interval=60)

    def end_lease() -> None:
        (lease,) = membership.leases_of(client, a.settings.root, a.identity.base)
        client.lease_revoke(lease)

    before_writing(a, "round", end_lease)
    assert a.join().number == 1
    (latest,) = client.range(a.settings.root + "round").keys
    assert rules.round_of(latest.value, 0).members == (f"{a.identity.base}.2",)


def test_no_round_is_agreed_when_the_run_has_just_ended(make: Make, client: etcd.Client) -> None:
    a = make(0)
    before_writing(a, "round", lambda: membership.end_run(client, a.settings.root, rules.SUCCESS))
    with pytest.raises(membership.RunOver, match="success"):
        a.join()
    assert not client.get(a.settings.root + "round")


def test_no_success_is_written_when_a_new_round_was_agreed_meanwhile(make: Make, client: etcd.Client) -> None:
    a = make(0)
    join_all(a)
    round_2 = Round(2, (), token=2).to_json()
    before_writing(a, "done", lambda: client.put(a.settings.root + "round", round_2))
    until(lambda: a.all_finished() or a.waiting())
    assert not client.get(a.settings.root + "done")


def test_who_joins_knows_the_latest_round_before_it_says_from_which_on_it_can_be_placed(
    make: Make, client: etcd.Client
) -> None:
    a, late = make(0), make(1)
    assert [a.join().number for _ in range(3)] == [1, 2, 3]
    # Etcd takes its time to tell what there is, and none to grant a lease.
    spans, told = late._client.spans, threading.Event()
    late._client.spans = lambda *asked: (told.wait(1), spans(*asked))[1]  # type: ignore[method-assign]
    prefix = f"{late.settings.root}members/{late.identity.base}"
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(late.join)
        until(lambda: client.range(prefix).keys)
        (registered,) = client.range(prefix).keys
        told.set()
        until(a.waiting)
        assert a.join().number == joining.result().number == 4
    assert json.loads(registered.value)["ready"] == 4


def test_who_has_the_first_key_knows_it_although_an_older_answer_comes_later(make: Make) -> None:
    a, b = make(0, min_nodes=2), make(1, min_nodes=2)
    span, read, registered = a._client.span, threading.Event(), threading.Event()

    def late(*asked: Any, **more: Any) -> Any:
        a._client.span = span  # type: ignore[method-assign]
        found = span(*asked, **more)
        read.set()
        registered.wait(60)
        return found

    with ThreadPoolExecutor(2) as pool:
        joining = pool.submit(b.join)
        until(lambda: any("m1-" in kv.key for kv in a._client.range(a.settings.root).keys))
        a._client.span = late  # type: ignore[method-assign]
        older = pool.submit(a._find_first)
        assert read.wait(60)
        have_ready(a)
        registered.set()
        older.result()
        assert a._registration
        assert a._first == a._registration.member.id
        assert (a.join().rank, joining.result().rank) == (0, 1)


def test_who_gets_ready_while_its_own_key_is_read_keeps_its_lease(make: Make) -> None:
    a, b = make(0), make(1)
    join_all(a, b)
    spans, read, written = a._client.spans, threading.Event(), threading.Event()

    def late(*asked: etcd.Span) -> Any:
        found = spans(*asked)
        read.set()
        written.wait(60)
        return found

    a._client.spans = late  # type: ignore[method-assign]
    assert a._watch
    a._watch.close()
    assert read.wait(60)
    with ThreadPoolExecutor(2) as pool:
        joining = [pool.submit(each.join) for each in (a, b)]
        until(lambda: a._registration is not None and a._registration.member.ready == 2)
        written.set()
        assert [each.result().number for each in joining] == [2, 2]
    assert a._registration
    assert a._registration.member.id == f"{a.identity.base}.1"


def test_a_write_of_a_member_that_etcd_carries_out_late_changes_nothing(make: Make) -> None:
    a = make(0)
    a.join()
    txn, late = a._client.txn, list[Any]()
    mine = etcd.put_op(f"{a.settings.root}members/{a.identity.base}.1", "")["request_put"]["key"]

    def unanswered(compare: Any, success: Any) -> Any:
        if not late and success[0]["request_put"]["key"] == mine:
            late.append((compare, success))
            raise etcd.Ambiguous("no answer")
        return txn(compare, success)

    a._client.txn = unanswered  # type: ignore[method-assign]
    assert a.join().number == 2
    assert not txn(*late[0]).succeeded


def test_of_two_that_leave_a_round_at_once_the_first_call_stays(make: Make, client: etcd.Client) -> None:
    a, b = make(0), make(1)
    join_all(a, b)
    key = a.settings.root + "call"
    said = json.dumps({"round": 1, "leaver": f"{a.identity.base}.1", "cut": True})
    before_writing(b, "call", lambda: client.put(key, said))
    with ThreadPoolExecutor(1) as pool:
        back = pool.submit(b.join)
        until(a.waiting)
        a.leave()
        assert back.result().size == 1
    assert [each.value for each in client.range(key).keys] == [said]


def test_how_a_run_has_ended_is_not_written_again_by_who_finishes(make: Make, client: etcd.Client) -> None:
    a = make(0)
    join_all(a)
    before_writing(a, "done", lambda: membership.end_run(client, a.settings.root, rules.CLOSED))
    until(lambda: a.all_finished() or a.outcome)
    assert membership.outcome_of(client, a.settings.root) == rules.CLOSED


def test_five_live_agents_and_a_spare_that_joins_while_a_round_closes_make_one_world_of_four(
    make: Make,
) -> None:
    """What ended a whole job elsewhere: https://github.com/NVIDIA/nvidia-resiliency-ext/issues/348"""
    members = [make(slot, min_nodes=2) for slot in range(5)]
    assert [world.rank for world in join_all(*members[:4])] == [0, 1, 2, 3]
    with ThreadPoolExecutor(6) as pool:
        fifth = pool.submit(members[4].join)
        until(lambda: len(membership.spares_of(members[0]._client, members[0].settings.root)) == 1)
        spare = make(5, min_nodes=2)
        joining: list[Future[membership.World]] = []

        def join_now() -> None:
            if joining:
                return
            joining.append(pool.submit(spare.join))
            until(lambda: any("m5-" in kv.key for kv in spare._client.range(spare.settings.root).keys))

        for each in members[:4]:
            before_writing(each, "round", join_now)
        # A process of one worker fails, and all meet again.
        again = [pool.submit(each.join) for each in members[:4]]
        worlds = [each.result() for each in again]
        assert [(world.number, world.rank, world.size) for world in worlds] == [(2, n, 4) for n in range(4)]
        assert [each.done() for each in (fifth, *joining)] == [False, False]
        for left in (0, 1):
            members[left].leave()
            here = members[left + 1 :] if left else members[1:4]
            until(lambda here=here: all(each.waiting() for each in here))  # type: ignore[misc]
            last = [pool.submit(each.join) for each in here]
            assert [each.result().size for each in last] == [4] * len(here)
        assert joining[0].result().size == 4
