"""What is known of a release beside its plan, and the same in one line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bireme.core.plain import Plain
from bireme.live.observe import Difference
from bireme.live.pods import ObservedPod
from bireme.live.queue_position import QueuePosition, are_held
from bireme.live.release import Revision
from bireme.live.shards import Shards
from bireme.live.worker_status import WorkerStatus
from bireme.plan.topology import Plan
from bireme.plan.workloads import KINDS
from bireme.plan.workloads.model import ObservedWorkload

_UNITS = (("d", 86400), ("h", 3600), ("m", 60))


@dataclass(frozen=True)
class ReleaseStatus(Plain):
    """The plan, the live pods, and how they differ.

    ``notes`` are the chart's. ``shards`` is the progress of its datasets, if it has a dispatcher.
    ``worker_statuses`` are the runs of its elastic jobs. ``causes`` are sentences about missing nodes.
    ``failures`` is what the controller has kept of each Job's first failed pod. ``workloads`` is what the
    status of each live object says.
    """

    hidden = ("notes", "workloads")

    plan: Plan
    pods: tuple[ObservedPod, ...]
    differences: tuple[Difference, ...]
    notes: str = ""
    shards: tuple[Shards, ...] = ()
    worker_statuses: tuple[WorkerStatus, ...] = ()
    queue_positions: tuple[QueuePosition, ...] = ()
    causes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    workloads: tuple[ObservedWorkload, ...] = ()

    @property
    def is_held(self) -> bool:
        """Whether all that is missing are jobs that wait in their queues."""
        return are_held(self.differences, self.queue_positions)


@dataclass(frozen=True)
class Summary:
    """``phase`` is a word; ``ready`` of ``planned`` workers are; ``queue`` is a place such as ``1 of 3``."""

    revision: Revision
    phase: str
    ready: int | None = None
    planned: int | None = None
    accelerators: int = 0
    queue: str = ""

    @property
    def age(self) -> str:
        """How long ago its last revision was made, such as ``5m``; "" where that is not known."""
        found = re.match(r"(\S+)[ T](\d\d:\d\d:\d\d)(?:\.\d+)? ?(Z|[+-]\d\d:?\d\d)", self.revision.updated)
        if not found:
            return ""
        made = datetime.fromisoformat(f"{found[1]}T{found[2]}{found[3].replace('Z', '+0000')}")
        seconds = max(0, int((datetime.now(UTC) - made).total_seconds()))
        unit, size = next((each for each in _UNITS if seconds >= each[1]), ("s", 1))
        return f"{seconds // size}{unit}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for ``-o json``."""
        seen = {"phase": self.phase, "workers": {"ready": self.ready, "planned": self.planned}}
        return self.revision.to_json() | seen | {"accelerators": self.accelerators, "queue": self.queue}


def summary(revision: Revision, found: ReleaseStatus) -> Summary:
    """How far a release is, from what `bireme status` compares."""
    plan = found.plan
    train = [each for each in plan.workloads if any(p.accelerators or p.rank is not None for p in each.pods)]
    counted = train or plan.workloads
    names = {(each.kind, each.name) for each in counted}
    ready = sum(pod.ready for pod in found.pods if (pod.kind, pod.workload) in names)
    places = [f"{each.place} of {each.waiting}" for each in found.queue_positions if each.place]
    total = plan.totals.accelerators
    phase = revision.status if revision.status != "deployed" else _phase(found)
    return Summary(revision, phase, ready, sum(len(each.pods) for each in counted), total, ", ".join(places))


def _phase(found: ReleaseStatus) -> str:
    workloads = found.plan.workloads
    jobs = [each for each in workloads if each.kind in KINDS and KINDS[each.kind].suspension]
    states = {(each.kind, each.name): each.state for each in found.workloads}
    categories = {each.category for each in found.differences}
    if "job-failed" in categories:
        return "failed"
    if any(each.state == "waiting" for each in found.queue_positions):
        return "queued"
    if jobs and all(each.suspended for each in jobs):
        return "stopped"
    if jobs and all(states.get((each.kind, each.name)) == "Complete" for each in jobs):
        return "complete"
    if "pending" in categories:
        return "pending"
    return "starting" if found.differences else "running" if workloads else "there"
