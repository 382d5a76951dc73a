"""The first failure of each Job of the charts, kept on the Job, where it outlives the pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
        self._seen: set[str] = set()

    def once(self) -> None:
        """Keep what pods said that have failed since the last look. Raises ApiError."""
        api, where = self._api, self._namespaces
        pods = api.among(where, "/api/v1", "pods", fieldSelector="status.phase=Failed")
        failed = [pod for pod in pods if controller_of(pod)]
        uids = {pod["metadata"]["uid"] for pod in failed}
        are_new = uids - self._seen
        jobs = api.among(where, "/apis/batch/v1", "jobs", labelSelector=OURS) if are_new else []
        for job in jobs:
            about, failure = job["metadata"], first_failure(job, failed)
            path = f"/apis/batch/v1/namespaces/{about['namespace']}/jobs/{about['name']}"
            change = {"metadata": {"annotations": {FAILURE_ANNOTATION: failure}}}
            try:
                if failure:
                    api.patch(path, change, MERGE_PATCH, fieldManager=MANAGER)
            except ApiError as error:
                self._tell_once(f"{about['namespace']}/{about['name']}: its failure is not kept: {error}")
        self._seen = uids


def first_failure(job: Mapping[str, Any], failed: Iterable[Mapping[str, Any]]) -> str:
    """What the annotation of ``job`` has to become, beginning with the time; empty where it may stay.

    A later failure takes the place of the one that is kept. Pods that were evicted did not fail.
    """
    about = job["metadata"]
    kept = _time((about.get("annotations") or {}).get(FAILURE_ANNOTATION, "").partition(" ")[0])
    found = []
    for pod in failed:
        own = controller_of(pod) == ("Job", about["name"]), pod["metadata"]["namespace"] == about["namespace"]
        seen = observed_pod(pod)
        if all(own) and not seen.ousted and seen.ended and _time(seen.ended) > kept + _TOGETHER:
            found.append(f"{seen.ended} {seen.name} on {seen.node}: {seen.reason}\n{seen.last_words}".strip())
    return min(found, default="")


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
