"""Live pods compared with the plan: each difference has a category and a sentence."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from bireme.clusters.api import Api, ApiError
from bireme.core.manifests import Manifest
from bireme.live import observe as observing
from bireme.live.deploy import Deployer
from bireme.live.observe import Difference, Observation, check, compare, observe
from bireme.live.pods import NodeState, ObservedPod, observed_pod, shorten
from bireme.live.queue_position import UNSEEN, QueuePosition, queue_positions, sentence
from bireme.plan.queues import Queued
from bireme.plan.topology import Plan, Totals, expand
from bireme.plan.workloads.model import ObservedWorkload, PodPlan, WorkloadPlan
from tests.support.live import live_pod

OF_MPI_JOB = {"training.kubeflow.org/job-name": "maskrcnn-r1"}
SELECTOR = {"node.kubernetes.io/instance-type": "p4d.24xlarge"}
RESOURCES = {"memory": "1024Mi", "nvidia.com/gpu": "8"}


def plan_of(*workloads: WorkloadPlan) -> Plan:
    return Plan("imagenet", "default", workloads, Totals(0, 0, 0, {}))


def job(workers: int = 2, name: str = "imagenet-r1", suspended: bool = False) -> WorkloadPlan:
    names = [f"{name}-{index}" for index in range(workers)]
    pods = tuple(PodPlan(each, "worker", rank, each, RESOURCES, SELECTOR) for rank, each in enumerate(names))
    return WorkloadPlan(name, "Job", "worker", workers, 1, 128, pods, suspended)


def worker(
    index: int = 0,
    *,
    job: str = "imagenet-r1",
    suffix: str = "abcde",
    phase: str = "Running",
    ready: bool | None = None,
    node: str | None = "p4d-24xlarge-0",
    gpus: int = 8,
    created: str = "2026-01-01T00:00:00Z",
    deleted: bool = False,
    state: Mapping[str, Any] | None = None,
    scheduler: str = "",
    node_state: NodeState = "",
) -> ObservedPod:
    is_ready = phase == "Running" if ready is None else ready
    conditions = [{"type": "Ready", "status": str(is_ready)}]
    if scheduler:
        conditions.append({"type": "PodScheduled", "status": "False", "message": scheduler})
    labels = {
        "app.kubernetes.io/component": "worker",
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    pod = {
        "metadata": {
            "name": f"{job}-{index}-{suffix}",
            "labels": labels,
            "creationTimestamp": created,
            "ownerReferences": [{"kind": "Job", "name": job, "controller": True}],
        }
        | ({"deletionTimestamp": created} if deleted else {}),
        "spec": {
            "hostname": f"{job}-{index}",
            "nodeSelector": SELECTOR,
            "containers": [{"resources": {"limits": {"memory": "1Gi", "nvidia.com/gpu": str(gpus)}}}],
        }
        | ({"nodeName": node} if node else {}),
        "status": {
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": [{"name": "trainer", "ready": is_ready, "state": state or {"running": {}}}],
        },
    }
    return observed_pod(pod, node_state)


def mpi_job(workers: int = 2, name: str = "maskrcnn-r1") -> WorkloadPlan:
    names = [f"{name}-launcher", *(f"{name}-worker-{index}" for index in range(workers))]
    roles = ["launcher", *["worker"] * workers]
    pods = tuple(PodPlan(host, role, None, host, {}, {}) for host, role in zip(names, roles, strict=True))
    return WorkloadPlan(name, "MPIJob", "worker", workers, workers, workers, pods)


def mpi_launcher() -> ObservedPod:
    name = "maskrcnn-r1-launcher"
    return live_pod(f"{name}-x2x4z", "Job", name, hostname=name, labels=OF_MPI_JOB)


def mpi_worker(index: int) -> ObservedPod:
    return live_pod(f"maskrcnn-r1-worker-{index}", "MPIJob", "maskrcnn-r1", labels=OF_MPI_JOB)


def categories(differences: tuple[Difference, ...]) -> list[tuple[str, str]]:
    return [(each.category, each.pod) for each in differences]


def test_pods_as_planned_have_no_difference() -> None:
    assert compare(plan_of(job(2)), [worker(0), worker(1)]) == ()


def test_the_launcher_and_workers_of_an_mpi_job_are_matched_by_host_name() -> None:
    plan = plan_of(mpi_job(2))
    assert compare(plan, [mpi_worker(0), mpi_worker(1), mpi_launcher()]) == ()
    (found,) = compare(plan, [mpi_worker(0), mpi_worker(1)])
    assert (found.category, found.pod) == ("missing", "maskrcnn-r1-launcher")
    extra = compare(plan, [mpi_worker(0), mpi_worker(1), mpi_worker(2), mpi_launcher()])
    assert categories(extra) == [("extra", "maskrcnn-r1-worker-2")]


def test_a_planned_worker_without_a_pod_is_missing() -> None:
    (found,) = compare(plan_of(job(2)), [worker(0)])
    assert (found.category, found.pod) == ("missing", "imagenet-r1-1")
    assert found.sentence == "imagenet-r1-1 (worker) is missing: Job imagenet-r1 has no such pod"


def test_a_live_worker_that_was_not_planned_is_extra_and_its_owner_is_named() -> None:
    (found,) = compare(plan_of(job(1)), [worker(0), worker(1)])
    assert found.category == "extra"
    assert "Job imagenet-r1" in found.sentence


def test_workers_of_another_run_are_extra() -> None:
    found = compare(plan_of(job(1, "imagenet-r2")), [worker(0), worker(0, job="imagenet-r2")])
    assert categories(found) == [("extra", "imagenet-r1-0-abcde")]


@pytest.mark.parametrize(
    "pod", [worker(1, deleted=True), worker(1, phase="Failed"), worker(1, phase="Succeeded")]
)
def test_an_unplanned_worker_that_ends_or_has_ended_is_no_difference(pod: ObservedPod) -> None:
    assert compare(plan_of(job(1)), [worker(0), pod]) == ()


@pytest.mark.parametrize("old", [{"phase": "Failed"}, {"deleted": True}])
def test_a_worker_that_was_replaced_is_no_difference(old: dict[str, Any]) -> None:
    pods = [worker(0, suffix="old", **old), worker(0, suffix="new", created="2026-01-01T00:01:00Z")]
    assert compare(plan_of(job(1)), pods) == ()


def test_a_wrong_node_selector_and_host_name_are_named() -> None:
    pod = replace(worker(0), node_selector={}, hostname="somewhere")
    found = compare(plan_of(job(1)), [pod])
    assert [each.category for each in found] == ["node-selector", "hostname"]
    assert "instance-type=nothing, planned p4d.24xlarge" in found[0].sentence
    assert found[1].sentence == "imagenet-r1-0 has host name somewhere, planned imagenet-r1-0"


FULL = (
    "0/4 nodes are available: 4 Insufficient nvidia.com/gpu. no new claims to deallocate, "
    "preemption: 0/4 nodes are available: 4 No preemption victims found for incoming pod."
)
WAITS = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
ENDED = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
KILLED = "failed with exit code 137 (container trainer ended: OOMKilled) and has no replacement yet"
GONE = "was on p4d-24xlarge-0, which is gone: Kubernetes replaces it in about a minute"
TAINT = "kubectl taint node p4d-24xlarge-0 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"


@pytest.mark.parametrize(
    ("pod", "category", "end"),
    [
        (worker(gpus=4), "resources", "imagenet-r1-0 asks for 4 of nvidia.com/gpu, planned 8"),
        (
            worker(phase="Pending", node=None, scheduler=FULL),
            "pending",
            "imagenet-r1-0 is Pending: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu",
        ),
        (
            worker(phase="Pending", state=WAITS),
            "not-ready",
            "container trainer waits: ImagePullBackOff, no such image",
        ),
        (worker(ready=False), "not-ready", "container trainer runs and its readiness probe fails"),
        (
            worker(phase="Failed", state=ENDED),
            "failed",
            KILLED,
        ),
        (worker(ready=False, node_state="unreachable"), "unreachable", TAINT),
        (worker(ready=False, deleted=True, node_state="unreachable"), "unreachable", TAINT),
        (
            worker(node_state="gone"),
            "node-gone",
            GONE,
        ),
    ],
    ids=["resource", "pending", "waiting", "probe", "failed", "cut", "cut and deleted", "gone"],
)
def test_what_is_wrong_with_a_worker_has_a_category_and_a_reason(
    pod: ObservedPod, category: str, end: str
) -> None:
    (found,) = compare(plan_of(job(1)), [pod])
    assert found.category == category
    assert found.sentence.endswith(end)


def test_a_worker_on_an_ill_node_says_why_until_it_has_left() -> None:
    why = "AcceleratedHardwareReady is False (NvidiaXID79Error)"
    (found,) = compare(plan_of(job(1)), [worker(0, node_state=why)])
    assert found.category == "node-ill"
    assert found.sentence.endswith(f" is on p4d-24xlarge-0, which is ill ({why})")
    (found,) = compare(plan_of(job(1)), [worker(0, node_state=why, deleted=True)])
    assert found.category == "terminating"
    assert f"p4d-24xlarge-0, which is ill ({why})" in found.sentence


def test_a_deleted_worker_without_a_replacement_is_terminating() -> None:
    assert categories(compare(plan_of(job(1)), [worker(0, deleted=True)])) == [
        ("terminating", "imagenet-r1-0")
    ]


def test_a_suspended_job_has_no_workers() -> None:
    assert compare(plan_of(job(2, suspended=True)), []) == ()
    assert categories(compare(plan_of(job(2, suspended=True)), [worker(0)])) == [
        ("extra", "imagenet-r1-0-abcde")
    ]


def test_a_complete_job_has_no_missing_workers() -> None:
    done = ObservedWorkload("Job", "imagenet-r1", "Complete")
    assert compare(plan_of(job(2)), [worker(0, phase="Succeeded", ready=False)], [done]) == ()


def test_a_failed_job_is_one_difference_with_its_reason() -> None:
    lost = ObservedWorkload("Job", "imagenet-r1", "Failed", "Container trainer failed with exit code 64")
    (found,) = compare(plan_of(job(2)), [worker(0, phase="Failed")], [lost])
    assert found.category == "job-failed"
    assert found.sentence == (
        "Job imagenet-r1 has failed for good: Container trainer failed with exit code 64"
    )


def test_a_statefulset_in_the_middle_of_a_rollout_is_a_difference() -> None:
    pod = PodPlan("etcd-0", "member", None, "etcd-0", {}, {})
    plan = plan_of(WorkloadPlan("etcd", "StatefulSet", "member", 1, 1, 1, (pod,)))
    there = replace(
        worker(0), slot="etcd-0", kind="StatefulSet", workload="etcd", resources={}, node_selector={}
    )
    there = replace(there, hostname="etcd-0")
    updating = ObservedWorkload("StatefulSet", "etcd", "Updating")
    assert compare(plan, [there]) == ()
    assert [each.category for each in compare(plan, [there], [updating])] == ["updating"]


def test_deployment_pods_are_matched_by_what_made_them() -> None:
    planned = PodPlan("board-0", "tensorboard", None, None, {}, {})
    plan = plan_of(WorkloadPlan("board", "Deployment", "tensorboard", 1, 1, 1, (planned,)))
    labels = {"pod-template-hash": "6c5d"}
    there = live_pod("board-6c5d-x1", "ReplicaSet", "board-6c5d", labels=labels)
    assert (there.kind, there.workload) == ("Deployment", "board")
    assert compare(plan, [there]) == ()
    assert categories(compare(plan, [])) == [("missing", "board-0")]
    assert [each.category for each in compare(plan, [there, replace(there, name="board-6c5d-x2")])] == [
        "extra"
    ]


def test_a_long_message_is_cut_and_its_lines_are_joined() -> None:
    assert shorten("one\ntwo.") == "one two"
    assert len(shorten("word " * 100)) == 240


def test_1000_workers_are_compared_within_a_second() -> None:
    plan, pods = plan_of(job(1000)), [worker(index) for index in range(1000)]
    started = time.process_time()
    assert compare(plan, pods) == ()
    assert time.process_time() - started < 1


def test_pods_of_a_daemon_set_are_not_counted_but_each_must_be_ready() -> None:
    plan = plan_of(
        WorkloadPlan(
            "plugin", "DaemonSet", "plugin", 0, 0, 0, (), instance_types=("p4d.24xlarge",), note="each node"
        )
    )
    there = live_pod("plugin-0", "DaemonSet", "plugin")
    assert compare(plan, [there]) == ()
    (late,) = compare(plan, [there, live_pod("plugin-1", "DaemonSet", "plugin", ready=False)])
    assert (late.category, late.pod) == ("not-ready", "plugin-1")
    message = "is not on all its nodes yet: 1 of 2 have its newest pods"
    itself = ObservedWorkload("DaemonSet", "plugin", "Updating", message)
    (updating,) = compare(plan, [there], [itself])
    assert updating.sentence == "DaemonSet plugin is not on all its nodes yet: 1 of 2 have its newest pods"


class Answers:
    """An API server with the given objects by plural, or the given refusal of a plural."""

    items = Api.items

    def __init__(self, **objects: list[dict[str, Any]] | int) -> None:
        self.objects = {"pods": [], "nodes": [], **objects}

    def get(self, path: str, **query: str) -> dict[str, Any]:
        found = self.objects.get(path.rpartition("/")[2], 404)
        if isinstance(found, int):
            raise ApiError(found, f"refused {path}")
        return {"items": found, "metadata": {"resourceVersion": "1"}}

    def find(self, path: str) -> dict[str, Any] | None:
        if path in DISCOVERY:
            return {"resources": DISCOVERY[path]}
        objects = self.objects.get(path.split("/")[-2], [])
        if isinstance(objects, int):
            if objects == 404:
                return None
            raise ApiError(objects, f"refused {path}")
        name = path.rpartition("/")[2]
        return next((each for each in objects if each["metadata"]["name"] == name), None)

    def each(self, call: Any, items: Any) -> list[Any]:
        return [call(each) for each in items]


DISCOVERY = {
    "/apis/batch/v1": [{"name": "jobs", "kind": "Job", "namespaced": True}],
    "/apis/apps/v1": [{"name": "statefulsets", "kind": "StatefulSet", "namespaced": True}],
    "/apis/example.com/v1": [{"name": "databases", "kind": "Database", "namespaced": True}],
}


@dataclass(frozen=True)
class AnsweringCluster:
    api: Any
    provider: str = "existing"


@pytest.mark.parametrize(
    ("scheduler", "waits"), [("", True), ("0/3 nodes are available: 3 Insufficient memory", False)]
)
def test_a_pod_that_the_scheduler_has_not_looked_at_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, scheduler: str, waits: bool
) -> None:
    plan = plan_of(job(1))
    pending = replace(worker(node=None, phase="Pending"), reason=scheduler)
    pods = [pending] * 9 + [worker()]

    class Live:
        """A release whose pod is pending for nine looks."""

        def __init__(self, *_: object) -> None:
            self.looks = iter(pods)

        def read(self) -> Live:
            return self

        def follow(self, *_: object, **__: object) -> None:
            time.sleep(0.05)

        def compared(self) -> Observation:
            pod = next(self.looks)
            return Observation((pod,), compare(plan, [pod]))

    monkeypatch.setattr(observing, "LiveRelease", Live)
    monkeypatch.setattr(observing, "_UNCHANGED_SECONDS", 0.1)
    found = observing.wait(AnsweringCluster(Answers(), "embedded"), plan)  # type: ignore[arg-type]
    assert (found.differences == ()) is waits


@pytest.mark.parametrize(
    ("why", "unchanged", "is_held"),
    [(UNSEEN, 11.0, False), (UNSEEN, 61.0, True), ("insufficient quota", 11.0, True)],
)
def test_a_queue_that_has_not_seen_a_job_does_not_hold_it_for_a_minute(
    monkeypatch: pytest.MonkeyPatch, why: str, unchanged: float, is_held: bool
) -> None:
    waits = Queued("Job", "imagenet-r1", "training", "", 2, {}, ("imagenet-r1",))
    plan = replace(plan_of(job()), queued=(waits,))
    position = QueuePosition("Job", "imagenet-r1", "training", "waiting", why)
    monkeypatch.setattr("bireme.live.deploy.queue_positions", lambda *_: (position,))
    nothing: Any = None
    deployer = Deployer(AnsweringCluster(Answers()), nothing, nothing, {})  # type: ignore[arg-type]
    assert deployer._is_held(plan, compare(plan, []), unchanged) is is_held


@pytest.mark.parametrize(("everywhere", "place"), [(True, ", place 1 of 1"), (False, "")])
def test_the_place_in_a_queue_is_left_out_where_other_namespaces_may_not_be_read(
    everywhere: bool, place: str
) -> None:
    class Some(Answers):
        def get(self, path: str, **query: str) -> dict[str, Any]:
            if everywhere or "/namespaces/" in path:
                return super().get(path)
            raise ApiError(403, f"refused {path}")

    meta = {"name": "training", "namespace": "team", "uid": "1", "creationTimestamp": ""}
    owner = {"kind": "Job", "name": "imagenet-r1"}
    workload = {"metadata": {**meta, "ownerReferences": [owner]}, "spec": {"queueName": "training"}}
    queue = {"metadata": meta, "spec": {"clusterQueue": "all"}}
    waits = Queued("Job", "imagenet-r1", "training", "", 2, {}, ("imagenet-r1",))
    api: Any = Some(workloads=[workload], localqueues=[queue])
    assert [*map(sentence, queue_positions(api, "team", [waits]))] == [
        f"Job/imagenet-r1 waits in queue training{place}"
    ]


CONTAINERS = {"containers": [{"name": "main", "image": "a"}]}
VERSIONS = {
    "Job": "batch/v1",
    "StatefulSet": "apps/v1",
    "Deployment": "apps/v1",
    "Database": "example.com/v1",
}


def declared(kind: str, name: str = "a", **spec: Any) -> Manifest:
    """An object of a chart that puts no label of the release on its pods."""
    version = VERSIONS.get(kind, "kubeflow.org/v2beta1")
    content = {"apiVersion": version, "kind": kind, "metadata": {"name": name}}
    return Manifest({**content, "spec": {"template": {"spec": CONTAINERS}, **spec}})


def made(name: str, *owner: str, uid: str = "", **meta: Any) -> dict[str, Any]:
    """A live object that ``owner`` (kind, name, identity) controls."""
    owners = []
    if owner:
        kind, owner_name, owner_uid = owner
        owners = [
            {"apiVersion": VERSIONS.get(kind, ""), "kind": kind, "name": owner_name, "uid": owner_uid}
            | {"controller": True}
        ]
    meta = {"name": name, "uid": uid, "resourceVersion": "1", "ownerReferences": owners, **meta}
    return {"metadata": meta, "spec": CONTAINERS, "status": {}}


def seen(api: Answers, *objects: Manifest) -> list[str]:
    """The pods of the release ``run`` with these objects, and what made each."""
    plan = expand("run", "default", objects, {})
    pods = observe(AnsweringCluster(api), plan)  # type: ignore[arg-type]
    return [f"{each.name} of {each.kind}/{each.workload}" for each in pods]


@pytest.mark.parametrize("status", [403, 404])
def test_a_kind_that_a_cluster_lacks_has_no_objects(status: int) -> None:
    mpi = declared("MPIJob", mpiReplicaSpecs={"Launcher": {"template": {"spec": CONTAINERS}}})
    assert seen(Answers(mpijobs=status), mpi) == []


def test_a_kind_of_kubernetes_that_may_not_be_read_is_an_error() -> None:
    with pytest.raises(ApiError, match="refused"):
        seen(Answers(statefulsets=403), declared("StatefulSet"))


def test_pods_without_labels_are_found_by_what_made_them() -> None:
    pods = [
        made("a-6c5d-x", "ReplicaSet", "a-6c5d", "1", labels={"pod-template-hash": "6c5d"}),
        made("b-7d8e-x", "ReplicaSet", "b-7d8e", "2", labels={"pod-template-hash": "7d8e"}),
        made("alone"),
    ]
    assert seen(Answers(pods=pods), declared("Deployment")) == ["a-6c5d-x of Deployment/a"]


def test_pods_that_an_operator_makes_for_an_object_of_the_release_are_its_own() -> None:
    sets = [made("db-main", "Database", "db", "1", uid="2"), made("other", uid="3")]
    pods = [made("db-main-0", "StatefulSet", "db-main", "2"), made("other-0", "StatefulSet", "other", "3")]
    api = Answers(pods=pods, statefulsets=sets, databases=[made("db", uid="1")])
    database = Manifest({"apiVersion": "example.com/v1", "kind": "Database", "metadata": {"name": "db"}})
    assert seen(api, database) == ["db-main-0 of Database/db"]
    plan = expand("run", "default", [database], {})
    assert [each.category for each in check(AnsweringCluster(api), plan).differences] == ["pending"]  # type: ignore[arg-type]


def test_a_pod_whose_maker_is_gone_is_of_the_release_by_its_label() -> None:
    labels = {"app.kubernetes.io/instance": "run"}
    pods = [
        made("a-r1-x", "Job", "a-r1", "1", labels=labels),
        made("other-x", "Job", "other", "2", labels=labels),
        made("stray"),
    ]
    api = Answers(pods=pods, jobs=[made("other", uid="2")])
    assert seen(api, declared("Job", "a-r2")) == ["a-r1-x of Job/a-r1"]


def test_pods_of_hooks_are_left_out() -> None:
    pods = [
        made("restore-x", "Job", "restore", "1"),
        made("test-x", "Job", "a", "2", annotations={"helm.sh/hook": "test"}),
        made("a-x", "Job", "a", "2"),
    ]
    api = Answers(pods=pods, jobs=[made("restore", uid="1"), {**made("a", uid="2"), "status": {}}])
    assert seen(api, declared("Job")) == ["a-x of Job/a"]


def autoscaler(low: int, high: int, kind: str = "Deployment") -> Manifest:
    target = {"apiVersion": "apps/v1", "kind": kind, "name": "a"}
    spec = {"minReplicas": low, "maxReplicas": high, "scaleTargetRef": target}
    meta = {"name": "a"}
    return Manifest(
        {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": meta, "spec": spec}
    )


def test_an_autoscaler_bounds_the_pods_of_its_deployment() -> None:
    plan = expand("run", "default", [declared("Deployment"), autoscaler(2, 4)], {})
    (workload,) = plan.workloads
    assert (workload.replicas, workload.min_replicas, workload.max_replicas) == (2, 2, 4)
    assert [pod.name for pod in plan.pods] == ["a-0", "a-1"]
    assert plan.totals.pods == 2


@pytest.mark.parametrize(("live", "found"), [(1, ["missing"]), (2, []), (4, []), (5, ["extra"])])
def test_any_number_of_pods_between_the_bounds_of_an_autoscaler_is_as_planned(
    live: int, found: list[str]
) -> None:
    plan = expand("run", "default", [declared("Deployment"), autoscaler(2, 4)], {})
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    pods = [
        {**made(f"a-6c5d-{index}", "ReplicaSet", "a-6c5d", "1", labels={"pod-template-hash": "6c5d"})}
        | {"spec": {**CONTAINERS, "nodeName": "n"}, "status": ready}
        for index in range(live)
    ]
    state = ObservedWorkload("Deployment", "a", "", replicas=live)
    assert [each.category for each in compare(plan, map(observed_pod, pods), [state])] == found
