"""Jobs on the nodes of SageMaker HyperPod, whose types begin with ml."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bireme.clusters.nodes import parse_nodes
from bireme.core.errors import BiremeError
from bireme.plan.instances import Instance, admits
from bireme.plan.topology import fit
from bireme.provision.groups import Fleet
from tests.support.rendered import PlanChart, RenderChart, environment_of, the, trainer_of

VALUES = {
    "instance": {"type": "ml.p5.48xlarge"},
    "workers": 2,
    "queue": {"name": "hyperpod-ns-vision-localqueue", "priorityClass": "high-priority"},
    "nodeSelector": {"sagemaker.amazonaws.com/deep-health-check-status": "Passed"},
}


def test_a_type_of_hyperpod_has_the_facts_of_ec2s(render: RenderChart) -> None:
    rendered = render("torch-elastic", values=VALUES)
    job = the(rendered, "Job").thaw()
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {
        "node.kubernetes.io/instance-type": "ml.p5.48xlarge",
        "sagemaker.amazonaws.com/node-health-status": "Schedulable",
        "sagemaker.amazonaws.com/deep-health-check-status": "Passed",
    }
    trainer = trainer_of(rendered)
    limits = trainer["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["vpc.amazonaws.com/efa"]) == ("8", "32")
    ec2 = render("torch-elastic", values=VALUES | {"instance": {"type": "p5.48xlarge"}})
    assert environment_of(trainer) == environment_of(trainer_of(ec2))
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "hyperpod-ns-vision-localqueue"
    assert job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high-priority"


def test_a_plan_counts_the_nodes_of_hyperpod(plan: PlanChart, instances: Mapping[str, Instance]) -> None:
    planned = plan("torch-elastic", values=VALUES)
    assert planned.totals.nodes == {"ml.p5.48xlarge": 2}
    assert not fit(planned.pods, parse_nodes("ml.p5.48xlarge=2", instances), instances)
    assert fit(planned.pods, parse_nodes("p5.48xlarge=2", instances), instances)


def test_nobody_else_makes_the_nodes_of_hyperpod(instances: Mapping[str, Instance]) -> None:
    nodes = parse_nodes("ml.p5.48xlarge=2", instances)
    with pytest.raises(BiremeError, match=r"HyperPod makes its own nodes.* such as p5\.48xlarge"):
        Fleet("team", "us-west-2", ("us-west-2a", "us-west-2b"), nodes, instances)


def test_the_types_of_hyperpod_are_not_listed_beside_ec2s(instances: Mapping[str, Instance]) -> None:
    assert "ml.p5.48xlarge" in instances
    assert not [name for name in instances if name.startswith("ml.")]


@pytest.mark.parametrize(
    ("chart", "setting"), [("gpu-metrics", "agent=dcgm"), ("efa-device-plugin", "region=us-west-2")]
)
def test_agents_run_on_nodes_of_hyperpod(render: RenderChart, chart: str, setting: str) -> None:
    rendered = render(chart, sets=[setting])
    pod = the(rendered, "DaemonSet").thaw()["spec"]["template"]["spec"]
    linux, windows = ({"kubernetes.io/os": each} for each in ("linux", "windows"))
    gpus = {"node.kubernetes.io/instance-type": "ml.p5en.48xlarge"}
    assert admits(pod, "node", {**linux, **gpus})
    assert not admits(pod, "node", {**windows, **gpus})
    assert not admits(pod, "node", {**linux, "node.kubernetes.io/instance-type": "ml.m7i.2xlarge"})
