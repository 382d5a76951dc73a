"""What is kept of a job's failure: that of the pod that failed first, and of the last time."""

from __future__ import annotations

from typing import Any

from bireme.autoscale.failures import first_failure
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
