"""The first failure of each Job of the charts, kept on the Job, where it outlives the pods."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from bireme.autoscale.events import MANAGER
from bireme.clusters.api import MERGE_PATCH, Api, ApiError
from bireme.core.labels import FAILURE_ANNOTATION, OURS
from bireme.live.pods import observed_pod
from bireme.plan.workloads.model import controller_of

# Pods that end so soon after the first one end because of it.
_TOGETHER = timedelta(minutes=2)


class FirstFailures:
    """Looks at the failed pods of ``namespaces``, all if there are none, and annotates their Jobs."""

    def __init__(self, api: Api, tell_once: Callable[[str], None], namespaces: Sequence[str]) -> None:
        self._api, self._tell_once, self._namespaces = api, tell_once, namespaces
        # None before the first look, which cannot tell what is late.
        self._seen: set[str] | None = None

    def once(self) -> None:
        """Keep what pods said that have failed since the last look. Raises ApiError."""
        api, where = self._api, self._namespaces
        pods = api.among(where, "/api/v1", "pods", fieldSelector="status.phase=Failed")
        failed = [pod for pod in pods if controller_of(pod)]
        uids = {pod["metadata"]["uid"] for pod in failed}
        are_new = uids - (self._seen or set())
        are_late = set() if self._seen is None else are_new
        jobs = api.among(where, "/apis/batch/v1", "jobs", labelSelector=OURS) if are_new else []
        unkept: set[str] = set()
        for job in jobs:
            about, failure = job["metadata"], first_failure(job, failed, are_late)
            path = f"/apis/batch/v1/namespaces/{about['namespace']}/jobs/{about['name']}"
            change = {"metadata": {"annotations": {FAILURE_ANNOTATION: failure}}}
            try:
                if failure:
                    api.patch(path, change, MERGE_PATCH, fieldManager=MANAGER)
            except ApiError as error:
                self._tell_once(f"{about['namespace']}/{about['name']}: its failure is not kept: {error}")
                # Again at the next look, unless this is for good.
                is_refused = 400 <= error.status < 500 and error.status not in (409, 429)
                unkept |= set() if is_refused else are_new
        self._seen = uids - unkept


def first_failure(
    job: Mapping[str, Any], failed: Iterable[Mapping[str, Any]], are_late: Collection[str] = ()
) -> str:
    """What the annotation of ``job`` has to become, beginning with the time; empty where it may stay.

    A later failure takes the place of the one that is kept, and so does one that ended shortly before it and
    is seen only now: its identity is in ``are_late``. Pods that were evicted did not fail.
    """
    about = job["metadata"]
    kept = _time((about.get("annotations") or {}).get(FAILURE_ANNOTATION, "").partition(" ")[0])
    found = []
    for pod in failed:
        own = controller_of(pod) == ("Job", about["name"]), pod["metadata"]["namespace"] == about["namespace"]
        seen = observed_pod(pod)
        if not all(own) or seen.ousted or not seen.ended:
            continue
        when = _time(seen.ended)
        is_late = kept - _TOGETHER <= when < kept and pod["metadata"].get("uid") in are_late
        if when > kept + _TOGETHER or is_late:
            found.append(f"{seen.ended} {seen.name} on {seen.node}: {seen.reason}\n{seen.last_words}".strip())
    return min(found, default="")


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
