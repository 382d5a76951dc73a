"""`bireme why` of a run whose pods have ended: who failed first, of what, and who only lost a peer."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.live.pods import ObservedPod, observed_pod
from bireme.live.why import crash

TRACEBACK = 'Traceback (most recent call last):\n  File "/code/train.py", line 12, in main\n'
LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:22113"


def ended(
    index: int, second: int, code: int, words: str = "", reason: str = "Error", status: Any = None
) -> ObservedPod:
    """Worker ``index``, whose process ended at this second."""
    terminated = {
        "exitCode": code, "reason": reason, "message": words, "finishedAt": f"2026-01-01T00:00:{second:02d}Z",
    }  # fmt: skip
    containers = [{"name": "worker", "state": {"terminated": terminated}}]
    return observed_pod(
        {
            "metadata": {"name": f"job-{index}", "labels": {}},
            "spec": {"nodeName": f"node-{index}", "containers": []},
            "status": {"phase": "Failed", "containerStatuses": containers} | (status or {}),
        }
    )


def taken(reason: str) -> dict[str, Any]:
    mark = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "for a pod of default"}
    return {"conditions": [{**mark, "lastTransitionTime": "2026-01-01T00:00:01Z"}]}


@pytest.mark.parametrize(
    ("first", "kind", "sentence"),
    [
        (ended(2, 5, 1, TRACEBACK + "KeyError: 'weight'"), "exception", "exit code 1: KeyError: 'weight'"),
        (ended(2, 5, 137, reason="OOMKilled"), "memory", "container worker ended: OOMKilled"),
        (ended(2, 5, 1, TRACEBACK + "torch.OutOfMemoryError: CUDA out of memory"), "memory", "out of memory"),
        (ended(2, 5, 135), "sharedMemory", "exit code 135"),
        (ended(2, 5, 1, "RuntimeError: CUDA error: uncorrectable ECC error"), "device", "uncorrectable ECC"),
        (ended(2, 5, 143, status=taken("PreemptionByScheduler")), "evicted", "PreemptionByScheduler: for a"),
        (ended(2, 5, 137, status={"reason": "Evicted", "message": "The node was low on resource: memory."}),
         "evicted", "Evicted: The node was low on resource: memory"),
        (ended(2, 5, 3), "ended", "exit code 3"),
    ],
)  # fmt: skip
def test_the_pod_that_failed_first_is_named_and_those_that_lost_it_come_after(
    first: ObservedPod, kind: str, sentence: str
) -> None:
    # A peer that lost it may be seen to end before it.
    cause = crash([ended(0, 4, 1, TRACEBACK + LOST), first, ended(1, 6, 1, TRACEBACK + LOST), ended(3, 7, 1)])
    assert cause is not None
    assert cause.kind == kind
    assert cause.sentence.startswith("job-2 on node-2 ended first, ")
    assert sentence in cause.sentence
    assert cause.evidence == ("with it ended job-0, job-1, job-3",)
    assert cause.remedy


@pytest.mark.parametrize(
    "after", ["", "\nrank 2 on node-2 failed in round 3 (exit code 1): KeyError: 'weight'; 5 failures"]
)
def test_the_line_of_a_bug_is_told_also_where_the_supervisor_adds_a_sentence(after: str) -> None:
    cause = crash([ended(2, 5, 1, TRACEBACK + "KeyError: 'weight'" + after)])
    assert cause is not None
    assert (cause.kind, cause.line) == ("exception", "train.py:12")


def test_pods_that_run_or_succeeded_have_not_crashed() -> None:
    runs = observed_pod(
        {
            "metadata": {"name": "job-1", "labels": {}},
            "spec": {"containers": []},
            "status": {"phase": "Running"} | taken("EvictionByEvictionAPI"),
        }
    )
    assert crash([runs, ended(0, 4, 0, reason="Completed")]) is None
