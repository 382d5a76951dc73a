"""Which elastic jobs grow and which shrink: a pure function of the jobs, the free places and the time."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

WORTH = 0.1
"""A further worker that makes a job faster by less than this share of what the first did is not worth it."""
MARGIN = 1.5
"""A worker moves to another job only if it is worth this many times more there, so none goes to and fro."""


@dataclass(frozen=True)
class ElasticJob:
    """A running job whose number of workers may change.

    ``workers``: of now; ``minimum`` and ``maximum`` bound it, ``step`` workers come and go together.
    ``pool``: the places that its workers fit. ``weight``: its share beside others of its priority.
    ``changed_at``: when it was resized last, in seconds of the same clock as ``now``; it grows again, and
    gives to others, ``cooldown`` seconds later. ``reserve``: the places that it leaves free. ``saving``: it
    writes a checkpoint and is left alone. ``throughput``: what it reported per number of workers, in any
    unit; without it each worker counts the same."""

    name: str
    pool: str
    workers: int
    minimum: int
    maximum: int
    step: int = 1
    weight: float = 1.0
    priority: int = 0
    changed_at: float = -math.inf
    cooldown: float = 300.0
    reserve: int = 0
    saving: bool = False
    throughput: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Pool:
    """Places for workers of one kind.

    ``free``: workers that would fit now. ``wanted``: the places that Pending pods need, by their priority;
    pods that fit into what is free count too."""

    name: str
    free: int
    wanted: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Resize:
    """A job shall have ``workers`` workers; ``why`` is a sentence for its log and its events."""

    job: str
    workers: int
    why: str


def decide(jobs: Sequence[ElasticJob], pools: Mapping[str, Pool], now: float) -> tuple[Resize, ...]:
    """What changes now, at most one resize for a job, those that shrink first.

    What a job has beyond its minimum is borrowed: it shrinks at once when pods of its own or a higher
    priority need more places than are free. Jobs of the lowest priority give first, and among them those
    that lose the least. Jobs grow into what is free beyond what Pending pods need, the highest priority
    first, and among equals where another worker is worth most by throughput and weight. When nothing is
    free, a step of workers moves from a job to another of the same priority where it is worth ``MARGIN``
    times more. ``now`` is in seconds.
    """
    by_pool: dict[str, list[ElasticJob]] = defaultdict(list)
    for job in jobs:
        by_pool[job.pool].append(job)
    found = [
        resize for name, there in by_pool.items() if name in pools for resize in _one(there, pools[name], now)
    ]
    before = {job.name: job.workers for job in jobs}
    return tuple(sorted(found, key=lambda resize: resize.workers > before[resize.job]))


def _one(jobs: Sequence[ElasticJob], pool: Pool, now: float) -> list[Resize]:
    movable = [job for job in jobs if not job.saving]
    short = sum(pool.wanted.values()) - pool.free
    if short > 0:
        return _shrink(movable, pool)
    return _grow(movable, -short, now)


def _shrink(jobs: Sequence[ElasticJob], pool: Pool) -> list[Resize]:
    """Workers beyond the minimum give way to Pending pods that are not less urgent than their job."""
    free, sizes = pool.free, {job.name: job for job in jobs}
    reasons: dict[str, str] = {}
    for priority in sorted(pool.wanted, reverse=True):
        free -= pool.wanted[priority]
        lower = [_loss(job) for job in sizes.values() if job.priority <= priority and _can_shrink(job)]
        heapq.heapify(lower)
        while free < 0 and lower:
            name = heapq.heappop(lower)[-1]
            # `free` counts places that are promised, so that the next job gives only what is still missing.
            sizes[name] = smaller = replace(sizes[name], workers=sizes[name].workers - sizes[name].step)
            free += smaller.step
            reasons[name] = f"pods of priority {priority} wait for places in {pool.name}"
            if _can_shrink(smaller):
                heapq.heappush(lower, _loss(smaller))
        # What nobody can give is not taken twice, for the next priority.
        free = max(free, 0)
    return [Resize(name, sizes[name].workers, why) for name, why in reasons.items()]


def _grow(jobs: Sequence[ElasticJob], free: int, now: float) -> list[Resize]:
    # A time far ahead is of a clock that was wrong: waiting for it could take years.
    ready = {job.name: job for job in jobs if abs(now - job.changed_at) >= job.cooldown}
    sizes = dict(ready)
    heap = [_gain(job) for job in ready.values() if _can_grow(job)]
    heapq.heapify(heap)
    while heap and free > 0:
        name = heapq.heappop(heap)[-1]
        job = sizes[name]
        if free - job.step < job.reserve:
            continue
        sizes[name] = larger = replace(job, workers=job.workers + job.step)
        free -= job.step
        if _can_grow(larger):
            heapq.heappush(heap, _gain(larger))
    grown = [
        Resize(name, job.workers, "places are free")
        for name, job in sizes.items()
        if job.workers != ready[name].workers
    ]
    return grown or _even_out(ready)


def _even_out(jobs: Mapping[str, ElasticJob]) -> list[Resize]:
    """One step moves between two jobs of a priority, if it is worth much more at the other."""
    for priority in sorted({job.priority for job in jobs.values()}, reverse=True):
        equals = [job for job in jobs.values() if job.priority == priority]
        takers = [job for job in equals if _can_grow(job)]
        givers = [job for job in equals if _can_shrink(job)]
        if not takers or not givers:
            continue
        taker, giver = min(takers, key=_gain), min(givers, key=_loss)
        smaller = replace(giver, workers=giver.workers - giver.step)
        if taker.name == giver.name or taker.step > giver.step or worth(taker) < MARGIN * worth(smaller):
            continue
        why = f"a worker is worth more in {taker.name}"
        return [
            Resize(giver.name, smaller.workers, why),
            Resize(taker.name, taker.workers + taker.step, f"{giver.name} has given way: {why}"),
        ]
    return []


def _can_grow(job: ElasticJob) -> bool:
    return job.workers + job.step <= job.maximum and _share(job) > WORTH


def _can_shrink(job: ElasticJob) -> bool:
    return job.workers - job.step >= job.minimum


def _gain(job: ElasticJob) -> tuple[float, float, str]:
    """Orders jobs that may grow: the first is to have the next worker."""
    return -job.priority, -worth(job), job.name


def _loss(job: ElasticJob) -> tuple[float, float, str]:
    """Orders jobs that may shrink: the first loses the least."""
    return job.priority, worth(replace(job, workers=job.workers - job.step)), job.name


def worth(job: ElasticJob) -> float:
    """What one more worker is worth: its share of the job's throughput, times the job's weight.

    A job without figures is taken to be as much faster as it has workers more, so that jobs of equal weight
    get equal numbers of workers.
    """
    return job.weight * _share(job) / max(job.workers, 1)


def _share(job: ElasticJob) -> float:
    """How much of a worker another worker is to the job: 1 is as much as each has been, 0 is nothing."""
    if len(job.throughput) < 2 or job.workers < 1:
        return 1.0
    return max(_exponent(job.throughput, job.workers), 0.0)


def _exponent(throughput: Mapping[int, float], workers: int) -> float:
    """The exponent of the power law between the two measured sizes nearest to the step beyond ``workers``."""
    sizes = sorted(size for size, rate in throughput.items() if size > 0 and rate > 0)
    if len(sizes) < 2:
        return 1.0
    pair = next((each for each in pairwise(sizes) if workers < each[1]), (sizes[-2], sizes[-1]))
    small, large = pair
    return math.log(throughput[large] / throughput[small]) / math.log(large / small)
