"""Exported JobSets, TrainJobs and PyTorchJobs under their controllers have the pods of their chart."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from bireme.adopt.export import export
from bireme.clusters.embedded import EmbeddedCluster
from bireme.helm import Renderer
from bireme.plan.instances import Instance
from bireme.plan.topology import expand
from bireme.testing.charts import RequestFor
from bireme.tools import Toolbox
from tests.embedded.addons import OwnCluster
from tests.support.managers import JOBSET, TRAINER, TRAINING_OPERATOR
from tests.support.waiting import until

pytestmark = [pytest.mark.embedded, pytest.mark.whole]

WORKERS = 3
# What tells a worker its place, by kind.
INDEXES = {"PyTorchJob": "training.kubeflow.org/replica-index"}
INDEX = "batch.kubernetes.io/job-completion-index"
# A cluster of three nodes, each of which one worker fills.
NODES = {"p4d.24xlarge": WORKERS}
VALUES: Mapping[str, Any] = {
    "workers": WORKERS,
    "instance": {"type": "p4d.24xlarge"},
    "args": ["/app/train.py"],
    "launch": {"files": {"more.txt": "a"}},
    "elastic": {"minWorkers": 2, "maxWorkers": WORKERS},
}
# The path of each kind, and of what the objects of an export are.
PATHS = {
    "JobSet": "apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets",
    "TrainJob": "apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs",
    "PyTorchJob": "apis/kubeflow.org/v1/namespaces/default/pytorchjobs",
    "TrainingRuntime": "apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainingruntimes",
    "ConfigMap": "api/v1/namespaces/default/configmaps",
    "NetworkPolicy": "apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
}


@pytest.fixture(scope="module")
def controlled(own_cluster: OwnCluster, toolbox: Toolbox) -> Iterator[EmbeddedCluster]:
    """A cluster of its own: the controllers' webhooks see each pod that is made there."""
    with own_cluster("exports", NODES) as cluster, contextlib.ExitStack() as stack:
        for each in (JOBSET, TRAINER, TRAINING_OPERATOR):
            stack.enter_context(each.running(cluster, toolbox))
        yield cluster


def items(cluster: EmbeddedCluster, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.api.get(f"/api/v1/namespaces/default/{path}")["items"]
    return found


def variables(pod: Mapping[str, Any]) -> dict[str, Any]:
    [trainer] = [each for each in pod["spec"]["containers"] if each["name"] in ("trainer", "node", "pytorch")]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in trainer["env"]}


@pytest.mark.parametrize("kind", ["JobSet", "TrainJob", "PyTorchJob"])
def test_an_exported_job_runs_with_the_topology_of_its_chart(
    kind: str,
    controlled: EmbeddedCluster,
    renderer: Renderer,
    request_for: RequestFor,
    instances: Mapping[str, Instance],
) -> None:
    name = f"e{uuid.uuid4().hex[:6]}"
    request = request_for("torch-elastic", values=VALUES, release=name)
    manifests = renderer.render(request).manifests
    [planned] = [
        each for each in expand(name, "default", manifests, instances).workloads if each.role == "worker"
    ]
    found = export(renderer, request, kind, instances).objects
    for each in found:
        controlled.api.create(f"/{PATHS[each['kind']]}", each)
    until(
        lambda: [each["status"]["phase"] for each in items(controlled, "pods")] == ["Running"] * WORKERS,
        seconds=120,
        what=f"the pods of the {kind}",
    )

    pods, index = items(controlled, "pods"), INDEXES.get(kind, INDEX)
    assert {int(each["metadata"]["labels"][index]) for each in pods} == {each.rank for each in planned.pods}
    assert len({each["spec"]["nodeName"] for each in pods}) == WORKERS
    for pod in pods:
        [asked] = [each["resources"]["limits"] for each in pod["spec"]["containers"] if "resources" in each]
        assert [asked[key] for key in ("nvidia.com/gpu", "vpc.amazonaws.com/efa")] == ["8", "4"]
        env = variables(pod)
        assert (env["PET_NNODES"], env["PET_NPROC_PER_NODE"]) == ("2:3", "8")
        assert "JOB_COMPLETION_INDEX" in env
    # Worker 0 has the name at which all look for the rendezvous.
    host = {variables(each)["PET_RDZV_ENDPOINT"].partition(":")[0] for each in pods}
    [first] = [each for each in pods if each["metadata"]["labels"][index] == "0"]
    named = names(first, items(controlled, "services"))
    assert host <= named, named

    for each in reversed(found):
        controlled.api.delete(f"/{PATHS[each['kind']]}/{each['metadata']['name']}")
    until(lambda: items(controlled, "pods") == [], seconds=240, what="the pods to be gone")


def names(pod: Mapping[str, Any], services: list[dict[str, Any]]) -> set[str]:
    """The names that DNS has for a pod: by its host name, and of a Service for it alone."""
    labels, spec = pod["metadata"]["labels"], pod["spec"]
    found = set()
    for each in services:
        name, selector = each["metadata"]["name"], each["spec"].get("selector")
        if selector and selector.items() <= labels.items():
            assert each["spec"]["clusterIP"] == "None", json.dumps(each)
            found |= {name, f"{spec.get('hostname')}.{name}.default.svc"}
    return {each for each in found if not each.startswith("None.")}
