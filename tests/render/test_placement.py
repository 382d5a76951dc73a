"""Where the pods of job charts may go: zone, network, capacity, and what Karpenter and Kueue are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bireme.core.labels import ARCHITECTURE_LABEL, COMPONENT_LABEL
from bireme.helm import Render
from bireme.plan.workloads import kind_of
from tests.support.instance_types import OWN_IMAGE
from tests.support.rendered import RenderChart, job_of

CHARTS = ("torch-elastic", "mpi-training", "paddle")
EFA = "instance.type=p4d.24xlarge"
ZONE = "topology.kubernetes.io/zone"
LAYER = "topology.k8s.aws/network-node-layer-3"


def template(rendered: Render) -> Mapping[str, Any]:
    """The template of the workers' pods."""
    found: Mapping[str, Any] = job_of(rendered)["spec"]["template"]
    return found


def pod(rendered: Render) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = template(rendered)["spec"]
    return spec


def affinity(rendered: Render) -> dict[str, list[str]]:
    """The topology keys by which the pods stay together: required and preferred."""
    pods = pod(rendered).get("affinity", {}).get("podAffinity", {})
    required = pods.get("requiredDuringSchedulingIgnoredDuringExecution", ())
    preferred = pods.get("preferredDuringSchedulingIgnoredDuringExecution", ())
    return {
        "required": [each["topologyKey"] for each in required],
        "preferred": [each["podAffinityTerm"]["topologyKey"] for each in preferred],
    }


@pytest.mark.parametrize("chart", ["torch-elastic", "mpi-training"])
def test_workers_with_efa_share_a_zone_and_others_do_not_have_to(render: RenderChart, chart: str) -> None:
    """EFA's traffic does not leave a zone, so a job over two zones would never meet."""
    assert affinity(render(chart, sets=[EFA])) == {"required": [ZONE], "preferred": []}
    assert affinity(render(chart, sets=[EFA, "efa=0"])) == {"required": [], "preferred": []}
    assert affinity(render(chart, sets=[EFA, "placement.zone=any"])) == {"required": [], "preferred": []}
    named = render(chart, sets=[EFA, "placement.zone=us-west-2b"])
    assert affinity(named) == {"required": [], "preferred": []}
    assert pod(named)["nodeSelector"][ZONE] == "us-west-2b"


@pytest.mark.parametrize("chart", CHARTS)
def test_the_first_worker_chooses_for_those_of_its_release(render: RenderChart, chart: str) -> None:
    """The scheduler lets the first pod pass an affinity that only pods like itself can satisfy."""
    rendered = render(chart, sets=["placement.zone=same"], release="a")
    terms = pod(rendered)["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = template(rendered)["metadata"]["labels"]
    for term in terms:
        selector = term["labelSelector"]
        assert selector["matchLabels"].items() <= labels.items()
        assert selector["matchLabels"]["app.kubernetes.io/instance"] == "a"
        for expression in selector.get("matchExpressions", ()):
            assert labels[expression["key"]] in expression["values"]


@pytest.mark.parametrize("chart", CHARTS)
@pytest.mark.parametrize("mode", ["prefer", "require", "spread"])
def test_workers_are_packed_into_or_spread_over_a_layer_of_the_network(
    render: RenderChart, chart: str, mode: str
) -> None:
    rendered = render(chart, sets=["placement.networkLayer=3", f"placement.networkMode={mode}"])
    keys = affinity(rendered)
    assert keys["preferred"] == ([LAYER] if mode == "prefer" else [])
    assert keys["required"] == ([LAYER] if mode == "require" else [])
    spread = [each["topologyKey"] for each in pod(rendered).get("topologySpreadConstraints", ())]
    assert spread == ([LAYER] if mode == "spread" else [])


@pytest.mark.parametrize("chart", CHARTS)
def test_capacity_is_named_as_karpenter_and_as_node_groups_label_it(render: RenderChart, chart: str) -> None:
    own = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    team = [f"{own}[0].matchExpressions[0].key=team", f"{own}[0].matchExpressions[0].operator=Exists"]
    rendered = render(chart, sets=["placement.capacity=reserved", *team])
    node = pod(rendered)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = [
        {each["key"]: list(each.get("values", ())) for each in term["matchExpressions"]}
        for term in node["nodeSelectorTerms"]
    ]
    assert terms == [
        {"team": [], "karpenter.sh/capacity-type": ["reserved"]},
        {"team": [], "eks.amazonaws.com/capacityType": ["CAPACITY_BLOCK"]},
    ]


def of_kueue(given: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix("kueue.x-k8s.io/"): value for key, value in given.items() if "kueue" in key}


@pytest.mark.parametrize("chart", CHARTS)
def test_kueue_places_workers_only_by_choice(render: RenderChart, chart: str) -> None:
    def asked(*sets: str) -> dict[str, str]:
        rendered = render(chart, sets=["queue.name=training", *sets])
        found = {
            **job_of(rendered)["metadata"]["annotations"],
            **template(rendered)["metadata"]["annotations"],
        }
        return {key: value for key, value in of_kueue(found).items() if not key.startswith("pod-group")}

    assert asked() == {}
    topology = ["placement.networkLayer=3", "queue.topology=true"]
    assert asked(*topology) == {"podset-preferred-topology": LAYER}
    assert asked(*topology, "placement.networkMode=require") == {"podset-required-topology": LAYER}
    packed = render(chart, sets=["queue.name=training", *topology])
    assert affinity(packed) == {"required": [], "preferred": []}, "Kueue has chosen the nodes already"


def test_pservers_and_trainers_are_one_group_of_pods_for_kueue(render: RenderChart) -> None:
    sets = ["queue.name=q", "workers=3", "paddle.pservers.count=2", "queue.priorityClass=high"]
    rendered = render("paddle", release="w2v", sets=sets)
    jobs = [each for each in rendered.manifests if each.kind == "Job" and not each.is_hook]
    assert len(jobs) == 2
    for each in jobs:
        pods = each["spec"]["template"]["metadata"]
        assert of_kueue(each.labels) == {}, "the pods are admitted, not the Job"
        assert of_kueue(pods["labels"]) == {
            "queue-name": "q",
            "priority-class": "high",
            "pod-group-name": "w2v-r1",
        }
        assert of_kueue(pods["annotations"]) == {"pod-group-total-count": "5"}


@pytest.mark.parametrize(
    ("chart", "values", "component"),
    [
        ("mpi-training", {"mpi": {"orchestrator": "MPIJob"}}, "launcher"),
        ("paddle", {}, "pserver"),
        ("paddle", {"script": "print(1)", "data": {"prep": {"enabled": True, "args": ["a.py"]}}}, "data"),
    ],
    ids=["launcher", "pserver", "data"],
)
def test_a_pod_with_the_workers_image_goes_to_nodes_of_their_architecture(
    render: RenderChart, chart: str, values: Mapping[str, Any], component: str
) -> None:
    """It runs on any type, and an image of amd64 does not start on Graviton."""

    def selector(*settings: str) -> Mapping[str, str]:
        rendered = render(chart, values=values, sets=settings)
        specs = [(each, kind_of(each)) for each in rendered.manifests if not each.is_hook]
        templates = [one for each, kind in specs if kind for one in kind.pod_templates(each)]
        (found,) = [each for each in templates if each["metadata"]["labels"][COMPONENT_LABEL] == component]
        chosen: Mapping[str, str] = found["spec"].get("nodeSelector", {})
        return chosen

    assert ARCHITECTURE_LABEL not in selector()
    assert selector(EFA)[ARCHITECTURE_LABEL] == "amd64"
    assert selector("instance.type=ml.g5g.xlarge", *OWN_IMAGE)[ARCHITECTURE_LABEL] == "arm64"
