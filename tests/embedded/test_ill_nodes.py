"""Workers leave nodes that fall ill: the real controller with its chart's rights, and each way to be ill."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from bireme.cli import cli
from bireme.clusters.embedded import EmbeddedCluster
from bireme.clusters.programs import Program
from bireme.core.labels import HYPERPOD_HEALTH_LABEL, ILL_TAINT, QUARANTINE_ANNOTATION
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.embedded.elastic_jobs import BIREME, REGISTRY, TYPE
from tests.support import controllers
from tests.support.tiers import core
from tests.support.waiting import until

JOB: dict[str, Any] = {"instance": TYPE, "expect_differences": True}
WHY = "AcceleratedHardwareReady is False (NvidiaXID79Error)"
SETS = ["workers=2", "rendezvous.backend=c10d", "etcd.enabled=false"]


@pytest.fixture(scope="module")
def controller(
    cluster: EmbeddedCluster, new_release: Callable[[], InstalledRelease], test_namespace: str
) -> Iterator[Program]:
    """charts/autoscaler for the namespace of the tests; its controller runs as a process."""
    sets = [f"watchNamespace={test_namespace}", "illNodes.enabled=true", "everySeconds=1", REGISTRY]
    release = new_release().install("autoscaler", "autoscaler", test_namespace, sets=sets)
    with controllers.running(cluster, "autoscaler", test_namespace, BIREME) as program:
        yield program
    release.uninstall()


@pytest.fixture
def ail(cluster: EmbeddedCluster) -> Iterator[Callable[[str, Mapping[str, Any]], None]]:
    """``ail(node, ailment)``: patch a node; afterwards it is as before."""
    before: dict[str, Any] = {}

    def patch(node: str, ailment: Mapping[str, Any]) -> None:
        path = f"/api/v1/nodes/{node}"
        found = before.setdefault(path, cluster.api.get(path))
        if "conditions" in ailment:
            conditions = [*found["status"]["conditions"], *ailment["conditions"]]
            cluster.api.patch(f"{path}/status", {"status": {"conditions": conditions}})
        else:
            taints = [*(found["spec"].get("taints") or ()), *ailment.get("taints", ())]
            cluster.api.patch(
                path,
                {
                    "metadata": ailment.get("metadata", {}),
                    "spec": {**ailment.get("spec", {}), "taints": taints},
                },
            )

    yield patch
    for path, node in before.items():
        old = {"labels": {HYPERPOD_HEALTH_LABEL: None}}
        old["annotations"] = {QUARANTINE_ANNOTATION: None}
        spec = {"taints": node["spec"].get("taints"), "unschedulable": None}
        # In this order, so that a controller does not mark a node again that is still ill.
        cluster.api.patch(f"{path}/status", {"status": {"conditions": node["status"]["conditions"]}})
        cluster.api.patch(path, {"metadata": old, "spec": spec})


def condition(kind: str, status: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, "reason": "NvidiaXID79Error"}]}


def place(job: InstalledRelease, index: int) -> tuple[str, str]:
    """The node of a worker that runs and is not leaving, and its pod."""
    slot = f"{job.name}-r1-{index}"
    found = (pod for pod in job.pods() if pod.slot == slot and pod.is_live and pod.ready)
    return next(((str(pod.node), pod.name) for pod in found), ("", ""))


XID = {"key": "nvidia.com/gpu-xid-error", "value": "true", "effect": "NoSchedule"}
QUARANTINE = {"metadata": {"annotations": {QUARANTINE_ANNOTATION: "[]"}}, "spec": {"unschedulable": True}}
REPLACED = {"metadata": {"labels": {HYPERPOD_HEALTH_LABEL: "UnschedulablePendingReplacement"}}}
# One for each place in which a node can have it. tests/unit/test_node_health.py has all words.
AILMENTS = {
    WHY: condition("AcceleratedHardwareReady", "False"),
    "it has the taint nvidia.com/gpu-xid-error": {"taints": [XID]},
    "NVSentinel has cordoned it": QUARANTINE,
    "HyperPod says UnschedulablePendingReplacement": REPLACED,
}


@pytest.mark.parametrize("why", core(WHY, of=AILMENTS))
def test_a_worker_leaves_its_node_when_that_falls_ill_and_is_placed_elsewhere(
    cluster: EmbeddedCluster,
    controller: Program,
    release: ReleaseFactory,
    ail: Callable[[str, Mapping[str, Any]], None],
    why: str,
) -> None:
    job = release("torch-elastic", sets=SETS, **JOB)
    until(lambda: place(job, 0)[1] and place(job, 1)[1], what="both workers to run")
    (node, pod), other = place(job, 0), place(job, 1)
    budgets = f"/apis/policy/v1/namespaces/{job.namespace}/poddisruptionbudgets"
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": job.name}}
    selector = {"matchLabels": {"app.kubernetes.io/instance": job.name}}
    cluster.api.create(budgets, {**kind, "spec": {"minAvailable": 2, "selector": selector}})
    ail(node, AILMENTS[why])
    until(lambda: f"{pod} stays on {node}" in controller.log.read_text(), 60, controller.log.read_text)
    assert place(job, 0) == (node, pod), "a PodDisruptionBudget holds"
    cluster.api.delete(f"{budgets}/{job.name}")
    began = time.monotonic()
    until(lambda: place(job, 0)[0] not in ("", node), 240, controller.log.read_text, every=0.5)
    print(f"elsewhere after {time.monotonic() - began:.1f} s")
    assert place(job, 0)[1] != pod
    assert place(job, 1) == other

    def said() -> set[str]:
        path = f"/api/v1/namespaces/{job.namespace}/events"
        events = cluster.api.get(path, fieldSelector="reason=LeavesIllNode")["items"]
        return {each["message"] for each in events if each["involvedObject"]["name"] == f"{job.name}-r1"}

    until(said, what=controller.log.read_text)
    (sentence,) = said()
    assert sentence.startswith(f"worker 0 leaves {node}: {why}")


@pytest.mark.whole
def test_a_node_that_is_well_again_takes_workers_again(
    cluster: EmbeddedCluster, controller: Program, ail: Callable[[str, Mapping[str, Any]], None]
) -> None:
    node = next(each["metadata"]["name"] for each in cluster.api.get("/api/v1/nodes")["items"])

    def is_marked() -> bool:
        taints = cluster.api.get(f"/api/v1/nodes/{node}")["spec"].get("taints") or ()
        return any(each["key"] == ILL_TAINT for each in taints)

    ail(node, condition("StorageReady", "False"))
    until(is_marked, 240, controller.log.read_text)
    path = f"/api/v1/nodes/{node}/status"
    conditions = [{**each, "status": "True"} for each in cluster.api.get(path)["status"]["conditions"]]
    cluster.api.patch(path, {"status": {"conditions": conditions}})
    until(lambda: not is_marked(), 60, controller.log.read_text)


@pytest.mark.whole
def test_a_worker_that_would_come_back_stays_and_status_and_doctor_name_its_node(
    cluster: EmbeddedCluster,
    controller: Program,
    release: ReleaseFactory,
    ail: Callable[[str, Mapping[str, Any]], None],
) -> None:
    values = {"tolerations": [{"operator": "Exists"}]}
    job = release("torch-elastic", sets=SETS, values=values, **JOB)
    until(lambda: place(job, 0)[1] and place(job, 1)[1], what="both workers to run")
    node, pod = place(job, 0)
    ail(node, condition("AcceleratedHardwareReady", "False"))
    until(lambda: f"{pod} stays on {node}" in controller.log.read_text(), 60, controller.log.read_text)
    assert place(job, 0) == (node, pod)
    (found,) = job.differences()
    assert (found.category, found.sentence) == (
        "node-ill",
        f"{job.name}-r1-0 is on {node}, which is ill ({WHY})",
    )
    command = ["doctor", job.name, "--namespace", job.namespace, "--kubeconfig", str(cluster.kubeconfig)]
    assert f"Node {node} is ill: {WHY}" in " ".join(CliRunner().invoke(cli, command).output.split())
