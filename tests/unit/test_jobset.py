"""JobSet: planned from a foreign chart, traced, stopped and judged as its controller treats it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bireme.check.objects import object_findings
from bireme.core.manifests import Manifest
from bireme.live.observe import compare
from bireme.live.pods import ObservedPod
from bireme.plan.changes import changes
from bireme.plan.instances import Instance
from bireme.plan.topology import expand
from bireme.plan.workloads import KINDS
from tests.support.live import live_pod

CHART = """apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: {{ .Release.Name }}
spec:
  replicatedJobs:
    - name: driver
      template:
        spec:
          template:
            spec:
              containers: [{name: driver, image: driver, resources: {requests: {cpu: 1}}}]
    - name: workers
      replicas: 2
      template:
        spec:
          parallelism: 2
          completions: 2
          template:
            metadata: {labels: {app.kubernetes.io/component: trainer}}
            spec:
              nodeSelector: {node.kubernetes.io/instance-type: p4d.24xlarge}
              containers:
                - name: worker
                  image: worker
                  env: [{name: PET_NPROC_PER_NODE, value: "8"}]
                  resources: {limits: {nvidia.com/gpu: 8}}
"""
JOBSET = KINDS["JobSet"]


def group(name: str = "workers", replicas: int = 1, pods: int = 2, **spec: Any) -> dict[str, Any]:
    job = {"parallelism": pods, "completions": pods, "template": {"spec": {"containers": []}}, **spec}
    return {"name": name, "replicas": replicas, "template": {"spec": job}}


def jobset(*groups: dict[str, Any], name: str = "train", **spec: Any) -> Manifest:
    about = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}}
    return Manifest({**about, "spec": {"replicatedJobs": list(groups or [group()]), **spec}})


def pod_of(job: str, index: int) -> ObservedPod:
    """The live pod of a Job of the JobSet with this index."""
    ours = {"jobset.sigs.k8s.io/jobset-name": "train", "batch.kubernetes.io/job-completion-index": str(index)}
    return live_pod(f"{job}-{index}-x2x4z", "Job", job, hostname=f"{job}-{index}", labels=ours)


def live(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "train"}, "status": status}


def test_a_foreign_chart_with_a_job_set_is_planned(bireme_plan: Callable[..., str]) -> None:
    plan = json.loads(bireme_plan(CHART, "-o", "json"))
    assert plan["totals"] == {"pods": 5, "accelerators": 32, "efa": 0, "nodes": {"p4d.24xlarge": 4}}
    [workload] = plan["workloads"]
    assert (workload["kind"], workload["role"], workload["replicas"]) == ("JobSet", "trainer", 5)
    assert [(pod["name"], pod["role"], pod["rank"]) for pod in workload["pods"]] == [
        ("run-driver-0-0", "driver", 0),
        ("run-workers-0-0", "trainer", 0),
        ("run-workers-0-1", "trainer", 1),
        ("run-workers-1-0", "trainer", 2),
        ("run-workers-1-1", "trainer", 3),
    ]
    assert all(pod["hostname"] == pod["name"] for pod in workload["pods"])


def test_jobs_that_are_not_indexed_have_neither_ranks_nor_host_names(
    instances: Mapping[str, Instance],
) -> None:
    plan = expand("run", "default", [jobset(group(completionMode="NonIndexed"))], instances)
    assert {(pod.rank, pod.hostname) for pod in plan.pods} == {(None, None)}


def test_live_pods_are_traced_through_their_jobs(instances: Mapping[str, Instance]) -> None:
    plan = expand("run", "default", [jobset()], instances)
    pods = [pod_of("train-workers-0", index) for index in range(2)]
    assert {(pod.kind, pod.workload) for pod in pods} == {("JobSet", "train")}
    assert compare(plan, pods) == ()
    [missing] = compare(plan, pods[:1])
    assert (missing.category, missing.pod) == ("missing", "train-workers-0-1")
    [extra] = compare(plan, [*pods, pod_of("train-workers-1", 0)])
    assert (extra.category, extra.pod) == ("extra", "train-workers-1-0-x2x4z")


@pytest.mark.parametrize(
    ("conditions", "state", "message"),
    [
        ([], "", ""),
        ([{"type": "Completed", "status": "True"}], "Complete", ""),
        ([{"type": "Failed", "status": "True", "message": "no restarts left"}], "Failed", "no restarts left"),
        ([{"type": "Failed", "status": "False"}], "", ""),
    ],
)
def test_its_conditions_tell_its_state(conditions: list[dict[str, Any]], state: str, message: str) -> None:
    found = JOBSET.state(live(conditions=conditions))
    assert (found.kind, found.name, found.state, found.message) == ("JobSet", "train", state, message)


def test_it_is_suspended_as_a_whole_and_stopped_when_no_job_is_active() -> None:
    assert JOBSET.suspension == {"suspend": True}
    assert not JOBSET.is_stopped(live(replicatedJobsStatus=[{"active": 0}, {"active": 1}]))
    assert JOBSET.is_stopped(live(replicatedJobsStatus=[{"active": 0}, {"active": 0}]))
    assert JOBSET.path("team") == "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets"


def test_only_suspend_and_ttl_change_in_place() -> None:
    def sentences(current: Manifest, wanted: Manifest) -> list[str]:
        return changes([current], [wanted]).sentences()

    assert sentences(jobset(), jobset()) == ["JobSet/train: nothing"]
    assert sentences(jobset(), jobset(suspend=True)) == ["JobSet/train: update in place (suspend)"]
    [refused] = sentences(jobset(name="train-r1"), jobset(group(pods=3), name="train-r1"))
    assert refused.startswith("JobSet/train-r1: refused: replicatedJobs changes")
    assert "needs run=2" in refused
    assert sentences(jobset(name="train-r1"), jobset(name="train-r2")) == [
        "JobSet/train-r2: replace: run r1 → r2; r1 must be stopped first (job.suspend=true)"
    ]


def test_the_longest_pod_name_has_63_characters() -> None:
    assert object_findings([jobset(group(replicas=10, pods=10), name="j" * 45)]) == []
    [problem] = object_findings([jobset(group(replicas=11, pods=10), name="j" * 45)])
    assert problem.sentence.endswith("pod names would have 64 characters with job and index, 63 is the most")
