"""Where jobs of a release stand in the queues of Kueue, and why they wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bireme.clusters.api import Api, ApiError
from bireme.core.plain import Plain
from bireme.live.observe import Difference
from bireme.live.pods import shorten
from bireme.plan.queues import POD_GROUP, Queued
from bireme.plan.workloads.model import true_conditions

UNSEEN = "Kueue has not seen it yet: is there such a queue?"
_GROUP = "/apis/kueue.x-k8s.io/v1beta2"


@dataclass(frozen=True)
class QueuePosition(Plain):
    """What became of one job in its queue.

    ``state``: ``waiting``, ``admitted`` or ``finished``. ``place``: how many wait before it in the
    ClusterQueue, itself included, of ``waiting`` in all; both None when it does not wait, or when you may not
    read the other namespaces. ``pods``: admitted ones; ``why`` is Kueue's sentence about a job that waits.
    """

    kind: str
    name: str
    queue: str
    state: str
    why: str = ""
    place: int | None = None
    waiting: int | None = None
    pods: int | None = None


def queue_positions(api: Api, namespace: str, jobs: Iterable[Queued]) -> tuple[QueuePosition, ...]:
    """The positions of ``jobs``, in order; none without Kueue, where they start at once. Raises ApiError."""
    jobs = tuple(jobs)
    if not jobs:
        return ()
    try:
        own = api.items(f"{_GROUP}/namespaces/{namespace}/workloads")
    except ApiError as error:
        if error.status in (403, 404):
            return ()
        raise
    line = _line(api, namespace, {each.queue for each in jobs})
    return tuple(_position(each, [item for item in own if _is_of(item, each)], line) for each in jobs)


def leave(api: Api, namespace: str, jobs: Iterable[Queued]) -> None:
    """Take groups of pods out of their queues; until then Kueue keeps their pods. Raises ApiError."""
    for job in jobs:
        if job.kind == POD_GROUP:
            api.delete(f"{_GROUP}/namespaces/{namespace}/workloads/{job.name}")


def without_waiting(
    differences: Iterable[Difference], jobs: Iterable[Queued], found: Iterable[QueuePosition]
) -> tuple[Difference, ...]:
    """``differences`` with one sentence for each job that waits, instead of one for each of its pods."""
    differences = tuple(differences)
    members = {(each.kind, each.name): each.members for each in jobs}
    late = {each.workload for each in differences}
    waiting = [each for each in found if each.state == "waiting" and late & {*members[each.kind, each.name]}]
    silent = {name for each in waiting for name in members[each.kind, each.name]}
    kept = tuple(each for each in differences if each.category != "missing" or each.workload not in silent)
    return kept + tuple(map(_waits, waiting))


def are_held(differences: Iterable[Difference], found: Iterable[QueuePosition]) -> bool:
    """Whether all of ``differences``, a result of `without_waiting`, are jobs that wait in their queues."""
    differences = set(differences)
    return bool(differences) and differences <= {_waits(each) for each in found if each.state == "waiting"}


def _waits(position: QueuePosition) -> Difference:
    return Difference("pending", position.name, "", sentence(position))


def sentence(position: QueuePosition) -> str:
    """A position in one line, for people."""
    who = f"{position.kind}/{position.name}"
    if position.state != "waiting":
        pods = f" with {position.pods} pods" if position.pods is not None else ""
        more = f"; more wait: {position.why}" if position.why else ""
        return f"{who} is {position.state}{pods} by queue {position.queue}{more}"
    place = f", place {position.place} of {position.waiting}" if position.place is not None else ""
    return f"{who} waits in queue {position.queue}{place}{f': {position.why}' if position.why else ''}"


def _position(job: Queued, workloads: list[dict[str, Any]], line: Mapping[str, list[str]]) -> QueuePosition:
    # An elastic job has a workload for each number of pods it had; the newest unfinished one counts.
    by_age = sorted(workloads, key=lambda each: str(each["metadata"]["creationTimestamp"]))
    open_ones = [each for each in by_age if "Finished" not in true_conditions(each)]
    if not by_age:
        return QueuePosition(job.kind, job.name, job.queue, "waiting", UNSEEN)
    if not open_ones:
        return QueuePosition(job.kind, job.name, job.queue, "finished")
    admitted = [each for each in open_ones if "Admitted" in true_conditions(each)]
    if admitted:
        assigned = admitted[-1]["status"]["admission"]["podSetAssignments"]
        pods = sum(each.get("count", 0) for each in assigned)
        # An elastic job that has been given more workers than it got.
        why = "" if open_ones[-1] is admitted[-1] else _why(open_ones[-1])
        return QueuePosition(job.kind, job.name, job.queue, "admitted", why, pods=pods)
    waits = open_ones[-1]
    place = waiting = None
    for uids in line.values():
        if waits["metadata"]["uid"] in uids:
            place, waiting = uids.index(waits["metadata"]["uid"]) + 1, len(uids)
    return QueuePosition(job.kind, job.name, job.queue, "waiting", _why(waits), place, waiting)


def _line(api: Api, namespace: str, queues: Iterable[str]) -> Mapping[str, list[str]]:
    """The workloads that wait, by ClusterQueue, in Kueue's order: priority, then age.

    (``Less`` of Kueue's pkg/cache/queue/cluster_queue.go.)
    """
    local = api.items(f"{_GROUP}/localqueues", unless=(403, 404))
    everyone = api.items(f"{_GROUP}/workloads", unless=(403, 404))
    cluster_queue = {
        (each["metadata"]["namespace"], each["metadata"]["name"]): each["spec"]["clusterQueue"]
        for each in local
    }
    found: dict[str, list[str]] = {
        cluster_queue[namespace, each]: [] for each in queues if (namespace, each) in cluster_queue
    }
    for item in sorted(everyone, key=_order):
        queue = cluster_queue.get((item["metadata"]["namespace"], item["spec"].get("queueName", "")), "")
        if queue in found and not true_conditions(item).keys() & {"QuotaReserved", "Finished"}:
            found[queue].append(item["metadata"]["uid"])
    return found


def _order(item: Mapping[str, Any]) -> tuple[int, str, str]:
    meta = item["metadata"]
    return -int(item["spec"].get("priority", 0)), meta["creationTimestamp"], meta["uid"]


def _is_of(item: Mapping[str, Any], job: Queued) -> bool:
    if job.kind == POD_GROUP:
        return bool(item["metadata"]["name"] == job.name)
    owners = item["metadata"].get("ownerReferences") or ()
    return any((each["kind"], each["name"]) == (job.kind, job.name) for each in owners)


def _why(item: Mapping[str, Any]) -> str:
    conditions = {each["type"]: each for each in item.get("status", {}).get("conditions") or ()}
    for name in ("QuotaReserved", "Evicted", "Admitted"):
        if conditions.get(name, {}).get("message"):
            return shorten(conditions[name]["message"])
    return ""
