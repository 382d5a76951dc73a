"""The objects of a torch-elastic release."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from bireme.cli.views import plan_view
from bireme.helm import Render
from bireme.plan.picture import svg
from bireme_runtime.elastic import progress
from bireme_runtime.elastic.monitor import failures
from bireme_runtime.elastic.monitor.status import Starts, WorkerStatus
from tests.support.rendered import PlanChart, RenderChart, container_of, environment_of, job_of, the


def trainer(rendered: Render) -> Mapping[str, Any]:
    container: Mapping[str, Any] = the(rendered, "Job")["spec"]["template"]["spec"]["containers"][0]
    return container


def environment(rendered: Render) -> dict[str, str]:
    return environment_of(trainer(rendered))


def test_imagenet_efa_uses_whole_p4d_nodes(render: RenderChart) -> None:
    rendered = render("torch-elastic", instance="p4d.24xlarge", workload="imagenet-efa", release="imagenet")
    assert dict(trainer(rendered)["resources"]["limits"]) == {
        "nvidia.com/gpu": "8",
        "vpc.amazonaws.com/efa": "4",
        "hugepages-2Mi": "5120Mi",
        "memory": "1075544Mi",  # 1082712 allocatable less 5120 of huge pages and the reserve of 2048
    }
    assert trainer(rendered)["resources"]["requests"]["cpu"] == "94000m"
    pod = the(rendered, "Job")["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert dict(volumes["shm"]["emptyDir"]) == {"medium": "Memory", "sizeLimit": "537772Mi"}
    assert volumes["claim-0"]["persistentVolumeClaim"]["claimName"] == "fsx-pvc"
    assert dict(pod["nodeSelector"]) == {"node.kubernetes.io/instance-type": "p4d.24xlarge"}
    assert {"nvidia.com/gpu", "vpc.amazonaws.com/efa"} <= {
        toleration["key"] for toleration in pod["tolerations"]
    }
    assert environment(rendered)["PET_NNODES"] == "1:128"
    assert environment(rendered)["PET_NPROC_PER_NODE"] == "8"


def test_imagenet_fsx_uses_whole_p3_nodes_without_efa(plan: PlanChart) -> None:
    totals = plan("torch-elastic", instance="p3.8xlarge", workload="imagenet-fsx").totals
    assert (totals.accelerators, totals.efa, dict(totals.nodes)) == (16, 0, {"p3.8xlarge": 4})


def test_a_plan_shows_the_units_of_workers(plan: PlanChart, render: RenderChart) -> None:
    sets = ["elastic.workersPerUnit=2", "workers=4", "elastic.minWorkers=2"]
    planned = plan("torch-elastic", sets=sets)
    jobs = [each for each in planned.to_json()["workloads"] if each["kind"] == "Job"]
    assert [each["workersPerUnit"] for each in jobs] == [2]
    console = Console(file=io.StringIO(), width=200)
    console.print(plan_view(planned))
    assert "× 4, 2 to 128, in units of 2" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "BIREME_WORKERS_PER_UNIT" not in environment(render("torch-elastic"))


def test_a_release_in_a_shared_etcd_has_a_user_and_a_prefix_of_its_own(render: RenderChart) -> None:
    sets = [
        "etcd.enabled=false",
        "rendezvous.endpoints={etcd.shared.svc:2379}",
        "rendezvous.auth.existingSecret=vision",
        "rendezvous.conf.etcd_prefix=/bireme/vision/",
    ]
    rendered = render("torch-elastic", sets=sets, release="job")
    assert "etcd_prefix=/bireme/vision/" in environment(rendered)["PET_RDZV_CONF"].split(",")
    pod = the(rendered, "Job", "job-r1")["spec"]["template"]["spec"]
    own = {each["name"]: each for each in container_of(pod, "trainer")["env"]}
    for name, key in (("BIREME_ETCD_USERNAME", "username"), ("BIREME_ETCD_PASSWORD", "password")):
        assert own[name]["valueFrom"]["secretKeyRef"] == {"name": "vision", "key": key}
    shared = render("etcd", sets=["auth.existingSecret=users"], release="etcd")
    (etcd,) = [each for each in shared.manifests if each.kind == "StatefulSet"]
    volumes = etcd["spec"]["template"]["spec"]["volumes"]
    (users,) = [each for each in volumes if each["name"] == "users"]
    assert users["secret"] == {"secretName": "users"}, "all keys of the Secret, also releases"


def test_a_plan_shows_spares_without_ranks_and_counts_their_nodes(plan: PlanChart) -> None:
    planned = plan("torch-elastic", instance="p4d.24xlarge", sets=["workers=2", "elastic.spares=1"])
    job = next(each for each in planned.workloads if each.kind == "Job")
    assert [pod.rank for pod in job.pods] == [0, 1, None]
    assert dict(planned.totals.nodes) == {"p4d.24xlarge": 3}
    assert next(each for each in planned.to_json()["workloads"] if each["kind"] == "Job")["spares"] == 1
    console = Console(file=io.StringIO(), width=200)
    console.print(plan_view(planned))
    assert "× 2 and 1 spare, 1 to 128" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "× 2 and 1 spare, 1 to 128" in svg(planned)


def test_with_ranks_by_topology_only_the_init_container_has_a_token(render: RenderChart) -> None:
    rendered = render("torch-elastic", sets=["rendezvous.order=topology", "serviceAccount.create=true"])
    pod = the(rendered, "Job")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    (asks,) = pod["initContainers"]
    mounts = {
        each["name"]: {mount["name"] for mount in each["volumeMounts"]} for each in (asks, trainer(rendered))
    }
    assert "api-server" in mounts["topology"]
    assert "api-server" not in mounts["trainer"]
    assert environment(rendered)["BIREME_TOPOLOGY_FILE"] == environment_of(asks)["BIREME_TOPOLOGY_FILE"]
    (rule,) = the(rendered, "ClusterRole")["rules"]
    assert {key: list(value) for key, value in rule.items()} == {
        "apiGroups": [""], "resources": ["nodes"], "verbs": ["get"],
    }  # fmt: skip


def test_scaling_a_job_with_spares_changes_no_pod(render: RenderChart) -> None:
    before, after = (
        the(render("torch-elastic", sets=["elastic.spares=1", f"workers={n}"]), "Job") for n in (2, 4)
    )
    assert [job["spec"]["completions"] for job in (before, after)] == [3, 5]
    assert before["spec"]["template"] == after["spec"]["template"]


@pytest.mark.parametrize("sets", [["pod.hugePages=5120Mi"], ["pod.hugePages=1024Mi"]])
def test_huge_pages_of_efa_nodes_are_subtracted_from_the_memory(render: RenderChart, sets: list[str]) -> None:
    rendered = render("torch-elastic", instance="p4d.24xlarge", sets=sets)
    assert trainer(rendered)["resources"]["limits"]["memory"] == "1075544Mi"


@pytest.mark.parametrize(
    ("instance", "sets", "accelerators", "efa"),
    [
        ("p4d.24xlarge", ["efa=1"], 8, 1),
        ("p4d.24xlarge", ["efa=0"], 8, 0),
        ("p4d.24xlarge", ["accelerators=4"], 4, 2),
        ("g5.8xlarge", [], 1, 0),
        ("g5.8xlarge", ["efa=all"], 1, 1),
        ("p4d.24xlarge", ["accelerators=0"], 0, 0),
    ],
)
def test_accelerators_and_efa_follow_from_the_type_or_the_values(
    plan: PlanChart, instance: str, sets: list[str], accelerators: int, efa: int
) -> None:
    totals = plan("torch-elastic", instance=instance, sets=sets).totals
    assert (totals.accelerators, totals.efa) == (accelerators, efa)


def test_two_workers_with_half_the_accelerators_share_a_node(plan: PlanChart) -> None:
    totals = plan("torch-elastic", instance="p4d.24xlarge", sets=["accelerators=4", "workers=2"]).totals
    assert dict(totals.nodes) == {"p4d.24xlarge": 1}


@pytest.mark.parametrize(
    "sets", [["image.tag=2.7.0"], ["podSecurityContext.runAsUser=2000"], ["script=pass"]]
)
def test_a_change_of_the_template_changes_the_immutable_digests(render: RenderChart, sets: list[str]) -> None:
    before, after = (
        the(render("torch-elastic", instance="p4d.24xlarge", sets=change), "Job").annotations[
            "bireme/immutable"
        ]
        for change in ([], sets)
    )
    assert before != after


def test_agents_meet_at_the_releases_etcd_under_any_name(render: RenderChart) -> None:
    rendered = render("torch-elastic", sets=["etcd.fullnameOverride=meeting-point"], namespace="team")
    service, *members = environment(rendered)["PET_RDZV_ENDPOINT"].split(",")
    assert service == "meeting-point.team.svc:2379"
    assert members[0] == "meeting-point-0.meeting-point-peers.team.svc:2379"
    assert the(rendered, "Service", "meeting-point")


def test_a_dispatcher_shares_the_etcd_of_the_rendezvous(render: RenderChart) -> None:
    sets = ["data.dispatcher.enabled=true", "etcd.persistence.enabled=true"]
    rendered = render("torch-elastic", sets=sets, release="job", namespace="team")
    variables = environment(rendered)
    assert variables["BIREME_DISPATCHER"] == "job-dispatcher.team.svc:7190"
    server = the(rendered, "Deployment", "job-dispatcher")["spec"]["template"]["spec"]["containers"][0]
    assert environment_of(server)["BIREME_ETCD_ENDPOINTS"] == variables["PET_RDZV_ENDPOINT"]


def test_agents_know_every_member_that_etcd_may_ever_have(render: RenderChart) -> None:
    endpoints = {
        environment(render("torch-elastic", sets=[f"etcd.replicas={size}"]))["PET_RDZV_ENDPOINT"]
        for size in (1, 3, 5)
    }
    assert len(endpoints) == 1, "growing etcd needs no new run of the job"
    (known,) = endpoints
    assert len(known.split(",")) == 6


def test_users_of_etcd_without_a_secret_are_generated_on_the_cluster(render: RenderChart) -> None:
    rendered = render("torch-elastic")
    secret = the(rendered, "Secret")
    assert secret.annotations["bireme/generated"] == "data"
    assert "data" not in secret, "without a cluster each render would have another password"
    env = {item["name"]: item for item in trainer(rendered)["env"]}
    assert env["BIREME_ETCD_PASSWORD"]["valueFrom"]["secretKeyRef"]["name"] == secret.name


@pytest.mark.parametrize(
    ("chart", "sets"),
    [
        ("torch-elastic", ["data.dispatcher.enabled=true", "etcd.persistence.enabled=true"]),
        ("mpi-training", ["data.dispatcher.enabled=true", "etcd.enabled=true"]),
        ("paddle", ["paddle.dispatch=dynamic", "etcd.enabled=true"]),
    ],
)
def test_all_pods_that_talk_over_http_have_the_token_of_the_release(
    render: RenderChart, chart: str, sets: list[str]
) -> None:
    rendered = render(chart, sets=sets)
    secret = the(rendered, "Secret", "-token")
    assert "data" not in secret, "without a cluster each render would have another token"
    wanted = {"name": secret.name, "key": "token", "optional": True}
    told = [
        item["valueFrom"]["secretKeyRef"]
        for each in rendered.manifests
        if each.kind in ("Job", "Deployment") and not each.is_hook
        for container in each["spec"]["template"]["spec"]["containers"]
        for item in container["env"]
        if item["name"] == "BIREME_RELEASE_TOKEN"
    ]
    # The dispatcher and the job's pods. Paddle has two roles.
    assert told == [wanted] * (3 if chart == "paddle" else 2)


@pytest.mark.parametrize(
    ("chart", "instance", "sets", "wish"),
    [
        ("torch-elastic", "p4d.24xlarge", ["efa=all"], "required"),
        ("torch-elastic", "p4d.24xlarge", [], "wanted"),
        ("torch-elastic", "p4d.24xlarge", ["efa=2"], "wanted"),
        ("torch-elastic", "p3.8xlarge", [], None),
        ("mpi-training", "p4d.24xlarge", ["efa=all"], "required"),
        ("mpi-training", "p4d.24xlarge", ["data.staging.claimName=data", "data.staging.size=1Ti"], "wanted"),
        ("paddle", "p4d.24xlarge", ["paddle.useGpu=true", "efa=all"], "required"),
        ("paddle", "p4d.24xlarge", ["paddle.useGpu=true", "paddle.mode=collective"], "wanted"),
    ],
)
def test_an_init_container_looks_for_the_efa_that_workers_want_or_must_have(
    render: RenderChart, chart: str, instance: str, sets: list[str], wish: str | None
) -> None:
    job = job_of(render(chart, instance=instance, sets=sets))["spec"]
    pod = job["template"]["spec"]
    main = pod["containers"][0]
    assert "NCCL_NET_PLUGIN" not in environment_of(main)
    assert environment_of(main)["BIREME_ACCELERATORS"] == "nvidia.com/gpu"
    assert "BIREME_EFA" not in environment_of(main)
    found = [each for each in pod.get("initContainers", ()) if each["name"] == "devices"]
    ends = [rule["onExitCodes"] for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    assert [list(each["values"]) for each in ends if each["containerName"] == "devices"] == [[78]] * len(
        found
    )
    if not wish:
        assert not found
        return
    (devices,) = found
    assert environment_of(devices)["BIREME_EFA"] == wish
    assert environment_of(devices)["BIREME_ACCELERATORS"] == "nvidia.com/gpu"
    for field in ("image", "resources", "securityContext", "volumeMounts"):
        assert devices[field] == main[field]


def told_by_a_worker() -> set[str]:
    """Names of all metrics of a worker that has made steps."""
    seen = progress.Progress()
    for number in (b"1", b"2"):
        seen.take(b"step " + number)
    seen.board.write(0, 2)
    told = WorkerStatus(Starts(ranks={0: 0}), seen, failures.Ledger(), lambda: "").metrics()
    return set(re.findall(r"^# TYPE (bireme_\w+)", told, re.MULTILINE))


def test_the_dashboard_shows_what_workers_tell(render: RenderChart) -> None:
    rendered = render("torch-elastic", sets=["monitoring.metrics.dashboard.enabled=true"])
    (config,) = (item for item in rendered.manifests if item.name.endswith("-dashboard"))
    shown = set(re.findall(r"bireme_\w+", json.dumps(json.loads(config["data"]["bireme-training.json"]))))
    assert config.labels["grafana_dashboard"] == "1"
    assert shown == told_by_a_worker() - {"bireme_rank", "bireme_saving"}


def test_alerts_ask_for_what_workers_tell(render: RenderChart) -> None:
    rendered = render("torch-elastic", sets=["monitoring.metrics.alerts.enabled=true"])
    (group,) = the(rendered, "PrometheusRule", "")["spec"]["groups"]
    for rule in group["rules"]:
        asked = set(re.findall(r"bireme_\w+", rule["expr"]))
        assert asked
        assert asked <= told_by_a_worker()


def test_prometheus_finds_the_workers_and_a_network_policy_lets_it_in(render: RenderChart) -> None:
    sets = ["monitoring.metrics.podMonitor.enabled=true", "networkPolicy.enabled=true"]
    rendered = render("torch-elastic", sets=sets)
    monitor, policy = the(rendered, "PodMonitor", "")["spec"], the(rendered, "NetworkPolicy", "")["spec"]
    pod = the(rendered, "Job", "")["spec"]["template"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    (port,) = (each for each in pod["spec"]["containers"][0]["ports"] if each["name"] == endpoint["port"])
    assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert {"protocol": "TCP", "port": port["containerPort"]} in policy["ingress"][-1]["ports"]


def test_a_plan_of_many_workers_proposes_three_members_of_their_etcd(plan: PlanChart) -> None:
    def advice(*sets: str) -> tuple[str, ...]:
        return plan("torch-elastic", sets=["elastic.maxWorkers=8", *sets]).advice

    (sentence,) = advice("workers=8")
    assert sentence.endswith("For so many workers set etcd.replicas=3.")
    assert advice("workers=7") == advice("workers=8", "etcd.replicas=3") == ()
