"""Nodes of the embedded cluster: what --nodes means, and what a fake node offers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bireme.clusters.nodes import node_manifest, parse_nodes
from bireme.core.errors import BiremeError
from bireme.plan.instances import Instance, instance_of

Instances = Mapping[str, Instance]
ACCELERATED = ("p4d.24xlarge", "trn1.2xlarge")


def test_nodes_are_counted_by_type(instances: Instances) -> None:
    assert parse_nodes("p4d.24xlarge=3, p3.8xlarge=4,cpu=2", instances) == {
        "p4d.24xlarge": 3,
        "p3.8xlarge": 4,
        "cpu": 2,
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("p4d.24xlarge", "'p4d.24xlarge' is not TYPE=NUMBER"),
        ("p4d.24xlarge=0", "'p4d.24xlarge=0' is not TYPE=NUMBER"),
        ("p4d.24xlarge=²", "is not TYPE=NUMBER"),
        ("=3", "unknown node type ''"),
        ("p4d.24xlarge=1,p4d.24xlarge=2", "p4d.24xlarge is given twice"),
        ("p4d.24xlrage=1", r"did you mean p4d\.24xlarge"),
        ("toaster=1", r"known are .*cpu.*p4d\.24xlarge"),
        (" , ", "--nodes is empty"),
    ],
)
def test_a_wrong_part_of_nodes_is_named_with_the_way_to_write_it(
    text: str, sentence: str, instances: Instances
) -> None:
    with pytest.raises(BiremeError, match=sentence):
        parse_nodes(text, instances)


def test_a_node_says_its_type_its_place_and_that_it_is_fake(instances: Instances) -> None:
    labels = node_manifest(instance_of("g5.xlarge", instances), 0, "1.36.3")["metadata"]["labels"]
    assert labels["node.kubernetes.io/instance-type"] == "g5.xlarge"
    assert labels["topology.kubernetes.io/zone"] == "us-west-2a"
    assert labels["kubernetes.io/hostname"] == "g5-xlarge-0"
    assert labels["kwok.x-k8s.io/node"] == "fake"


def test_a_node_offers_its_devices_and_huge_pages_and_keeps_other_pods_away(instances: Instances) -> None:
    p4d, trainium = (node_manifest(instance_of(each, instances), 2, "1.36.3") for each in ACCELERATED)
    offer, other = p4d["status"]["allocatable"], trainium["status"]["allocatable"]
    assert p4d["metadata"]["name"] == "p4d-24xlarge-2"
    assert (offer["nvidia.com/gpu"], offer["vpc.amazonaws.com/efa"]) == ("8", "4")
    assert offer["hugepages-2Mi"] == "5120Mi"
    assert p4d["spec"]["taints"] == [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    assert other["aws.amazon.com/neuron"] == "1"
    assert not {"nvidia.com/gpu", "vpc.amazonaws.com/efa", "hugepages-2Mi"} & other.keys()
    assert [each["key"] for each in trainium["spec"]["taints"]] == ["aws.amazon.com/neuron"]


def test_a_cpu_node_takes_any_pod(instances: Instances) -> None:
    node = node_manifest(instance_of("cpu", instances), 0, "1.36.3")
    assert node["spec"]["taints"] == []
    assert node["metadata"]["labels"]["node.kubernetes.io/instance-type"] == "m7i.2xlarge"
    assert node["metadata"]["name"] == "cpu-0"
    assert node["status"]["allocatable"] == {
        "cpu": "7910m",
        "memory": "30100Mi",
        "pods": "58",
        "ephemeral-storage": "80Gi",
    }


def test_no_node_offers_more_than_it_has(instances: Instances) -> None:
    for kind in [*instances, "cpu"]:
        status = node_manifest(instance_of(kind, instances), 0, "1.36.3")["status"]
        assert status["allocatable"].keys() == status["capacity"].keys()
        assert _mib(status["allocatable"]) < _mib(status["capacity"]), kind


def _mib(offer: Mapping[str, str]) -> int:
    return int(offer["memory"].removesuffix("Mi"))
