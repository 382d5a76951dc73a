"""From rendered objects to the plan: pods, ranks, resources, and the nodes they need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from bireme.cli import cli
from bireme.core.errors import BiremeError
from bireme.core.manifests import Manifest
from bireme.core.paths import Paths
from bireme.plan.instances import Instance
from bireme.plan.topology import Plan, expand, fit

P4D, P3 = "p4d.24xlarge", "p3.8xlarge"
TYPE = "node.kubernetes.io/instance-type"
Facts = Mapping[str, Instance]
HUGE_PAGES: dict[str, Any] = {"hugepages-2Mi": "5120Mi"}


def pod_spec(
    type_: str | None = P4D, env: dict[str, str] | None = None, **requests: object
) -> dict[str, Any]:
    variables = [{"name": name, "value": value} for name, value in (env or {}).items()]
    container = {"name": "train", "env": variables, "resources": {"requests": requests}}
    return {"containers": [container], **({"nodeSelector": {TYPE: type_}} if type_ else {})}


def gpus(count: int) -> dict[str, Any]:
    return {"nvidia.com/gpu": count}


def whole_node(type_: str = P4D, env: dict[str, str] | None = None, **more: object) -> dict[str, Any]:
    devices = {P4D: {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 4}, P3: {"nvidia.com/gpu": 4}}[type_]
    return pod_spec(type_, env, **devices, **more)


def workload(
    kind: str, name: str, spec: dict[str, Any], role: str | None = "worker", **fields: Any
) -> Manifest:
    labels = {"app.kubernetes.io/component": role} if role else {}
    body = {**fields, "template": {"metadata": {"labels": labels}, "spec": spec}}
    return Manifest({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": body})


def indexed(workers: int, spec: dict[str, Any], name: str = "imagenet-r1", **fields: Any) -> Manifest:
    counts = {"completionMode": "Indexed", "completions": workers, "parallelism": workers}
    return workload("Job", name, spec, **{**counts, **fields})


def planned(instances: Facts, *manifests: Manifest) -> Plan:
    return expand("imagenet", "default", manifests, instances)


def test_an_elastic_indexed_job_becomes_ranked_pods_with_host_names(instances: Facts) -> None:
    env = {"PET_NNODES": "1:128", "PET_NPROC_PER_NODE": "8"}
    plan = planned(instances, indexed(3, whole_node(env=env)))
    [job] = plan.workloads
    assert (job.kind, job.role, job.replicas, job.min_replicas, job.max_replicas) == (
        "Job",
        "worker",
        3,
        1,
        128,
    )
    assert [(pod.name, pod.rank, pod.hostname, pod.processes) for pod in job.pods] == [
        (f"imagenet-r1-{index}", index, f"imagenet-r1-{index}", 8) for index in range(3)
    ]
    assert job.pods[0].node_selector == {TYPE: P4D}
    assert (plan.totals.pods, plan.totals.accelerators, plan.totals.efa) == (3, 24, 12)
    assert plan.totals.nodes == {P4D: 3}


def test_a_fixed_size_job_needs_exactly_its_size(instances: Facts) -> None:
    [job] = planned(instances, indexed(4, whole_node(P3, {"PET_NNODES": "4"}))).workloads
    assert (job.min_replicas, job.max_replicas) == (4, 4)
    [job] = planned(instances, indexed(4, whole_node(P3))).workloads
    assert (job.min_replicas, job.max_replicas) == (4, 4)


def test_a_job_that_is_not_indexed_has_neither_ranks_nor_host_names(instances: Facts) -> None:
    [job] = planned(
        instances, workload("Job", "stage", pod_spec(None), parallelism=5, completions=2)
    ).workloads
    assert [(pod.name, pod.rank, pod.hostname) for pod in job.pods] == [
        ("stage-0", None, None),
        ("stage-1", None, None),
    ]
    [job] = planned(instances, workload("Job", "stage", pod_spec(None))).workloads
    assert job.replicas == 1


def test_a_suspended_job_is_planned_as_it_will_be_once_resumed(instances: Facts) -> None:
    [job] = planned(instances, indexed(2, whole_node(), suspend=True)).workloads
    assert (job.suspended, len(job.pods)) == (True, 2)
    [job] = planned(instances, mpi_job(2, runPolicy={"suspend": True})).workloads
    assert (job.suspended, len(job.pods)) == (True, 3)


def mpi_job(workers: int = 3, slots: int | None = None, name: str = "maskrcnn-r1", **fields: Any) -> Manifest:
    def replica(role: str, spec: dict[str, Any], **counts: int) -> dict[str, Any]:
        labels = {"app.kubernetes.io/component": role}
        return {**counts, "template": {"metadata": {"labels": labels}, "spec": spec}}

    roles = {
        "Launcher": replica("launcher", pod_spec(None, cpu="500m")),
        "Worker": replica("worker", whole_node(), replicas=workers),
    }
    spec = {"mpiReplicaSpecs": roles, **({"slotsPerWorker": slots} if slots else {}), **fields}
    return Manifest({"kind": "MPIJob", "metadata": {"name": name}, "spec": spec})


def test_an_mpi_job_has_a_launcher_without_rank_and_workers_in_host_file_order(
    instances: Facts,
) -> None:
    plan = planned(instances, mpi_job(2, slots=8))
    [job] = plan.workloads
    assert (job.kind, job.name, job.role, job.replicas, job.suspended) == (
        "MPIJob",
        "maskrcnn-r1",
        "worker",
        2,
        False,
    )
    assert [(pod.name, pod.role, pod.rank, pod.processes, pod.efa) for pod in job.pods] == [
        ("maskrcnn-r1-launcher", "launcher", None, None, 0),
        ("maskrcnn-r1-worker-0", "worker", 0, 8, 4),
        ("maskrcnn-r1-worker-1", "worker", 1, 8, 4),
    ]
    assert [pod.hostname for pod in job.pods] == [pod.name for pod in job.pods]
    assert (plan.totals.pods, plan.totals.accelerators, plan.totals.efa) == (3, 16, 8)
    assert plan.totals.nodes == {P4D: 2}


def test_a_launcher_that_also_trains_has_the_first_ranks(instances: Facts) -> None:
    [job] = planned(instances, mpi_job(2, slots=8, runLauncherAsWorker=True)).workloads
    assert [(pod.role, pod.rank) for pod in job.pods] == [("launcher", 0), ("worker", 1), ("worker", 2)]


def test_an_mpi_job_without_a_launcher_is_refused_by_name(instances: Facts) -> None:
    job = Manifest({"kind": "MPIJob", "metadata": {"name": "m"}, "spec": {"mpiReplicaSpecs": {}}})
    with pytest.raises(BiremeError, match="MPIJob/m has no Launcher"):
        planned(instances, job)


def test_stateful_sets_deployments_and_bare_pods_are_named_as_kubernetes_does(instances: Facts) -> None:
    bare = Manifest(
        {"kind": "Pod", "metadata": {"name": "shell"}, "spec": {"hostname": "box", "containers": []}}
    )
    plan = planned(
        instances,
        workload("StatefulSet", "etcd", pod_spec(None, cpu="100m"), role="member", replicas=3),
        workload("Deployment", "board", pod_spec(None), role=None),
        bare,
    )
    assert [pod.name for pod in plan.pods] == ["etcd-0", "etcd-1", "etcd-2", "board-0", "shell"]
    assert [pod.hostname for pod in plan.pods] == ["etcd-0", "etcd-1", "etcd-2", None, "box"]
    assert {pod.rank for pod in plan.pods} == {None}
    assert [work.role for work in plan.workloads] == ["member", "board", "shell"]
    assert plan.totals.nodes == {}


ONLY_P4D = {"key": TYPE, "operator": "In", "values": [P4D]}
NOT_P4D = {"key": TYPE, "operator": "NotIn", "values": [P4D]}


def by_affinity(*terms: list[dict[str, Any]], **requests: Any) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return {**pod_spec(None, **requests), "affinity": affinity}


@pytest.mark.parametrize(
    ("spec", "has_p4d", "has_others"),
    [
        (pod_spec(None), True, True),
        (by_affinity([ONLY_P4D]), True, False),
        (by_affinity([ONLY_P4D], [NOT_P4D]), True, True),
        (by_affinity([ONLY_P4D, NOT_P4D]), False, False),
    ],
    ids=["no term", "one", "either", "both"],
)
def test_a_daemon_set_names_the_types_whose_nodes_it_runs_on(
    instances: Facts, spec: dict[str, Any], has_p4d: bool, has_others: bool
) -> None:
    (plugin,) = planned(instances, workload("DaemonSet", "plugin", spec, role="plugin")).workloads
    assert (plugin.role, plugin.replicas, plugin.pods) == ("plugin", 0, ())
    expected = {kind for kind in instances if (has_p4d if kind == P4D else has_others)}
    assert set(plugin.instance_types or ()) == expected


def test_a_daemon_set_names_types_that_only_its_values_know(instances: Facts) -> None:
    named = {"key": TYPE, "operator": "In", "values": [P4D, f"ml.{P4D}", "ml.p5.48xlarge", "q9.48xlarge"]}
    (plugin,) = planned(instances, workload("DaemonSet", "plugin", by_affinity([named]))).workloads
    assert plugin.instance_types == ("ml.p5.48xlarge", P4D, "q9.48xlarge")


def test_a_job_bound_to_a_type_by_affinity_is_placed_as_by_a_node_selector(instances: Facts) -> None:
    plan = planned(instances, indexed(3, by_affinity([ONLY_P4D], **gpus(8))))
    assert plan.totals.nodes == {P4D: 3}
    assert {pod.instance_type for pod in plan.pods} == {P4D}
    assert fit(plan.pods, {P3: 9}, instances) == [
        f"3 worker pods cannot be placed: there are no {P4D} nodes, 3 {P4D} nodes are needed"
    ]


def test_pods_that_may_run_on_several_types_need_the_first_that_holds_them(instances: Facts) -> None:
    either = {"key": TYPE, "operator": "In", "values": [P4D, P3]}
    plan = planned(instances, indexed(2, by_affinity([either], **gpus(8))))
    assert plan.totals.nodes == {P4D: 2}
    assert {pod.instance_type for pod in plan.pods} == {None}
    assert planned(instances, indexed(2, by_affinity([either], **gpus(4)))).totals.nodes == {P3: 2}


def test_several_types_are_named_where_none_has_room(instances: Facts) -> None:
    either = {"key": TYPE, "operator": "In", "values": [P4D, P3]}
    plan = planned(instances, indexed(3, by_affinity([either], **gpus(8))))
    assert fit(plan.pods, {P4D: 2}, instances) == [
        f"1 of 3 worker pods does not fit on 2 {P3} or {P4D} nodes: a pod asks for 8 nvidia.com/gpu and no "
        f"node has that left, 3 {P3} or {P4D} nodes are needed"
    ]


def test_many_types_are_shortened(instances: Facts) -> None:
    many = {"key": TYPE, "operator": "In", "values": [P3, P4D, "p5.48xlarge", "p5e.48xlarge"]}
    [sentence] = fit(planned(instances, indexed(1, by_affinity([many], **gpus(8)))).pods, {}, instances)
    nodes = f"{P3} (or 3 others) nodes"
    assert sentence == f"1 worker pod cannot be placed: there are no {nodes}, 1 {nodes} are needed"


def test_pods_kept_off_a_type_take_what_is_left_on_the_others(instances: Facts) -> None:
    plan = planned(instances, indexed(1, by_affinity([NOT_P4D], cpu="1")))
    assert plan.totals.nodes == {}
    assert fit(plan.pods, {P4D: 1, P3: 1}, instances) == []
    assert fit(plan.pods, {P4D: 1}, instances) == [
        "1 worker pod cannot be placed: there are no nodes that their node affinity admits"
    ]


def test_a_node_selector_and_an_affinity_count_together(instances: Facts) -> None:
    spec = {**by_affinity([NOT_P4D]), "nodeSelector": {TYPE: P4D}}
    [sentence] = fit(planned(instances, indexed(1, spec)).pods, {P4D: 1}, instances)
    assert sentence == (
        "1 worker pod cannot be placed: no type of values/instances has the labels that they want"
    )


def test_a_plan_leaves_out_hooks_and_objects_without_pods(instances: Facts) -> None:
    hook = {"name": "test", "annotations": {"helm.sh/hook": "test"}}
    plan = planned(
        instances,
        Manifest({"kind": "Pod", "metadata": hook, "spec": {"containers": []}}),
        Manifest({"kind": "Service", "metadata": {"name": "s"}}),
    )
    assert (plan.workloads, plan.totals.pods) == ((), 0)


def test_small_pods_share_nodes_and_large_ones_do_not(instances: Facts) -> None:
    small = indexed(7, pod_spec(**gpus(2)), name="small")
    large = indexed(2, pod_spec(**gpus(5)), name="large")
    plan = planned(instances, small, large)
    # 2·5 + 7·2 = 24 accelerators, yet 5 + 2 leaves one of eight unused: first fit needs four nodes.
    assert plan.totals.nodes == {P4D: 4}
    assert [len(node.pods) for node in plan.placement] == [2, 2, 4, 1]
    assert sorted(pod.name for node in plan.placement for pod in node.pods) == sorted(
        pod.name for pod in plan.pods
    )


def test_huge_pages_and_memory_share_the_memory_of_a_node(instances: Facts) -> None:
    allocatable = instances[P4D].allocatable_memory_mib
    fits = indexed(1, whole_node(memory=f"{allocatable - 5120}Mi", **HUGE_PAGES))
    assert fit(planned(instances, fits).pods, {P4D: 1}, instances) == []
    too_much = indexed(1, whole_node(memory=f"{allocatable - 5118}Mi", **HUGE_PAGES))
    [sentence] = fit(planned(instances, too_much).pods, {P4D: 1}, instances)
    assert sentence == (
        f"1 worker pod can never fit 1 {P4D} node: a pod asks for {allocatable + 2}Mi memory, "
        f"a whole node has {allocatable}Mi"
    )


@pytest.mark.parametrize(
    ("nodes", "sentence"),
    [
        (
            {P4D: 2},
            "1 of 3 worker pods does not fit on 2 p4d.24xlarge nodes: a pod asks for 8 nvidia.com/gpu "
            "and no node has that left, 3 p4d.24xlarge nodes are needed",
        ),
        (
            {P3: 9},
            f"3 worker pods cannot be placed: there are no {P4D} nodes, 3 {P4D} nodes are needed",
        ),
    ],
)
def test_pods_without_room_are_counted_with_the_reason(
    nodes: dict[str, int], sentence: str, instances: Facts
) -> None:
    assert fit(planned(instances, indexed(3, whole_node())).pods, nodes, instances) == [sentence]


def test_more_devices_than_a_whole_node_has_can_never_fit(instances: Facts) -> None:
    plan = planned(instances, indexed(2, pod_spec(**gpus(9))))
    assert fit(plan.pods, {P4D: 2}, instances) == [
        f"2 worker pods can never fit 2 {P4D} nodes: a pod asks for 9 nvidia.com/gpu, a whole node has 8"
    ]
    assert plan.totals.nodes == {P4D: 2}


def test_pods_without_a_type_use_free_space_on_any_node(instances: Facts) -> None:
    etcd = workload("StatefulSet", "etcd", pod_spec(None, cpu="2"), role="member")
    full = indexed(1, whole_node(cpu="95"))
    [sentence] = fit(planned(instances, full, etcd).pods, {P4D: 1}, instances)
    assert sentence == "1 member pod does not fit on 1 node: a pod asks for 2 cpu and no node has that left"
    assert fit(planned(instances, full, etcd).pods, {P4D: 1, P3: 1}, instances) == []
    assert fit(planned(instances, etcd).pods, {}, instances) == [
        "1 member pod cannot be placed: there are no nodes"
    ]


def test_cpu_nodes_hold_pods_without_a_type_and_no_accelerators(instances: Facts) -> None:
    etcd = workload("StatefulSet", "etcd", pod_spec(None, cpu="2"), role="member")
    assert (
        fit(planned(instances, indexed(1, whole_node(cpu="95")), etcd).pods, {P4D: 1, "cpu": 1}, instances)
        == []
    )
    [sentence] = fit(planned(instances, indexed(1, pod_spec(None, **gpus(1)))).pods, {"cpu": 1}, instances)
    assert "nvidia.com/gpu" in sentence


def test_an_unknown_instance_type_is_named_and_refused_as_cluster_node(instances: Facts) -> None:
    plan = planned(instances, indexed(1, pod_spec("m5.large")))
    assert plan.totals.nodes == {}
    [sentence] = fit(plan.pods, {P4D: 1}, instances)
    assert (
        sentence == "1 worker pod cannot be placed: they want m5.large nodes, "
        "and values/instances has no such type"
    )
    with pytest.raises(BiremeError, match=r"unknown node type 'm5\.large': did you mean"):
        fit(plan.pods, {"m5.large": 1}, instances)


def test_pet_nnodes_that_are_not_bounds_are_refused(instances: Facts) -> None:
    with pytest.raises(BiremeError, match="PET_NNODES is 'some', it must be MIN:MAX"):
        planned(instances, indexed(1, whole_node(env={"PET_NNODES": "some"})))


def test_gpu_as_nproc_per_node_means_one_process_per_accelerator(instances: Facts) -> None:
    (pod,) = planned(instances, indexed(1, whole_node(env={"PET_NPROC_PER_NODE": "gpu"}))).pods
    assert pod.processes == 8


def test_a_plan_that_does_not_fit_the_nodes_exits_with_1() -> None:
    """As docs/commands.md says."""
    line = "plan torch-elastic -f p4d.24xlarge -f imagenet-efa --nodes p4d.24xlarge="
    done = [CliRunner().invoke(cli, f"{line}{nodes}".split()) for nodes in (2, 3)]
    assert [each.exit_code for each in done] == [1, 0]
    assert "warning: 1 of 3 worker pods does not fit" in done[0].stderr


def test_a_plan_in_json_follows_its_published_schema(instances: Facts, paths: Paths) -> None:
    env = {"PET_NNODES": "1:128"}
    plan = planned(
        instances,
        indexed(3, whole_node(env=env, cpu="93500m", memory="100Gi")),
        workload("StatefulSet", "etcd", pod_spec(None, cpu="100m"), role="member", replicas=3),
        workload("Deployment", "board", pod_spec(None)),
        workload("DaemonSet", "plugin", pod_spec(P4D)),
    )
    assert plan.workloads[-1].instance_types == (P4D,)
    schema = json.loads((paths.schemas / "plan.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    written = json.loads(json.dumps(plan.to_json()))
    assert list(jsonschema.Draft202012Validator(schema).iter_errors(written)) == []
    assert set(written) == {"release", "namespace", "workloads", "totals"}
    assert written["workloads"][-1]["instanceTypes"] == [P4D]
    assert len(plan.placement) == 3
    written["totals"]["gpus"] = 1
    assert list(jsonschema.Draft202012Validator(schema).iter_errors(written))
