"""What is kept of a job's failure: that of the pod that failed first, and of the last time."""

from __future__ import annotations

from typing import Any

from bireme.autoscale.failures import FirstFailures, first_failure
from bireme.clusters.api import ApiError
from bireme.core.labels import FAILURE_ANNOTATION

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: loss is NaN'


def job(kept: str = "") -> dict[str, Any]:
    annotations = {FAILURE_ANNOTATION: kept} if kept else None
    return {"metadata": {"name": "mnist-r1", "namespace": "vision", "annotations": annotations}}


def ended(name: str, at: str, code: int = 1, job: str = "mnist-r1", **condition: str) -> dict[str, Any]:
    state = {"exitCode": code, "reason": "Error", "finishedAt": f"2026-11-29T{at}Z", "message": TRACEBACK}
    owner = {"kind": "Job", "name": job, "uid": "1", "controller": True}
    return {
        "metadata": {"name": name, "namespace": "vision", "ownerReferences": [owner]},
        "spec": {"nodeName": f"node-of-{name}", "containers": []},
        "status": {
            "phase": "Failed",
            "conditions": [condition] if condition else [],
            "containerStatuses": [{"name": "trainer", "state": {"terminated": state}}],
        },
    }


def test_the_pod_that_failed_first_is_kept_with_its_node_and_its_traceback() -> None:
    pods = [
        ended("mnist-r1-1", "03:10:07"),
        ended("mnist-r1-37", "03:10:05"),
        ended("mnist-r1-2", "03:10:05", 0),
    ]
    first = first_failure(job(), pods)
    assert first.startswith(
        "2026-11-29T03:10:05Z mnist-r1-37 on node-of-mnist-r1-37: container trainer ended"
    )
    assert first.endswith(TRACEBACK)


def test_one_that_failed_before_it_and_is_seen_after_it_takes_its_place_once() -> None:
    kept = job("2026-11-29T03:10:07Z mnist-r1-1 on node: it failed")
    pods = [ended("mnist-r1-1", "03:10:07"), ended("mnist-r1-37", "03:10:05")]
    pods[1]["metadata"]["uid"] = "late"
    assert first_failure(kept, pods, {"late"}).startswith("2026-11-29T03:10:05Z mnist-r1-37 ")
    assert first_failure(kept, pods) == "", "it was there at the look before"


class Refuses:
    """An API server that has one failed pod and refuses the first change."""

    def __init__(self) -> None:
        self.changes = 0

    def among(self, namespaces: Any, group: str, plural: str, **query: str) -> list[dict[str, Any]]:
        pod = ended("mnist-r1-1", "03:10:07")
        pod["metadata"]["uid"] = "1"
        return [pod] if plural == "pods" else [job()]

    def patch(self, *_: Any, **__: Any) -> None:
        self.changes += 1
        if self.changes == 1:
            raise ApiError(500, "etcdserver: leader changed")


def test_a_failure_that_could_not_be_kept_is_kept_at_the_next_look() -> None:
    api, told = Refuses(), list[str]()
    looks = FirstFailures(api, told.append, ())  # type: ignore[arg-type]
    for _ in range(3):
        looks.once()
    assert api.changes == 2
    assert told == ["vision/mnist-r1: its failure is not kept: etcdserver: leader changed"]


def test_pods_of_others_and_pods_that_were_evicted_did_not_fail() -> None:
    evicted = ended("mnist-r1-0", "03:10:05", type="DisruptionTarget", status="True", reason="Preempted")
    assert first_failure(job(), [evicted, ended("other-0", "03:10:05", job="other")]) == ""


def test_a_later_failure_takes_its_place_but_not_one_that_follows_from_it() -> None:
    kept = job("2026-11-29T03:10:05Z mnist-r1-37 on node: it failed")
    assert first_failure(kept, [ended("mnist-r1-1", "03:11:50")]) == ""
    again = [
        ended("mnist-r1-37", "03:10:05"),
        ended("mnist-r1-3", "07:00:00"),
        ended("mnist-r1-4", "07:00:09"),
    ]
    assert first_failure(kept, again).startswith("2026-11-29T07:00:00Z mnist-r1-3 ")
