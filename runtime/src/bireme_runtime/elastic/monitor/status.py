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


@dataclass
class WorkerStatus:
    """Puts together what is known.

    ``waits`` says what this worker waits for, and ``spares`` which workers wait while others train. ``ranks``
    tells where the processes of this worker stand, ``snapshots`` what its keeper has.
    """

    starts: Starts
    seen: progress.Progress
    ledger: failures.Ledger
    waits: Callable[[], str]
    past: history.History | None = None
    spares: Callable[[], Sequence[str]] = tuple
    ranks: Callable[[], Sequence[why.RankState]] = tuple
    snapshots: Callable[[], Mapping[str, Any]] = dict
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: tuple[float, dict[str, Any]] = (0.0, {})
    _asking: Future[dict[str, Any]] | None = None

    def answer(self, request: Request) -> Response:
        """The answer to a request."""
        if request.path == "/metrics":
            return Response(200, self.metrics().encode(), {"Content-Type": "text/plain; version=0.0.4"})
        if request.path == "/v1/status":
            return Response.of(200, self.status())
        if request.path == "/v1/timeline":
            try:
                worlds = self.past.read() if self.past else []
            except BiremeError as error:
                return Response.of(503, str(error))
            return Response.of(200, {"time": time.time(), "worlds": worlds})
        if request.path == "/v1/ranks":
            return Response.of(200, {"ranks": [asdict(each) for each in self.ranks()]})
        return Response.of(404, "there are /metrics, /v1/ranks, /v1/status and /v1/timeline")

    def metrics(self) -> str:
        """The text format of Prometheus."""
        seen, starts = self.seen, self.starts
        seen.look()
        snapshots = self.snapshots()
        steps, now = seen.board.steps(), time.monotonic()
        causes = {f'{{cause="{cause}"}}': float(starts.restarts[cause]) for cause in CAUSES}
        events = {f'{{event="{event}"}}': float(starts.happened[event]) for event in EVENTS}
        out = {f'{{node="{node}"}}': 1.0 for node in starts.excluded}
        told = {f'{{rank="{rank}"}}': steps[at] for at, rank in starts.ranks.items() if at in steps}
        numbers = {label: float(number) for label, (number, _) in told.items()}
        ages = {label: max(0.0, now - when) for label, (_, when) in told.items()}
        age = max(0.0, now - seen.last) if seen.last else None
        snapshot_age = time.time() - snapshots["time"] if snapshots else None
        rate = seen.samples_per_second or None
        useful = "Part of the time since the first new step that went into new steps"
        blocked = "Seconds that processes have waited for snapshots"
        # None: the metric is left out. Those whose names end with `_total` are counters, all others gauges.
        found: list[tuple[str, str, float | Mapping[str, float] | None]] = [
            ("round", "Number of the latest round of this worker", starts.round),
            ("world_size", "Workers in the round; 0 while this one waits", starts.world),
            ("rank", "Rank of this worker among the workers", starts.rank),
            ("restarts_total", "Starts of the processes after the first, by cause", causes),
            ("saving", "1 while a process writes a checkpoint", int(seen.board.saving)),
            ("step", "Highest step of the run that this worker has seen", seen.step),
            ("steps_per_second", "New steps a second", None if seen.step is None else seen.rate),
            ("total_steps", "Steps with which the run is over", seen.board.total or None),
            ("samples_per_second", "Throughput of all workers, as the script prints it", rate),
            ("step_age_seconds", "Seconds since a step was seen", age),
            ("rank_step", "Step that a process has told, by rank", numbers or None),
            ("rank_step_age_seconds", "Seconds since a process has told a step, by rank", ages or None),
            ("goodput_ratio", useful, seen.goodput),
            ("events_total", "Losses that are no number, and slow steps", events),
            ("lost_steps_total", "Steps that were made again", seen.lost_steps),
            ("lost_seconds_total", "Seconds between new steps at restarts", seen.lost_seconds),
            ("snapshot_step", "Step of the newest snapshot", snapshots.get("step")),
            ("snapshot_age_seconds", "Seconds since the newest snapshot", snapshot_age),
            ("snapshot_copies", "Other workers that have it", snapshots.get("copies")),
            ("snapshot_blocked_seconds_total", blocked, snapshots.get("blockedSeconds")),
            ("node_excluded", "1 for a node on which no worker starts for a while", out),
        ]
        lines: list[str] = []
        for name, meaning, value in found:
            if value is not None:
                kind = "counter" if name.endswith("_total") else "gauge"
                lines += [f"# HELP bireme_{name} {meaning}", f"# TYPE bireme_{name} {kind}"]
                by_labels = value if isinstance(value, Mapping) else {"": value}
                lines += [f"bireme_{name}{labels} {number}" for labels, number in by_labels.items()]
        return "\n".join(lines) + "\n"

    def status(self) -> dict[str, Any]:
        """The run as this worker knows it, as JSON."""
        self.seen.look()
        seen, starts = self.seen, self.starts
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
            causes = failures.blamed(self.ledger.all())
            known = {
                "waits": self.waits(),
                "spares": list(self.spares()),
                "failures": [
                    {"time": each.time, "node": each.node, "sentence": each.sentence} for each in causes
                ],
                "nodes": dict(Counter(each.node for each in causes if each.node).most_common()),
            }
        except BiremeError as error:
            known = _without_etcd(str(error))
        self._known = (time.monotonic(), known)
        return known


def _without_etcd(why: str) -> dict[str, Any]:
    return {"waits": why, "spares": [], "failures": [], "nodes": {}}
