"""What one worker tells of its run over HTTP: `/metrics` for Prometheus, /v1/… for `bireme`."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, field
from typing import Any

from bireme_runtime.elastic import progress
from bireme_runtime.elastic.monitor import failures, history, why
from bireme_runtime.process.errors import BiremeError
from bireme_runtime.process.server import Request, Response
from bireme_runtime.process.threads import in_one_thread

EVENTS = ("nan", "slow")
CAUSES = ("failure", "members", "agent", "hang", "nan", "slow")
_KEPT_SECONDS = 2.0
# The autoscaler waits two seconds for this answer, for whether a checkpoint is written. That needs no etcd.
_ANSWER_SECONDS = 1.0


@dataclass
class Starts:
    """The starts of this worker's processes: where they are now, and why they started again."""

    round: int = 0
    rank: int = 0
    world: int = 0
    count: int = 0
    last_rank: int = 0
    restarts: Counter[str] = field(default_factory=Counter)
    # The rank of each local rank.
    ranks: Mapping[int, int] = field(default_factory=dict)
    happened: Counter[str] = field(default_factory=Counter)
    # The nodes on which no worker starts, and why.
    excluded: dict[str, str] = field(default_factory=dict)
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=20))
    _next: str = ""

    def because(self, cause: str) -> None:
        """The next start has this cause."""
        self._next = cause
        self.world = 0

    def began(self, facts: Mapping[str, Any]) -> str:
        """Processes start. Without another cause, the members have changed. Returns the cause, if any."""
        cause, self._next = self._next, ""
        if self.round or cause:
            self.restarts[cause or "members"] += 1
        self.count += 1
        self.round, self.rank, self.world = (int(facts[name]) for name in ("round", "rank", "world"))
        self.last_rank = self.world - 1
        return cause


class WorkerStatus:
    """Puts together what is known.

    ``waits`` says what this worker waits for, and ``spares`` which workers wait while others train. ``ranks``
    tells where the processes of this worker stand.
    """

    def __init__(
        self,
        starts: Starts,
        seen: progress.Progress,
        ledger: failures.Ledger,
        waits: Callable[[], str],
        past: history.History | None = None,
        spares: Callable[[], Sequence[str]] = tuple,
        ranks: Callable[[], Sequence[why.RankState]] = tuple,
    ) -> None:
        self._history, self._ranks = past, ranks
        self._starts, self._progress, self._ledger, self._waits = starts, seen, ledger, waits
        self._spares = spares
        self.snapshots: Callable[[], Mapping[str, Any]] = dict
        self._lock = threading.Lock()
        self._known: tuple[float, dict[str, Any]] = (0.0, {})
        self._asking: Future[dict[str, Any]] | None = None

    def answer(self, request: Request) -> Response:
        """The answer to a request."""
        if request.path == "/metrics":
            return Response(200, self.metrics().encode(), {"Content-Type": "text/plain; version=0.0.4"})
        if request.path == "/v1/status":
            return Response.of(200, self.status())
        if request.path == "/v1/timeline":
            try:
                worlds = self._history.read() if self._history else []
            except BiremeError as error:
                return Response.of(503, str(error))
            return Response.of(200, {"time": time.time(), "worlds": worlds})
        if request.path == "/v1/ranks":
            return Response.of(200, {"ranks": [asdict(each) for each in self._ranks()]})
        return Response.of(404, "there are /metrics, /v1/ranks, /v1/status and /v1/timeline")

    def metrics(self) -> str:
        """The text format of Prometheus."""
        seen, starts = self._progress, self._starts
        seen.look()
        lines: list[str] = []

        def metric(name: str, kind: str, help: str, *values: tuple[str, float]) -> None:
            lines.append(f"# HELP bireme_{name} {help}\n# TYPE bireme_{name} {kind}")
            lines.extend(f"bireme_{name}{labels} {value}" for labels, value in values)

        metric("round", "gauge", "Number of the latest round of this worker", ("", starts.round))
        metric("world_size", "gauge", "Workers in the round; 0 while this one waits", ("", starts.world))
        metric("rank", "gauge", "Rank of this worker among the workers", ("", starts.rank))
        causes = [(f'{{cause="{cause}"}}', float(starts.restarts[cause])) for cause in CAUSES]
        metric("restarts_total", "counter", "Starts of the processes after the first, by cause", *causes)
        metric("saving", "gauge", "1 while a process writes a checkpoint", ("", int(seen.board.saving)))
        if seen.step is not None:
            metric("step", "gauge", "Highest step of the run that this worker has seen", ("", seen.step))
            metric("steps_per_second", "gauge", "New steps a second", ("", seen.rate))
        if seen.board.total:
            metric("total_steps", "gauge", "Steps with which the run is over", ("", seen.board.total))
        if seen.samples_per_second:
            told = "Throughput of all workers, as the script prints it"
            metric("samples_per_second", "gauge", told, ("", seen.samples_per_second))
        if seen.last:
            age = max(0.0, time.monotonic() - seen.last)
            metric("step_age_seconds", "gauge", "Seconds since a step was seen", ("", age))
        steps, now = seen.board.steps(), time.monotonic()
        ranks = [(f'{{rank="{rank}"}}', *steps[at]) for at, rank in starts.ranks.items() if at in steps]
        if ranks:
            behind = [(label, float(number)) for label, number, _ in ranks]
            ages = [(label, max(0.0, now - when)) for label, _, when in ranks]
            metric("rank_step", "gauge", "Step that a process has told, by rank", *behind)
            metric(
                "rank_step_age_seconds", "gauge", "Seconds since a process has told a step, by rank", *ages
            )
        if seen.goodput is not None:
            useful = "Part of the time since the first new step that went into new steps"
            metric("goodput_ratio", "gauge", useful, ("", seen.goodput))
        events = [(f'{{event="{event}"}}', float(starts.happened[event])) for event in EVENTS]
        metric("events_total", "counter", "Losses that are no number, and slow steps", *events)
        metric("lost_steps_total", "counter", "Steps that were made again", ("", seen.lost_steps))
        metric(
            "lost_seconds_total", "counter", "Seconds between new steps at restarts", ("", seen.lost_seconds)
        )
        snapshots = self.snapshots()
        if snapshots:
            metric("snapshot_step", "gauge", "Step of the newest snapshot", ("", snapshots["step"]))
            age = time.time() - snapshots["time"]
            metric("snapshot_age_seconds", "gauge", "Seconds since the newest snapshot", ("", age))
            metric("snapshot_copies", "gauge", "Other workers that have it", ("", snapshots["copies"]))
            blocked = "Seconds that processes have waited for snapshots"
            metric("snapshot_blocked_seconds_total", "counter", blocked, ("", snapshots["blockedSeconds"]))
        out = [(f'{{node="{node}"}}', 1.0) for node in starts.excluded]
        metric("node_excluded", "gauge", "1 for a node on which no worker starts for a while", *out)
        return "\n".join(lines) + "\n"

    def status(self) -> dict[str, Any]:
        """The run as this worker knows it, as JSON."""
        self._progress.look()
        seen, starts = self._progress, self._starts
        return {
            "round": starts.round,
            "world": starts.world,
            "rank": starts.rank,
            "step": seen.step,
            "totalSteps": seen.board.total,
            "secondsLeft": seen.seconds_left,
            "stepsPerSecond": round(seen.rate, 4),
            "samplesPerSecond": seen.samples_per_second,
            "restarts": dict(starts.restarts),
            "lostSteps": seen.lost_steps,
            "lostSeconds": round(seen.lost_seconds, 1),
            "events": list(starts.events),
            "saving": seen.board.saving,
            "snapshots": self.snapshots(),
            **self._from_etcd(),
        }

    def _from_etcd(self) -> dict[str, Any]:
        with self._lock:
            when, known = self._known
            if known and time.monotonic() - when <= _KEPT_SECONDS:
                return known
            self._asking = asking = in_one_thread(self._asking, self._ask_etcd)
        if wait([asking], _ANSWER_SECONDS).done:
            return asking.result()
        is_recent = known and time.monotonic() - when < 10 * _KEPT_SECONDS
        return known if is_recent else _without_etcd("etcd does not answer")

    def _ask_etcd(self) -> dict[str, Any]:
        try:
            causes = failures.blamed(self._ledger.all())
            known = {
                "waits": self._waits(),
                "spares": list(self._spares()),
                "failures": [_told(each) for each in causes],
                "nodes": dict(Counter(each.node for each in causes if each.node).most_common()),
            }
        except BiremeError as error:
            known = _without_etcd(str(error))
        self._known = (time.monotonic(), known)
        return known


def _without_etcd(why: str) -> dict[str, Any]:
    return {"waits": why, "spares": [], "failures": [], "nodes": {}}


def _told(failure: failures.Failure) -> dict[str, Any]:
    return {"time": failure.time, "node": failure.node, "sentence": failure.sentence}
