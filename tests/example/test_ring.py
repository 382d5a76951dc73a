"""How a team with a chart of its own tests it: with the fixtures of bireme and pytest-helm-charts alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from bireme.plan.topology import Plan
from bireme.testing.pytest_plugin import ReleaseFactory

RING = "tests/example/ring"


def test_four_half_node_workers_need_two_nodes(plan: Callable[..., Plan]) -> None:
    totals = plan(RING).totals
    assert (totals.pods, totals.accelerators, dict(totals.nodes)) == (4, 16, {"p4d.24xlarge": 2})


def test_the_ring_arrives_as_planned(release: ReleaseFactory) -> None:
    ring = release(RING, sets=["workers=6"])
    assert ring.differences() == ()
    assert max(Counter(pod.node for pod in ring.pods()).values()) <= 2


def test_pytest_helm_charts_sees_the_same_cluster(kube_cluster: Any, release: ReleaseFactory) -> None:
    ring = release(RING)
    pods = kube_cluster.kubectl(
        f"get pods --namespace {ring.namespace} --selector app.kubernetes.io/instance={ring.name}"
    )
    assert {pod["metadata"]["name"] for pod in pods} == {pod.name for pod in ring.pods()}
