"""PyTorchJob: planned from a foreign chart, traced, stopped and judged as the training operator treats it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bireme.check.objects import object_findings
from bireme.core.errors import BiremeError
from bireme.core.manifests import Manifest
from bireme.live.observe import compare
from bireme.plan.changes import changes
from bireme.plan.instances import Instance
from bireme.plan.topology import expand
from bireme.plan.workloads import KINDS
from bireme.plan.workloads.model import WorkloadPlan
from tests.support.live import live_pod

CHART = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: {{ .Release.Name }}
spec:
  nprocPerNode: "8"
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template: &pods
        spec:
          nodeSelector: {node.kubernetes.io/instance-type: p4d.24xlarge}
          containers: [{name: pytorch, image: train, resources: {limits: {nvidia.com/gpu: 8}}}]
    Worker:
      replicas: 2
      template: *pods
"""
PYTORCH_JOB = KINDS["PyTorchJob"]


def replica(replicas: int | None = None, **resources: object) -> dict[str, Any]:
    container = {"name": "pytorch", "resources": {"limits": resources}}
    count = {} if replicas is None else {"replicas": replicas}
    return {**count, "template": {"spec": {"containers": [container]}}}


def pytorch_job(name: str = "train", roles: Mapping[str, Any] | None = None, **spec: Any) -> Manifest:
    about = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}}
    replicas = {"Master": replica(), "Worker": replica(2)} if roles is None else roles
    return Manifest({**about, "spec": {"pytorchReplicaSpecs": replicas, **spec}})


def workload(manifest: Manifest) -> WorkloadPlan:
    return PYTORCH_JOB.plan(manifest, {})


def live(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "train"}, "status": status}


def test_a_foreign_chart_with_a_pytorch_job_is_planned(bireme_plan: Callable[..., str]) -> None:
    plan = json.loads(bireme_plan(CHART, "-o", "json"))
    assert plan["totals"] == {"pods": 3, "accelerators": 24, "efa": 0, "nodes": {"p4d.24xlarge": 3}}
    [job] = plan["workloads"]
    assert (job["kind"], job["role"], job["replicas"]) == ("PyTorchJob", "worker", 3)
    assert [(pod["name"], pod["role"], pod["rank"], pod["hostname"]) for pod in job["pods"]] == [
        ("run-master-0", "master", 0, "run-master-0"),
        ("run-worker-0", "worker", 1, "run-worker-0"),
        ("run-worker-1", "worker", 2, "run-worker-1"),
    ]


@pytest.mark.parametrize(
    ("policy", "bounds"),
    [
        ({"minReplicas": 1, "maxReplicas": 8}, (1, 8)),
        ({"maxReplicas": 8}, (8, 8)),
        ({"minReplicas": 2}, (2, 2)),
        ({}, (4, 4)),
        (None, (4, 4)),
    ],
)
def test_an_elastic_policy_bounds_the_pods(policy: Any, bounds: tuple[int, int]) -> None:
    spec = {} if policy is None else {"elasticPolicy": policy}
    elastic = workload(pytorch_job(roles={"Worker": replica(4)}, **spec))
    assert (elastic.replicas, (elastic.min_replicas, elastic.max_replicas)) == (4, bounds)
    assert [pod.rank for pod in elastic.pods] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("spec", "processes"),
    [
        ({"nprocPerNode": "4"}, 4),
        ({"nprocPerNode": "gpu"}, 8),
        ({"nprocPerNode": "auto"}, 8),
        ({"nprocPerNode": "cpu"}, None),
        ({"elasticPolicy": {"nProcPerNode": 2}}, 2),
        ({"elasticPolicy": {}}, 8),
        ({}, 1),
    ],
)
def test_processes_per_pod_follow_nproc_per_node(spec: Mapping[str, Any], processes: int | None) -> None:
    job = pytorch_job(roles={"Worker": replica(1, **{"nvidia.com/gpu": 8})}, **spec)
    assert [pod.processes for pod in workload(job).pods] == [processes]


def test_roles_count_in_any_case_and_one_of_them_is_needed() -> None:
    assert [pod.name for pod in workload(pytorch_job(roles={"worker": replica(1)})).pods] == [
        "train-worker-0"
    ]
    with pytest.raises(BiremeError, match="PyTorchJob/train has neither Master nor Worker"):
        workload(pytorch_job(roles={}))


def test_live_pods_are_matched_by_name(instances: Mapping[str, Instance]) -> None:
    plan = expand("run", "default", [pytorch_job()], instances)
    pods = [
        live_pod(name, "PyTorchJob", "train")
        for name in ("train-master-0", "train-worker-0", "train-worker-1")
    ]
    assert compare(plan, pods) == ()
    [missing] = compare(plan, pods[1:])
    assert (missing.category, missing.pod) == ("missing", "train-master-0")


@pytest.mark.parametrize(
    ("conditions", "state", "message"),
    [
        ([{"type": "Running", "status": "True"}], "", ""),
        ([{"type": "Running", "status": "False"}, {"type": "Succeeded", "status": "True"}], "Complete", ""),
        ([{"type": "Failed", "status": "True", "message": "backoff limit"}], "Failed", "backoff limit"),
    ],
)
def test_its_conditions_tell_its_state(conditions: list[dict[str, Any]], state: str, message: str) -> None:
    found = PYTORCH_JOB.state(live(conditions=conditions))
    assert (found.kind, found.state, found.message) == ("PyTorchJob", state, message)


def test_it_is_suspended_by_its_run_policy_and_stopped_when_no_pod_is_active() -> None:
    assert PYTORCH_JOB.suspension == {"runPolicy": {"suspend": True}}
    assert workload(pytorch_job(runPolicy={"suspend": True})).suspended
    assert not PYTORCH_JOB.is_stopped(live(replicaStatuses={"Master": {}, "Worker": {"active": 1}}))
    assert PYTORCH_JOB.is_stopped(live(replicaStatuses={"Master": {}, "Worker": {"active": 0}}))
    assert PYTORCH_JOB.path("team") == "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs"


def test_it_scales_in_place_and_new_templates_wait_for_new_pods() -> None:
    more = pytorch_job(roles={"Master": replica(), "Worker": replica(4)})
    assert changes([pytorch_job()], [more]).sentences() == ["PyTorchJob/train: scale in place 3 → 5"]
    larger = pytorch_job(roles={"Master": replica(cpu=1), "Worker": replica(2, cpu=1)})
    assert changes([pytorch_job()], [larger]).sentences() == [
        "PyTorchJob/train: update in place (a master not made yet, workers made from now on)"
    ]


def test_the_longest_host_name_has_63_characters() -> None:
    roles = {"Worker": replica(11)}
    assert object_findings([pytorch_job("t" * 53, roles)]) == []
    [problem] = object_findings([pytorch_job("t" * 54, roles)])
    assert problem.sentence.endswith(
        "host names would have 64 characters with role and index, 63 is the most"
    )
