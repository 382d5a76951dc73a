"""A release in one line: how far it is, its workers, its place in a queue, its accelerators, its age."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bireme.live.observe import Difference, Observation
from bireme.live.queue_position import QueuePosition
from bireme.live.release import Revision
from bireme.plan.topology import Plan
from bireme.plan.workloads import KINDS

_UNITS = (("d", 86400), ("h", 3600), ("m", 60))


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


def summary(
    revision: Revision,
    plan: Plan,
    found: Observation,
    differences: Sequence[Difference],
    positions: Sequence[QueuePosition],
) -> Summary:
    """How far a release is, from what `bireme status` compares."""
    train = [each for each in plan.workloads if any(p.accelerators or p.rank is not None for p in each.pods)]
    counted = train or plan.workloads
    names = {(each.kind, each.name) for each in counted}
    ready = sum(pod.ready for pod in found.pods if (pod.kind, pod.workload) in names)
    places = [f"{each.place} of {each.waiting}" for each in positions if each.place]
    total = plan.totals.accelerators
    phase = revision.status if revision.status != "deployed" else _phase(plan, found, differences, positions)
    return Summary(revision, phase, ready, sum(len(each.pods) for each in counted), total, ", ".join(places))


def _phase(
    plan: Plan, found: Observation, differences: Sequence[Difference], positions: Sequence[QueuePosition]
) -> str:
    jobs = [each for each in plan.workloads if each.kind in KINDS and KINDS[each.kind].suspension]
    states = {(each.kind, each.name): each.state for each in found.workloads}
    categories = {each.category for each in differences}
    if "job-failed" in categories:
        return "failed"
    if any(each.state == "waiting" for each in positions):
        return "queued"
    if jobs and all(each.suspended for each in jobs):
        return "stopped"
    if jobs and all(states.get((each.kind, each.name)) == "Complete" for each in jobs):
        return "complete"
    if "pending" in categories:
        return "pending"
    return "starting" if differences else "running" if plan.workloads else "there"
