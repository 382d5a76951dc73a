"""Exported jobs under their controllers, without Helm: the pods are those that are planned."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from bireme.adopt.export import export
from bireme.clusters.embedded import EmbeddedCluster
from bireme.core.manifests import Manifest
from bireme.helm import Renderer
from bireme.live import observe
from bireme.plan.instances import Instance
from bireme.plan.topology import expand
from bireme.testing.charts import RequestFor
from bireme.tools import Toolbox

Apply = Callable[[Sequence[Mapping[str, Any]]], None]
pytestmark = [pytest.mark.embedded, pytest.mark.whole, pytest.mark.usefixtures("mpi_operator")]


@pytest.fixture
def apply(cluster: EmbeddedCluster, toolbox: Toolbox) -> Iterator[Apply]:
    """``apply(objects)``, as kubectl does it. They are removed when the test ends."""
    made: list[str] = []

    def kubectl(*command: str, text: str) -> None:
        argv = [str(toolbox.path("kubectl")), "--kubeconfig", str(cluster.kubeconfig), *command, "-f", "-"]
        done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def _apply(objects: Sequence[Mapping[str, Any]]) -> None:
        made.append(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        kubectl("apply", text=made[-1])

    yield _apply
    for text in made:
        kubectl("delete", "--ignore-not-found", "--wait=false", text=text)


@pytest.mark.parametrize(
    ("chart", "kind", "pods"),
    [
        ("mpi-training", "MPIJob", {"launcher": 1, "worker": 2}),
        ("mpi-training", "Job", {"worker": 2}),
        ("torch-elastic", "Job", {"worker": 2}),
        ("paddle", "Job", {"pserver": 2, "trainer": 2}),
    ],
)
def test_an_exported_job_has_the_pods_of_its_plan(
    chart: str,
    kind: str,
    pods: Mapping[str, int],
    apply: Apply,
    cluster: EmbeddedCluster,
    renderer: Renderer,
    request_for: RequestFor,
    instances: Mapping[str, Instance],
    test_namespace: str,
) -> None:
    nodes = {} if chart == "paddle" else {"instance": {"type": "p4d.24xlarge"}}
    values = {"workers": 2, "args": ["./train"], **nodes}
    name = f"e{uuid.uuid4().hex[:6]}"
    request = request_for(chart, values=values, release=name, namespace=test_namespace)
    found = export(renderer, request, kind, instances)
    apply(found.objects)
    plan = expand(name, test_namespace, map(Manifest, found.objects), instances)
    assert observe.wait(cluster, plan, 60).differences == ()
    live = [pod.role for pod in observe.observe(cluster, plan) if pod.is_live]
    assert {role: live.count(role) for role in set(live)} == pods
