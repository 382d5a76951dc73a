"""The objects of a torch-elastic release."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bireme.helm import Render
from bireme.topology import Plan
from bireme.workloads import pod_templates
from tests.support.rendered import environment_of, the


def trainer(rendered: Render) -> Mapping[str, Any]:
    container: Mapping[str, Any] = the(rendered, "Job")["spec"]["template"]["spec"]["containers"][0]
    return container


def environment(rendered: Render) -> dict[str, str]:
    return environment_of(trainer(rendered))


def test_imagenet_efa_uses_whole_p4d_nodes(render: Callable[..., Render]) -> None:
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


def test_imagenet_fsx_uses_whole_p3_nodes_without_efa(plan: Callable[..., Plan]) -> None:
    totals = plan("torch-elastic", instance="p3.8xlarge", workload="imagenet-fsx").totals
    assert (totals.accelerators, totals.efa, dict(totals.nodes)) == (16, 0, {"p3.8xlarge": 4})


@pytest.mark.parametrize("sets", [[], ["hugePages=5120Mi"], ["hugePages=1024Mi"]])
def test_huge_pages_of_efa_nodes_are_subtracted_from_the_memory(
    render: Callable[..., Render], sets: list[str]
) -> None:
    rendered = render("torch-elastic", instance="p4d.24xlarge", sets=sets)
    assert trainer(rendered)["resources"]["limits"]["memory"] == "1075544Mi"


@pytest.mark.parametrize(
    ("instance", "sets", "accelerators", "efa"),
    [
        ("p4d.24xlarge", [], 8, 4),
        ("p4d.24xlarge", ["efa=1"], 8, 1),
        ("p4d.24xlarge", ["efa=0"], 8, 0),
        ("p4d.24xlarge", ["accelerators=4"], 4, 2),
        ("p5.48xlarge", [], 8, 32),
        ("g5.8xlarge", [], 1, 1),
        ("g5.xlarge", [], 1, 0),
        ("p4d.24xlarge", ["accelerators=0"], 0, 0),
    ],
)
def test_accelerators_and_efa_follow_from_the_type_or_the_values(
    plan: Callable[..., Plan], instance: str, sets: list[str], accelerators: int, efa: int
) -> None:
    totals = plan("torch-elastic", instance=instance, sets=sets).totals
    assert (totals.accelerators, totals.efa) == (accelerators, efa)


def test_two_workers_with_half_the_accelerators_share_a_node(plan: Callable[..., Plan]) -> None:
    totals = plan("torch-elastic", instance="p4d.24xlarge", sets=["accelerators=4", "workers=2"]).totals
    assert dict(totals.nodes) == {"p4d.24xlarge": 1}


def test_the_pod_template_does_not_depend_on_the_number_of_workers(render: Callable[..., Render]) -> None:
    few, many = (render("torch-elastic", instance="p4d.24xlarge", sets=[f"workers={n}"]) for n in (1, 100))
    few_spec, many_spec = (the(rendered, "Job").thaw()["spec"] for rendered in (few, many))
    assert (many_spec.pop("completions"), many_spec.pop("parallelism")) == (100, 100)
    assert (few_spec.pop("completions"), few_spec.pop("parallelism")) == (1, 1)
    assert few_spec == many_spec
    key = "bireme.dev/immutable"
    assert the(few, "Job").annotations[key] == the(many, "Job").annotations[key]


def test_the_pods_of_a_job_do_not_contain_the_chart_version(render: Callable[..., Render]) -> None:
    template = the(render("torch-elastic"), "Job").thaw()["spec"]["template"]
    assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(template["metadata"]["labels"])


@pytest.mark.parametrize(
    "sets",
    [
        ["image.tag=2.7.0"],
        ["args={a.py}"],
        ["env.A=1"],
        ["podSecurityContext.runAsUser=2000"],
        ["efa=1"],
        ["script=pass"],
    ],
)
def test_a_change_of_the_template_changes_the_immutable_digests(
    render: Callable[..., Render], sets: list[str]
) -> None:
    key = "bireme.dev/immutable"
    before, after = (
        the(render("torch-elastic", instance="p4d.24xlarge", sets=change), "Job").annotations[key]
        for change in ([], sets)
    )
    assert before != after


def test_suspend_ttl_and_deadline_are_rendered_only_when_set(render: Callable[..., Render]) -> None:
    keys = {"suspend", "ttlSecondsAfterFinished", "activeDeadlineSeconds"}
    assert not keys & set(the(render("torch-elastic"), "Job")["spec"])
    sets = ["suspend=false", "ttlSecondsAfterFinished=0", "activeDeadlineSeconds=60"]
    spec = the(render("torch-elastic", sets=sets), "Job")["spec"]
    assert {key: spec[key] for key in keys} == {
        "suspend": False,
        "ttlSecondsAfterFinished": 0,
        "activeDeadlineSeconds": 60,
    }


def test_a_kueue_queue_makes_the_job_elastic_for_kueue(render: Callable[..., Render]) -> None:
    job = the(render("torch-elastic", sets=["queueName=training"]), "Job")
    assert job.labels["kueue.x-k8s.io/queue-name"] == "training"
    assert job.annotations["kueue.x-k8s.io/elastic-job"] == "true"
    assert "suspend" not in job["spec"]


def test_without_script_and_args_the_allreduce_check_runs(render: Callable[..., Render]) -> None:
    rendered = render("torch-elastic")
    assert list(trainer(rendered)["args"]) == ["/bireme/script/train.py"]
    scripts = [item for item in rendered.manifests if item.kind == "ConfigMap" and "train.py" in item["data"]]
    assert "all_reduce" in scripts[0]["data"]["train.py"]


def test_with_c10d_workers_meet_at_worker_0_without_etcd(render: Callable[..., Render]) -> None:
    sets = ["rendezvous.backend=c10d", "etcd.enabled=false"]
    rendered = render("torch-elastic", sets=sets, release="imagenet", namespace="team")
    assert environment(rendered)["PET_RDZV_ENDPOINT"] == "imagenet-r1-0.imagenet.team.svc:29400"
    assert not [item for item in rendered.manifests if item.kind == "StatefulSet"]


def test_agents_meet_at_the_releases_etcd_under_any_name(render: Callable[..., Render]) -> None:
    rendered = render("torch-elastic", sets=["etcd.fullnameOverride=meeting-point"], namespace="team")
    service, *members = environment(rendered)["PET_RDZV_ENDPOINT"].split(",")
    assert service == "meeting-point.team.svc:2379"
    assert members[0] == "meeting-point-0.meeting-point-peers.team.svc:2379"
    assert the(rendered, "Service", "meeting-point")


def test_agents_know_every_member_that_etcd_may_ever_have(render: Callable[..., Render]) -> None:
    endpoints = {
        environment(render("torch-elastic", sets=[f"etcd.replicas={size}"]))["PET_RDZV_ENDPOINT"]
        for size in (1, 3, 5)
    }
    assert len(endpoints) == 1, "growing etcd needs no new run of the job"
    (known,) = endpoints
    assert len(known.split(",")) == 6


def test_the_user_of_etcd_comes_from_the_secret(render: Callable[..., Render]) -> None:
    sets = ["etcd.auth.enabled=true", "etcd.auth.existingSecret=etcd-users"]
    env = {item["name"]: item for item in trainer(render("torch-elastic", sets=sets))["env"]}
    assert env["BIREME_ETCD_PASSWORD"]["valueFrom"]["secretKeyRef"]["name"] == "etcd-users"


def test_values_win_over_settings_of_the_instance_type(render: Callable[..., Render]) -> None:
    sets = ["env.NCCL_SOCKET_IFNAME=eth0", "resources.limits.memory=64Gi", "shm.size=8Gi"]
    rendered = render("torch-elastic", instance="p4d.24xlarge", sets=sets)
    assert environment(rendered)["NCCL_SOCKET_IFNAME"] == "eth0"
    assert trainer(rendered)["resources"]["limits"]["memory"] == "64Gi"


def test_a_global_registry_replaces_every_registry(render: Callable[..., Render]) -> None:
    rendered = render("torch-elastic", sets=["global.imageRegistry=registry.example.com"])
    images = {
        container["image"]
        for item in rendered.manifests
        for template in pod_templates(item)
        for key in ("initContainers", "containers")
        for container in template["spec"].get(key, ())
    }
    assert len(images) >= 3
    assert {image.split("/")[0] for image in images} == {"registry.example.com"}


@pytest.mark.parametrize("chart", ["torch-elastic", "etcd"])
def test_pods_pass_the_restricted_pod_security_standard(render: Callable[..., Render], chart: str) -> None:
    for item in render(
        chart, files=[f"charts/{chart}/ci/{'full' if chart == 'torch-elastic' else 'three'}-values.yaml"]
    ).manifests:
        for template in pod_templates(item):
            pod = template["spec"]
            assert pod["securityContext"]["runAsNonRoot"] is True, item.identity
            assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", item.identity
            assert not [volume for volume in pod.get("volumes", ()) if "hostPath" in volume], item.identity
            for container in (*pod.get("initContainers", ()), *pod["containers"]):
                assert container["securityContext"]["allowPrivilegeEscalation"] is False, item.identity
                assert list(container["securityContext"]["capabilities"]["drop"]) == ["ALL"], item.identity
