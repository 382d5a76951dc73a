"""Who grows and who shrinks: by free places, priority and size."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bireme.autoscale.decisions import ElasticJob, Pool, Resize, decide
from tests.support.tiers import core

NOW = 10_000.0
SEEDS = core(range(20), of=[range(20), range(20, 300)])


def job(name: str, workers: int, **more: object) -> ElasticJob:
    facts = {"minimum": 1, "maximum": 8, **more}
    return ElasticJob(name, workers, **facts)  # type: ignore[arg-type]


def sizes(jobs: list[ElasticJob], free: int, wanted: dict[int, int] | None = None) -> dict[str, int]:
    resized = {each.job: each.workers for each in decide(jobs, Pool("p5", free, wanted or {}), NOW)}
    return {each.name: resized.get(each.name, each.workers) for each in jobs}


def test_a_job_grows_into_what_is_free() -> None:
    assert sizes([job("a", 2)], free=3) == {"a": 5}
    assert sizes([job("a", 2, maximum=4)], free=3) == {"a": 4}
    assert sizes([job("a", 2)], free=0) == {"a": 2}


def test_a_job_grows_in_its_steps_and_leaves_its_reserve() -> None:
    assert sizes([job("a", 2, step=2)], free=3) == {"a": 4}
    assert sizes([job("a", 2, reserve=2)], free=3) == {"a": 3}


def test_what_pending_pods_need_is_not_free() -> None:
    assert sizes([job("a", 2)], free=3, wanted={-10: 2}) == {"a": 3}


def test_a_job_gives_way_to_pods_that_are_not_less_urgent() -> None:
    assert sizes([job("a", 6)], free=0, wanted={10: 2}) == {"a": 4}
    assert sizes([job("a", 6)], free=1, wanted={10: 2}) == {"a": 5}
    assert sizes([job("a", 6)], free=0, wanted={0: 2}) == {"a": 4}
    assert sizes([job("a", 6)], free=0, wanted={-5: 2}) == {"a": 6}
    assert sizes([job("a", 3, minimum=2)], free=0, wanted={10: 4}) == {"a": 2}


def test_the_lowest_priority_gives_first_and_among_equals_the_largest() -> None:
    low, high = job("low", 4), job("high", 4, priority=5)
    assert sizes([low, high], free=0, wanted={10: 4}) == {"low": 1, "high": 3}
    assert sizes([job("large", 6), job("small", 2)], free=0, wanted={10: 2}) == {"large": 4, "small": 2}


def test_places_go_to_the_most_urgent_pods_first() -> None:
    jobs = [job("middle", 3, priority=5), job("low", 3)]
    # The two places that are free are taken by priority 10, so priority 3 can ask `low` only.
    assert sizes(jobs, free=2, wanted={10: 2, 3: 1}) == {"middle": 3, "low": 2}


def test_equals_share_what_is_free() -> None:
    assert sizes([job("a", 1), job("b", 1)], free=4) == {"a": 3, "b": 3}
    assert sizes([job("a", 3), job("b", 1)], free=4) == {"a": 4, "b": 4}


def test_a_resize_that_a_wrong_clock_has_dated_ahead_does_not_hold_a_job_up() -> None:
    assert sizes([job("a", 4, changed_at=NOW + 3600, cooldown=300)], free=2) == {"a": 6}
    assert sizes([job("a", 4, changed_at=NOW + 5, cooldown=300)], free=2) == {"a": 4}


def test_a_job_grows_after_its_cooldown_but_gives_way_at_once() -> None:
    fresh = job("a", 4, changed_at=NOW - 60, cooldown=300)
    assert sizes([fresh], free=2) == {"a": 4}
    assert sizes([fresh], free=0, wanted={10: 1}) == {"a": 3}


def test_a_worker_moves_to_a_job_that_came_later() -> None:
    jobs = [job("first", 8), job("late", 1)]
    first, then = decide(jobs, Pool("p5", 0), NOW)
    assert (first.job, first.workers) == ("first", 7)
    assert (then.job, then.workers) == ("late", 2)
    assert decide([job("a", 5), job("b", 4)], Pool("p5", 0), NOW) == []


def test_each_resize_says_why() -> None:
    assert decide([job("a", 2)], Pool("p5", 1), NOW) == [Resize("a", 3, "places are free")]
    (shrunk,) = decide([job("a", 2)], Pool("p5", 0, {10: 1}), NOW)
    assert shrunk.why == "pods of priority 10 wait for places in p5"


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_bounds_and_places_hold_whatever_the_jobs(seeds: range) -> None:
    for seed in seeds:
        assert_bounds_and_places(seed)


def assert_bounds_and_places(seed: int) -> None:
    chance = random.Random(seed)
    wanted = {chance.randrange(-5, 9): chance.randrange(9) for _ in range(3)}
    pool = Pool("p5", chance.randrange(20), wanted)
    jobs = []
    for number in range(chance.randrange(1, 30)):
        minimum = chance.randrange(1, 5)
        workers = chance.randrange(minimum, minimum + 9)
        facts = {
            "minimum": minimum,
            "maximum": chance.randrange(workers, workers + 9),
            "step": chance.randrange(1, 4),
            "priority": chance.randrange(-5, 5),
            "changed_at": NOW - chance.randrange(600),
            "reserve": chance.randrange(3),
        }
        jobs.append(ElasticJob(f"job-{number}", workers, **facts))  # type: ignore[arg-type]
    resized = decide(jobs, pool, NOW)
    assert len({each.job for each in resized}) == len(resized)
    before = {each.name: each for each in jobs}
    taken = 0
    for each in resized:
        was = before[each.job]
        assert was.minimum <= each.workers <= was.maximum
        assert each.workers != was.workers
        assert (each.workers - was.workers) % was.step == 0
        taken += each.workers - was.workers
    assert taken <= max(pool.free - sum(pool.wanted.values()), 0)
    assert decide(list(reversed(jobs)), pool, NOW) or not resized


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_jobs_come_to_rest_when_nothing_else_changes(seeds: range) -> None:
    for seed in seeds:
        assert_rest(seed)


def assert_rest(seed: int) -> None:
    chance = random.Random(seed)
    jobs = {
        name: ElasticJob(
            name,
            workers,
            1,
            chance.randrange(workers, 20),
            step=chance.randrange(1, 3),
            priority=chance.randrange(2),
            cooldown=0,
        )
        for name in ("a", "b", "c", "d")
        for workers in [chance.randrange(1, 20)]
    }
    free, looks = chance.choice([0, chance.randrange(20)]), 0
    while resized := decide(list(jobs.values()), Pool("p5", free), NOW):
        for each in resized:
            free += jobs[each.job].workers - each.workers
            jobs[each.job] = replace(jobs[each.job], workers=each.workers)
        looks += 1
        assert looks < 100, "a worker goes to and fro"
