"""The objects of an mpijob release, and the origin of its CustomResourceDefinition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import generate

from bireme.core.manifests import Manifest
from bireme.core.paths import Paths
from bireme.helm import Render
from bireme.tools import Toolbox
from tests.render.cases import ROOT
from tests.support.rendered import RenderChart

KEEP = "helm.sh/resource-policy"


def kinds(rendered: Render, kind: str) -> list[Manifest]:
    return [item for item in rendered.manifests if item.kind == kind]


def operator(rendered: Render) -> Mapping[str, Any]:
    (deployment,) = kinds(rendered, "Deployment")
    spec: Mapping[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def rights(rendered: Render, kind: str, name: str) -> set[tuple[str, str]]:
    """(resource, verb) of a role; verbs of named objects as resource/name."""
    role = next(item for item in kinds(rendered, kind) if item.name == name)
    return {
        (f"{resource}/{of}" if of else resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for of in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


def test_the_crd_is_generated_from_the_types_of_the_pinned_operator(
    bireme_paths: Paths, toolbox: Toolbox
) -> None:
    assert (ROOT / generate.MPI_JOB_CRD).read_text() == generate.mpi_job_crd(bireme_paths, toolbox), (
        "make crds"
    )


def test_chart_image_and_tool_have_the_same_version(render: RenderChart, toolbox: Toolbox) -> None:
    version = toolbox.pin("mpi-operator").version
    (container,) = operator(render("mpijob"))["containers"]
    assert container["image"] == f"docker.io/mpioperator/mpi-operator:{version}"
    assert kinds(render("mpijob"), "Deployment")[0].labels["app.kubernetes.io/version"] == version


def test_the_crd_is_kept_by_default_and_left_out_on_request(render: RenderChart) -> None:
    (crd,) = kinds(render("mpijob"), "CustomResourceDefinition")
    assert crd.annotations[KEEP] == "keep"
    assert [version["name"] for version in crd["spec"]["versions"]] == ["v2beta1"]
    (crd,) = kinds(render("mpijob", sets=["crds.keep=false"]), "CustomResourceDefinition")
    assert KEEP not in crd.annotations
    assert kinds(render("mpijob", sets=["crds.enabled=false"]), "CustomResourceDefinition") == []


def test_the_throttles_that_make_large_jobs_slow_are_raised(render: RenderChart) -> None:
    (container,) = operator(render("mpijob"))["containers"]
    given = dict(argument.lstrip("-").split("=") for argument in container["args"])
    upstream = {"kube-api-qps": 5, "kube-api-burst": 10, "controller-queue-rate-limit": 10, "threadiness": 2}
    assert {name for name, slow in upstream.items() if int(given[name]) <= slow} == set()


def test_values_become_arguments(render: RenderChart) -> None:
    sets = ["watchNamespace=team", "gangScheduler=volcano", "clusterDomain=corp", "metrics.enabled=false"]
    (container,) = operator(render("mpijob", sets=[*sets, "client.qps=7"], namespace="ops"))["containers"]
    wanted = {
        "--namespace=team",
        "--gang-scheduling=volcano",
        "--cluster-domain=corp",
        "--monitoring-port=0",
        "--kube-api-qps=7",
        "--lock-namespace=ops",
    }
    assert wanted <= set(container["args"])
    assert [port["name"] for port in container["ports"]] == ["health"]


def test_with_one_namespace_only_priority_classes_are_read_elsewhere(render: RenderChart) -> None:
    rendered = render("mpijob", sets=["watchNamespace=team"], namespace="ops", release="mpi")
    assert rights(rendered, "ClusterRole", "ops:mpi") == {
        ("priorityclasses", "list"),
        ("priorityclasses", "watch"),
    }
    assert ("secrets", "create") in rights(rendered, "Role", "mpi")
    assert {role.name: role.namespace for role in kinds(rendered, "Role")} == {
        "mpi": "team",
        "mpi-leader": "ops",
    }
    assert rights(rendered, "Role", "mpi-leader") == {
        ("leases", "create"),
        ("leases/mpi-operator", "get"),
        ("leases/mpi-operator", "update"),
        ("events", "create"),
        ("events", "patch"),
    }


def test_only_a_gang_scheduler_adds_permissions_for_pod_groups(render: RenderChart) -> None:
    def groups(*sets: str) -> set[str]:
        role = next(
            item
            for item in kinds(render("mpijob", sets=sets, release="m"), "ClusterRole")
            if item.name == "default:m"
        )
        return {rule["apiGroups"][0] for rule in role["rules"] if "podgroups" in rule["resources"]}

    assert groups() == set()
    assert groups("gangScheduler=volcano") == {"scheduling.volcano.sh"}
    assert groups("gangScheduler=scheduler-plugins-scheduler") == {"scheduling.x-k8s.io"}


def test_editors_of_a_namespace_can_edit_its_mpi_jobs_by_default(render: RenderChart) -> None:
    names = {role.name for role in kinds(render("mpijob", release="m"), "ClusterRole")}
    assert names == {"default:m", "default:m-edit", "default:m-view"}
    left = kinds(render("mpijob", sets=["rbac.aggregate=false"], release="m"), "ClusterRole")
    assert [role.name for role in left] == ["default:m"]
