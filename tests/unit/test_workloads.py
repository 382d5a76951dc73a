"""The registry of workload kinds, and the rule that only their own files name them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bireme.core.errors import BiremeError
from bireme.core.manifests import Manifest
from bireme.plan.changes import changes
from bireme.plan.instances import Instance
from bireme.plan.topology import expand
from bireme.plan.workloads import KINDS, plan_of, trace
from tests.unit.conftest import BiremePlan


def an_object(kind: str, spec: Mapping[str, Any]) -> Manifest:
    about = {"apiVersion": KINDS[kind].api_version, "kind": kind, "metadata": {"name": "a"}}
    return Manifest({**about, "spec": spec})


def test_no_module_outside_of_workloads_names_a_kind() -> None:
    package = Path(__file__).parents[2] / "src" / "bireme"
    for file in [*package.glob("*.py"), *package.glob("check/*.py")]:
        nodes = ast.walk(ast.parse(file.read_text()))
        texts = {
            node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not texts & KINDS.keys(), file


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Pod", "/api/v1/namespaces/team/pods"),
        ("StatefulSet", "/apis/apps/v1/namespaces/team/statefulsets"),
        ("MPIJob", "/apis/kubeflow.org/v2beta1/namespaces/team/mpijobs"),
    ],
)
def test_the_api_path_of_a_kind(kind: str, path: str) -> None:
    assert KINDS[kind].path("team") == path


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"MPIJob", "PyTorchJob"}))
def test_an_object_without_a_spec_can_be_planned(kind: str, instances: Mapping[str, Instance]) -> None:
    plan = plan_of(an_object(kind, {}), instances)
    assert plan is not None
    assert (plan.kind, plan.name) == (kind, "a")


@pytest.mark.parametrize(
    ("kind", "spec", "sentence"),
    [
        (
            "Job",
            {"completions": "x"},
            "Job/a: completions is 'x', it must be a whole number from 0",
        ),
        ("Job", {"parallelism": 10**12}, "Job/a: parallelism is '1000000000000', it must be"),
        ("StatefulSet", {"replicas": 1.5}, "StatefulSet/a: replicas is '1.5', it must be"),
        (
            "Job",
            {"template": "x"},
            "Job/a is not valid in Kubernetes: bireme check CHART says where",
        ),
        (
            "Job",
            {"template": {"spec": {"containers": ["x"]}}},
            "Job/a is not valid in Kubernetes",
        ),
        (
            "StatefulSet",
            {"volumeClaimTemplates": [{}]},
            "StatefulSet/a is not valid in Kubernetes",
        ),
    ],
)
def test_an_object_that_kubernetes_would_not_read_is_named(
    kind: str, spec: dict[str, Any], sentence: str, instances: Mapping[str, Instance]
) -> None:
    wrong = Manifest({"kind": kind, "metadata": {"name": "a"}, "spec": spec})
    with pytest.raises(BiremeError, match=re.escape(sentence)):
        expand("run", "default", [wrong], instances)


@pytest.mark.parametrize(
    ("labels", "controller", "owner"),
    [
        ({}, None, ("Pod", "a-0", "a-0")),
        ({}, ("StatefulSet", "a"), ("StatefulSet", "a", "a-0")),
        ({"pod-template-hash": "6c5d"}, ("ReplicaSet", "a-6c5d"), ("Deployment", "a", None)),
        ({}, ("ReplicaSet", "a"), ("ReplicaSet", "a", None)),
        ({"training.kubeflow.org/job-name": "a"}, ("Job", "a-launcher"), ("MPIJob", "a", "a-0")),
        ({"training.kubeflow.org/job-name": "a"}, ("Job", "other"), ("Job", "other", None)),
        ({}, ("RayCluster", "a"), ("RayCluster", "a", None)),
    ],
)
def test_a_live_pod_is_traced_to_its_workload(
    labels: Mapping[str, str], controller: tuple[str, str] | None, owner: tuple[str, str, str | None]
) -> None:
    owners = [{"kind": controller[0], "name": controller[1], "controller": True}] if controller else []
    pod = {"metadata": {"name": "a-0", "labels": labels, "ownerReferences": owners}, "spec": {}}
    assert trace(pod) == owner


def test_a_replica_set_keeps_its_pods_when_its_template_changes() -> None:
    before, after = (
        an_object("ReplicaSet", {"replicas": 2, "template": {"spec": {"hostname": name}}}) for name in "xy"
    )
    assert changes([before], [after]).sentences() == ["ReplicaSet/a: update in place (pods made from now on)"]


def test_a_bare_pod_changes_little_in_place() -> None:
    def sentences(**spec: Any) -> list[str]:
        return changes([an_object("Pod", {"hostname": "a"})], [an_object("Pod", spec)]).sentences()

    assert sentences(hostname="a", tolerations=[{}]) == ["Pod/a: update in place (tolerations)"]
    [refused] = sentences(hostname="b")
    assert refused.startswith("Pod/a: refused: hostname changes")


@pytest.mark.parametrize("resource", ["amd.com/gpu", "habana.ai/gaudi", "google.com/tpu"])
def test_accelerators_of_other_makers_are_counted(bireme_plan: BiremePlan, resource: str) -> None:
    job = (
        "{apiVersion: batch/v1, kind: Job, metadata: {name: train}, spec: {completions: 2, parallelism: 2,"
        " template: {spec: {restartPolicy: Never, containers: [{name: main, image: a,"
        ' resources: {limits: {RESOURCE: "8"}}}]}}}}'
    ).replace("RESOURCE", resource)
    assert json.loads(bireme_plan(job, "-o", "json"))["totals"]["accelerators"] == 16
