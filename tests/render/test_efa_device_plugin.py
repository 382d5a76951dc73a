"""The objects of an efa-device-plugin release: nodes, image, permissions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import generate
import pytest
from rich.console import Console

from bireme.cli.views import plan_view
from bireme.core.manifests import Manifest
from bireme.core.paths import Paths
from bireme.helm import Render
from bireme.plan.instances import Instance
from tests.support.rendered import PlanChart, RenderChart

CHART = "efa-device-plugin"
OREGON = ["region=us-west-2"]


def daemon_set(rendered: Render) -> Manifest:
    (only,) = [item for item in rendered.manifests if item.kind == "DaemonSet"]
    return only


def pod(rendered: Render) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = daemon_set(rendered)["spec"]["template"]["spec"]
    return spec


def node_terms(rendered: Render) -> list[list[Mapping[str, Any]]]:
    required = pod(rendered)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [list(term["matchExpressions"]) for term in required["nodeSelectorTerms"]]


def test_the_lists_of_instance_types_are_generated_from_values(bireme_paths: Paths) -> None:
    written = (bireme_paths.charts / generate.INSTANCE_TYPES).read_text()
    assert written == generate.instance_types(bireme_paths), "make instances"


def test_it_runs_on_nodes_of_types_with_efa(plan: PlanChart, instances: Mapping[str, Instance]) -> None:
    (plugin,) = plan(CHART, sets=OREGON).workloads
    known = set(plugin.instance_types or ()) & set(instances)
    assert known == {each.type for each in instances.values() if each.efa}
    assert {"p4d.24xlarge", "trn1.32xlarge"} < set(plugin.instance_types or ())
    assert not {"p3.8xlarge", "g5.xlarge"} & set(plugin.instance_types or ())


def test_the_plan_names_the_nodes_on_which_it_runs(plan: PlanChart) -> None:
    console = Console(width=400)
    with console.capture() as captured:
        console.print(plan_view(plan(CHART, sets=OREGON, release="efa")))
    said = " ".join(captured.get().split())
    assert "DaemonSet/efa: a plugin pod on each node of c5n.18xlarge, c5n.9xlarge," in said
    assert " g4dn.12xlarge, g4dn.16xlarge, g4dn.8xlarge," in said


def test_types_and_auto_mode_are_expressions_of_one_term(render: RenderChart) -> None:
    """Several terms would be alternatives, so that nodes of Auto Mode would match the other one."""
    rendered = render(CHART, sets=[*OREGON, "instanceTypes={p9.48xlarge}"])
    (term,) = node_terms(rendered)
    by_key = {each["key"]: each for each in term}
    assert "p9.48xlarge" in by_key["node.kubernetes.io/instance-type"]["values"]
    auto = by_key["eks.amazonaws.com/compute-type"]
    assert (auto["operator"], list(auto["values"])) == ("NotIn", ["auto"])


def test_every_type_that_the_chart_of_aws_lists_gets_the_plugin(render: RenderChart) -> None:
    """aws/eks-charts lists 303 types, most of them without accelerators (hack/agents.yaml)."""
    (term,) = node_terms(render(CHART, sets=OREGON))
    listed = set(term[0]["values"])
    assert len(listed) >= 303
    assert {"hpc7a.96xlarge", "p6e-gb200.36xlarge", "trn2u.48xlarge", "g7e.48xlarge"} < listed


def test_a_label_of_ones_own_is_an_alternative_and_never_means_auto_mode(render: RenderChart) -> None:
    terms = node_terms(render(CHART, sets=[*OREGON, "nodeLabels.fabric=efa"]))
    assert [each[0]["key"] for each in terms] == ["node.kubernetes.io/instance-type", "fabric"]
    assert [each[1]["operator"] for each in terms] == ["NotIn", "NotIn"]


@pytest.mark.parametrize(
    ("region", "registry"),
    [
        ("us-west-2", "602401143452.dkr.ecr.us-west-2.amazonaws.com"),
        ("eu-central-2", "900612956339.dkr.ecr.eu-central-2.amazonaws.com"),
        ("cn-north-1", "918309763551.dkr.ecr.cn-north-1.amazonaws.com.cn"),
        ("us-isof-south-1", "676585237158.dkr.ecr.us-isof-south-1.csp.hci.ic.gov"),
    ],
)
def test_the_image_is_from_the_registry_of_the_region(
    render: RenderChart, region: str, registry: str
) -> None:
    (plugin,) = pod(render(CHART, sets=[f"region={region}"]))["containers"]
    assert plugin["image"].startswith(f"{registry}/eks/aws-efa-k8s-device-plugin:v")


@pytest.mark.parametrize("key", ["image.registry", "global.imageRegistry"])
def test_an_image_from_another_registry_needs_no_region(render: RenderChart, key: str) -> None:
    (plugin,) = pod(render(CHART, sets=[f"{key}=registry.example.com"]))["containers"]
    assert plugin["image"].startswith("registry.example.com/eks/")
