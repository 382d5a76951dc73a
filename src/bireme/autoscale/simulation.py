"""A cluster under a trace of jobs, against a virtual clock: with elastic jobs, and with static ones.

The elastic cluster decides with `decide`, as the controller does. Both start jobs whose places are free,
the highest priority first and then the oldest, and smaller jobs pass larger ones that do not fit, as
Kueue's default queue lets them. Jobs of a lower priority are preempted for those that wait. Which node a
worker is on does not matter, so nothing is lost to fragments.
"""

from __future__ import annotations

import heapq
import random
from bisect import insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from bireme.autoscale.decisions import ElasticJob, Pool, decide
from bireme.autoscale.trace import TracedJob
from bireme.core.errors import BiremeError

_POOL = "workers"
_POINTS = 240
"""Points of the curves of a picture."""
_DAY = 86400.0
_PATIENCE = 10
"""No job takes so many times what the longest takes with its fewest workers, and 30 days more."""


@dataclass(frozen=True)
class Settings:
    """A cluster of ``nodes`` with ``places`` workers each, and how its jobs behave.

    ``scaling``: n workers do n ** scaling times the work of one. Seconds: ``resize`` is what a job does not
    train when its workers change, ``restart`` when it lost one without notice, ``checkpoint`` the time
    between two checkpoints, ``every`` how often the controller decides, ``cooldown`` the controller's,
    ``repair`` until a lost node is back. ``failures``: of a node in a year.
    """

    nodes: int
    places: int = 1
    scaling: float = 0.9
    resize: float = 5.0
    restart: float = 30.0
    checkpoint: float = 600.0
    every: float = 30.0
    cooldown: float = 300.0
    repair: float = 3600.0
    failures: float = 6.0
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """What became of a trace. Times are in seconds, shares between 0 and 1.

    ``utilisation``: of the places, from the first submission to the last. ``useful``: the same in work
    done, where the work of a job is that of its requested workers, without what failures and restarts cost.
    ``waiting`` and ``finishing``: from the submission of each job to its first worker and to its end.
    ``preempted``: jobs stopped for others. ``failures``: nodes lost; ``restarted``: how often jobs lost
    workers with them. ``window``: from the first submission to the last. ``busy`` and
    ``queued``: points of time, and places in use and jobs that wait until the next one, on average.
    """

    jobs: int
    utilisation: float
    useful: float
    waiting: tuple[float, ...]
    finishing: tuple[float, ...]
    end: float
    preempted: int
    grown: int
    shrunk: int
    failures: int
    restarted: int
    window: float
    busy: tuple[tuple[float, int], ...]
    queued: tuple[tuple[float, int], ...]


@dataclass
class _Run:
    """A job and how far it is."""

    job: TracedJob
    left: float
    workers: int = 0
    began: float = -1.0
    since: float = 0.0
    version: int = 0
    changed: float = -1e9


def simulate(trace: Sequence[TracedJob], settings: Settings, elastic: bool) -> Outcome:
    """Run the jobs of ``trace`` to their ends; jobs keep their requested size where ``elastic`` is False.

    Raises BiremeError when nodes are lost so often that the jobs do not end.
    """
    return _Cluster(trace, settings, elastic).run()


class _Cluster:
    """The places, the jobs that wait and run, and what happens next."""

    def __init__(self, trace: Sequence[TracedJob], settings: Settings, elastic: bool) -> None:
        self._settings, self._elastic = settings, elastic
        self._capacity = self._free = settings.nodes * settings.places
        # Of their own, so that static and elastic jobs lose nodes at the same times.
        self._moments = random.Random(settings.seed)
        self._chance = random.Random(settings.seed + 1)
        self._events: list[tuple[float, int, str, _Run | None, int]] = []
        self._number = 0
        self._now = 0.0
        self._waiting: list[_Run] = []
        self._running: dict[str, _Run] = {}
        self._ended: list[tuple[_Run, float]] = []
        self._submitted = max((job.submit for job in trace), default=0.0)
        self._first = min((job.submit for job in trace), default=0.0)
        self._busy_seconds = self._useful_seconds = 0.0
        self._preempted = self._grown = self._shrunk = self._failures = self._restarted = 0
        self._width = max((self._submitted - self._first) / _POINTS, 1e-9)
        self._busy, self._queued = [0.0] * (_POINTS + 1), [0.0] * (_POINTS + 1)
        self._lost = 0
        self._stale = False
        for job in trace:
            run = _Run(job, job.duration * self._speed(job, job.workers))
            self._at(job.submit, "submit", run)
        self._left = len(trace)
        slowest = max((self._longest(job) for job in trace), default=0.0)
        self._patience, self._progress = slowest * _PATIENCE + 30 * _DAY, self._submitted
        self._at(self._first, "decide")
        self._at(self._first + self._until_failure(), "fail")

    def run(self) -> Outcome:
        """Until all jobs have ended."""
        while self._left:
            when, _, what, run, version = heapq.heappop(self._events)
            self._pass(when)
            if when - self._progress > self._patience:
                raise self._stuck()
            if run is not None and version != run.version:
                continue
            if what == "submit" and run:
                insort(self._waiting, run, key=_order)
                self._start()
            elif what == "end" and run:
                self._end(run)
            elif what == "decide":
                self._decide()
            elif what == "fail":
                self._fail()
            elif what == "repair":
                self._back()
        window = max(self._submitted - self._first, 1e-9) * self._capacity
        return Outcome(
            len(self._ended),
            self._busy_seconds / window,
            self._useful_seconds / window,
            tuple(run.began - run.job.submit for run, _ in self._ended),
            tuple(end - run.job.submit for run, end in self._ended),
            self._now - self._first,
            self._preempted,
            self._grown,
            self._shrunk,
            self._failures,
            self._restarted,
            self._submitted - self._first,
            self._points(self._busy),
            self._points(self._queued),
        )

    def _at(self, when: float, what: str, run: _Run | None = None) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, what, run, run.version if run else 0))

    def _pass(self, when: float) -> None:
        """Time passes; the places that are busy meanwhile count until the last submission."""
        until = min(when, self._submitted)
        if until > self._now:
            self._busy_seconds += (until - self._now) * self._taken()
            for curve, value in ((self._busy, self._taken()), (self._queued, len(self._waiting))):
                self._add(curve, self._now - self._first, until - self._first, value)
        self._now = when

    def _add(self, curve: list[float], begin: float, end: float, value: int) -> None:
        """Add ``value`` from ``begin`` to ``end`` to the sums of a curve's intervals."""
        while begin < end:
            interval = min(int(begin / self._width), _POINTS)
            until = min(end, (interval + 1) * self._width) if interval < _POINTS else end
            until = max(until, min(end, begin + self._width * 1e-6))
            curve[interval] += value * (until - begin)
            begin = until

    def _points(self, curve: Sequence[float]) -> tuple[tuple[float, int], ...]:
        return tuple(
            (round(interval * self._width, 1), round(total / self._width))
            for interval, total in enumerate(curve[:_POINTS])
        )

    def _taken(self) -> int:
        return self._capacity - self._free - self._lost

    def _speed(self, job: TracedJob, workers: int) -> float:
        """Work a second: that of the requested workers is their number."""
        return job.workers * float(workers / job.workers) ** self._settings.scaling if workers else 0.0

    def _longest(self, job: TracedJob) -> float:
        least = job.least if self._elastic else job.workers
        return job.duration * self._speed(job, job.workers) / self._speed(job, least)

    def _stuck(self) -> BiremeError:
        run, settings = [*self._running.values(), *self._waiting][0], self._settings
        return BiremeError(
            f"{run.job.name} with {run.job.workers} workers does not end: no job has for "
            f"{self._patience / _DAY:.0f} days, as {settings.nodes} nodes are lost {settings.failures:g} "
            "times a year each; lower --failures, or raise --nodes"
        )

    def _train(self, run: _Run, until: float) -> None:
        """Count the work done since the last change of its workers."""
        if run.workers and until > run.since:
            speed = self._speed(run.job, run.workers)
            before = run.left
            run.left = max(run.left - speed * (until - run.since), 0.0)
            counted = min(until, self._submitted) - run.since
            if counted > 0:
                self._useful_seconds += min(before, speed * counted)
            run.since = until

    def _set(self, run: _Run, workers: int, pause: float) -> None:
        """Change the workers of a job; it trains on after ``pause`` seconds."""
        self._train(run, self._now)
        self._free += run.workers - workers
        run.workers, run.since = workers, max(run.since, self._now) + pause
        run.changed = self._now
        run.version += 1
        if workers:
            self._at(run.since + run.left / self._speed(run.job, workers), "end", run)
        self._stale = True

    def _start(self) -> None:
        """Start the jobs that fit, and those for which jobs of a lower priority can be stopped."""
        left: list[_Run] = []
        stopped: list[_Run] = []
        lowest = min((run.job.priority for run in self._running.values()), default=None)
        for place, run in enumerate(self._waiting):
            least, urgent = self._least(run), lowest is not None and lowest < run.job.priority
            if self._free <= 0 and not urgent:
                left += self._waiting[place:]
                break
            if self._free < least and not (urgent and self._preempt(run.job.priority, least, stopped)):
                left.append(run)
                continue
            self._begin(run, min(run.job.workers, self._free))
        self._waiting = sorted([*left, *stopped], key=_order)

    def _least(self, run: _Run) -> int:
        return run.job.least if self._elastic else run.job.workers

    def _begin(self, run: _Run, workers: int) -> None:
        pause = self._settings.restart if run.began >= 0 else 0.0
        if run.began < 0:
            run.began = self._now
        run.since = self._now
        self._running[run.job.name] = run
        self._set(run, workers, pause)
        if run.began == self._now:
            run.changed = -1e9

    def _preempt(self, priority: int, least: int, stopped: list[_Run]) -> bool:
        """Stop jobs of a lower priority until ``least`` places are free; none if that is not enough."""
        lower = [run for run in self._running.values() if run.job.priority < priority]
        if self._free + sum(run.workers for run in lower) < least:
            return False
        for run in sorted(lower, key=lambda each: (each.job.priority, -each.began)):
            if self._free >= least:
                break
            # It saves in its grace period.
            self._stop(run)
            stopped.append(run)
            self._preempted += 1
        return True

    def _stop(self, run: _Run) -> None:
        self._set(run, 0, 0)
        del self._running[run.job.name]

    def _end(self, run: _Run) -> None:
        self._stop(run)
        self._ended.append((run, self._now))
        self._progress = max(self._progress, self._now)
        self._left -= 1
        self._start()

    def _decide(self) -> None:
        self._at(self._now + self._settings.every, "decide")
        if not self._elastic or not (self._stale or self._free > 0 or self._waiting):
            return
        jobs = [
            ElasticJob(
                name,
                _POOL,
                run.workers,
                run.job.least,
                run.job.most,
                priority=run.job.priority,
                changed_at=run.changed,
                cooldown=self._settings.cooldown,
            )
            for name, run in self._running.items()
            if run.job.elastic
        ]
        wanted: dict[int, int] = defaultdict(int)
        for run in self._waiting:
            wanted[run.job.priority] += run.job.least
        self._stale = False
        for resize in decide(jobs, {_POOL: Pool(_POOL, self._free, wanted)}, self._now):
            run = self._running[resize.job]
            self._grown += resize.workers > run.workers
            self._shrunk += resize.workers < run.workers
            self._set(run, resize.workers, self._settings.resize)
        self._start()

    def _until_failure(self) -> float:
        rate = self._settings.nodes * self._settings.failures / (365 * 86400)
        return self._moments.expovariate(rate) if rate > 0 else float("inf")

    def _fail(self) -> None:
        """A node is lost with its workers; their jobs go on with fewer, or wait for places.

        It has the share of busy places that the cluster has, with the workers of one job side by side.
        """
        self._at(self._now + self._until_failure(), "fail")
        there, places = self._capacity - self._lost, self._settings.places
        if there <= places:
            return
        self._at(self._now + self._settings.repair, "repair")
        self._failures += 1
        busy = sum(self._chance.random() < self._taken() / there for _ in range(places))
        busy = max(busy, places - self._free)
        while busy > 0 and self._running:
            runs = list(self._running.values())
            run = self._chance.choices(runs, [each.workers for each in runs])[0]
            gone = min(run.workers, busy)
            busy -= gone
            self._lose(run, gone)
        self._free -= places
        self._lost += places
        self._start()

    def _lose(self, run: _Run, workers: int) -> None:
        """A job loses workers without notice; a static one stops, and so does one without its minimum."""
        self._restarted += 1
        self._train(run, self._now)
        self._repeat(run)
        if self._elastic and run.workers - workers >= run.job.least:
            self._set(run, run.workers - workers, self._settings.restart)
            return
        self._stop(run)
        insort(self._waiting, run, key=_order)

    def _repeat(self, run: _Run) -> None:
        """Work since the last checkpoint is done again."""
        since = self._chance.random() * self._settings.checkpoint
        total = run.job.duration * self._speed(run.job, run.job.workers)
        lost = min(self._speed(run.job, run.workers) * since, total - run.left)
        run.left += lost
        if self._now <= self._submitted:
            self._useful_seconds -= lost

    def _back(self) -> None:
        self._free += self._settings.places
        self._lost -= self._settings.places
        self._start()


def _order(run: _Run) -> tuple[int, float, str]:
    """Jobs wait in this order: the highest priority first, then the oldest."""
    return -run.job.priority, run.job.submit, run.job.name
