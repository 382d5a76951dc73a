"""Which elastic jobs grow and which shrink: a pure function of the jobs, the free places and the time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

MARGIN = 1.5
"""A job gives a worker to a smaller one only if it keeps this many times its workers: none comes back."""


@dataclass(frozen=True)
class ElasticJob:
    """A running job whose number of workers may change.

    ``workers``: of now; ``minimum`` and ``maximum`` bound it, ``step`` workers come and go together.
    ``changed_at``: when it was resized last, in seconds of the clock of ``now``; it grows again, and gives to
    others, ``cooldown`` seconds later. ``reserve``: the places that it leaves free."""

    name: str
    workers: int
    minimum: int
    maximum: int
    step: int = 1
    priority: int = 0
    changed_at: float = -math.inf
    cooldown: float = 300.0
    reserve: int = 0


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


def decide(jobs: Sequence[ElasticJob], pool: Pool, now: float) -> list[Resize]:
    """What changes now among jobs whose workers fit these places: at most one resize each, shrinking first.

    What a job has beyond its minimum is borrowed: it shrinks at once when pods of its own or a higher
    priority need more places than are free. Jobs of the lowest priority give first, and among them the
    largest. Jobs grow into what is free beyond what Pending pods need, the highest priority first, and among
    equals the smallest. When nothing is free, a step of workers moves from a job to another of the same
    priority if the first keeps ``MARGIN`` times the workers of the second. ``now`` is in seconds.
    """
    short = sum(pool.wanted.values()) - pool.free
    if short > 0:
        return _shrink(jobs, pool)
    return _grow(jobs, -short, now)


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
    """One step moves from the largest to the smallest of the jobs of a priority, if they differ by much."""
    for priority in sorted({job.priority for job in jobs.values()}, reverse=True):
        equals = [job for job in jobs.values() if job.priority == priority]
        takers = [job for job in equals if _can_grow(job)]
        givers = [job for job in equals if _can_shrink(job)]
        if not takers or not givers:
            continue
        taker, giver = min(takers, key=_gain), min(givers, key=_loss)
        left = giver.workers - giver.step
        if taker.name == giver.name or taker.step > giver.step or left < MARGIN * taker.workers:
            continue
        why = f"{taker.name} has far fewer workers"
        return [
            Resize(giver.name, left, why),
            Resize(taker.name, taker.workers + taker.step, f"{giver.name} has given way: {why}"),
        ]
    return []


def _can_grow(job: ElasticJob) -> bool:
    return job.workers + job.step <= job.maximum


def _can_shrink(job: ElasticJob) -> bool:
    return job.workers - job.step >= job.minimum


def _gain(job: ElasticJob) -> tuple[int, int, str]:
    """Orders jobs that may grow: the first is to have the next worker."""
    return -job.priority, job.workers, job.name


def _loss(job: ElasticJob) -> tuple[int, int, str]:
    """Orders jobs that may shrink: the first keeps the most."""
    return job.priority, job.step - job.workers, job.name
