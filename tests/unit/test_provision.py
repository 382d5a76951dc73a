"""`bireme eksctl` and `bireme karpenter`: nodes as the instance table has them, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from email import message_from_string
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from bireme.cli import cli
from bireme.clusters.nodes import node_manifest
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.plan.instances import CPU_TYPE, Instance, instance_of
from bireme.provision.costs import estimate, load_prices
from bireme.provision.eksctl import cluster_config
from bireme.provision.groups import Capacity, Fleet
from bireme.provision.karpenter import karpenter_objects
from tests.support.instance_types import EACH_TYPE, TYPES

ZONES = ("us-west-2b", "us-west-2c")


def fleet(nodes: Mapping[str, int], instances: Mapping[str, Instance], **options: Any) -> Fleet:
    return Fleet("training", "us-west-2", ZONES, nodes, instances, **options)


@EACH_TYPE
def test_eksctl_makes_the_nodes_that_bireme_up_fakes(
    instances: Mapping[str, Instance], types: tuple[str, ...]
) -> None:
    for name in {*types, CPU_TYPE}:
        check_nodes_of_eksctl(instances, name)


def check_nodes_of_eksctl(instances: Mapping[str, Instance], name: str) -> None:
    """Type, labels, taints, EFA and huge pages are those of the fake nodes on which the charts are tested."""
    config = cluster_config(fleet({name: 3}, instances), "1.35")
    (group,) = config["managedNodeGroups"]
    node = node_manifest(instance_of(name, instances), 0, "1.35.0")

    assert (group["minSize"] == 0) == (name != CPU_TYPE)
    assert group["desiredCapacity"] == group["maxSize"] == 3
    labels = node["metadata"]["labels"]
    assert group["instanceType"] == labels["node.kubernetes.io/instance-type"]
    assert group["labels"].items() <= labels.items()
    assert group.get("taints", []) == node["spec"]["taints"]
    capacity = node["status"]["capacity"]
    assert group.get("efaEnabled", False) == ("vpc.amazonaws.com/efa" in capacity)
    pages = int(capacity.get("hugepages-2Mi", "0Mi").removesuffix("Mi")) // 2
    scripts = group.get("preBootstrapCommands", [])
    assert (group["privateNetworking"], group["disablePodIMDS"]) == (True, True)
    assert {"name": "eks-node-monitoring-agent"} in config["addons"]
    assert [f"vm.nr_hugepages={pages} " in script for script in scripts] == [True] * bool(pages)
    assert ["LimitMEMLOCK=infinity" in script for script in scripts] == [True] * bool(pages)
    # eksctl refuses nodes with EFA in several zones, and a placement group would have one only.
    assert group.get("availabilityZones") == (None if name == CPU_TYPE else [ZONES[0]])


def parts(user_data: str) -> tuple[list[str], list[str]]:
    """The shell scripts and the NodeConfigs of user data that cloud-init takes apart."""
    found: dict[str, list[str]] = {"text/x-shellscript": [], "application/node.eks.aws": []}
    for part in message_from_string(user_data).walk():
        if not part.is_multipart():
            found[part.get_content_type()].append(str(part.get_payload()))
    return found["text/x-shellscript"], found["application/node.eks.aws"]


@EACH_TYPE
def test_a_node_pool_makes_the_same_nodes_as_eksctl(
    instances: Mapping[str, Instance], types: tuple[str, ...]
) -> None:
    for name in types:
        check_node_pool(instances, name)


def check_node_pool(instances: Mapping[str, Instance], name: str) -> None:
    chosen = fleet({name: 3}, instances)
    (group,) = cluster_config(chosen, "1.35")["managedNodeGroups"]
    node_class, pool, *overlays = karpenter_objects(chosen, "nodes")
    template = pool["spec"]["template"]
    required = {each["key"]: each["values"] for each in template["spec"]["requirements"]}

    assert required["node.kubernetes.io/instance-type"] == [group["instanceType"]]
    assert required["topology.kubernetes.io/zone"] == group["availabilityZones"]
    node = node_manifest(instance_of(name, instances), 0, "1.35.0")
    assert required["kubernetes.io/arch"] == [node["metadata"]["labels"]["kubernetes.io/arch"]]
    assert (required["kubernetes.io/arch"] == ["arm64"]) == name.startswith("g5g.")
    assert template["metadata"]["labels"] == group["labels"]
    assert template["spec"]["taints"] == group["taints"]
    assert pool["spec"]["disruption"]["consolidateAfter"] == "5m"
    assert node_class["spec"]["metadataOptions"] == {"httpTokens": "required", "httpPutResponseHopLimit": 1}
    tags = [each["tags"] for each in node_class["spec"]["securityGroupSelectorTerms"]]
    assert {"aws:eks:cluster-name": "training"} in tags
    assert {"karpenter.sh/discovery": "training"} in tags
    scripts, (config,) = parts(node_class["spec"]["userData"])
    assert scripts == [f"#!/bin/bash\n{each}" for each in group.get("preBootstrapCommands", [])]
    spec = yaml.safe_load(group["overrideBootstrapCommand"])["spec"]
    assert yaml.safe_load(config)["spec"]["featureGates"] == spec["featureGates"] == {"FastImagePull": True}
    # Karpenter itself says to nodeadm what is done with the disks of the instance.
    assert (node_class["spec"].get("instanceStorePolicy") == "RAID0") == ("localStorage" in str(spec))
    added = {key for each in overlays for key in each["spec"]["capacity"]}
    assert ("hugepages-2Mi" in added) == bool(scripts)
    resource = instances[name].accelerator.resource
    assert pool["spec"]["limits"] == {resource: 3 * instances[name].accelerator.count}


@pytest.mark.parametrize(
    ("capacity", "of_group", "capacity_type", "of_class"),
    [
        (Capacity(), {}, "on-demand", {}),
        (Capacity("spot"), {"spot": True}, "spot", {}),
        (
            Capacity("reservation", "cr-0a1"),
            {
                "capacityReservation": {
                    "capacityReservationTarget": {"capacityReservationID": "cr-0a1"},
                }
            },
            "reserved",
            {"capacityReservationSelectorTerms": [{"id": "cr-0a1"}]},
        ),
        (
            Capacity("block", "cr-0a1"),
            {
                "capacityReservation": {
                    "capacityReservationTarget": {"capacityReservationID": "cr-0a1"},
                },
                "instanceMarketOptions": {"marketType": "capacity-block"},
            },
            "reserved",
            {"capacityReservationSelectorTerms": [{"id": "cr-0a1"}]},
        ),
    ],
)
def test_accelerated_nodes_are_bought_as_asked(
    instances: Mapping[str, Instance],
    capacity: Capacity,
    of_group: Mapping[str, Any],
    capacity_type: str,
    of_class: Mapping[str, Any],
) -> None:
    chosen = fleet({CPU_TYPE: 1, "p5.48xlarge": 2}, instances, capacity=capacity, placement_group="near")
    config = cluster_config(chosen, "1.35")
    cpu, p5 = config["managedNodeGroups"]
    keys = {"spot", "capacityReservation", "instanceMarketOptions"}
    assert {key: p5[key] for key in keys & set(p5)} == of_group
    assert keys & set(cpu) == set()
    assert p5["placement"] == {"groupName": "near"}
    assert "placement" not in cpu

    _, _, node_class, pool, _ = karpenter_objects(chosen, "nodes")
    required = {each["key"]: each["values"] for each in pool["spec"]["template"]["spec"]["requirements"]}
    assert required["karpenter.sh/capacity-type"] == [capacity_type]
    assert node_class["spec"]["placementGroupSelector"] == {"name": "near"}
    assert of_class.items() <= node_class["spec"].items()


def test_nothing_is_public_unless_a_network_is_admitted(instances: Mapping[str, Instance]) -> None:
    closed = cluster_config(fleet({"p4d.24xlarge": 1}, instances), "1.35")["vpc"]
    assert closed["clusterEndpoints"] == {"privateAccess": True, "publicAccess": False}
    assert "publicAccessCIDRs" not in closed
    opened = cluster_config(fleet({"p4d.24xlarge": 1}, instances), "1.35", ("192.0.2.0/24",))["vpc"]
    assert opened["clusterEndpoints"]["publicAccess"] is True
    assert opened["publicAccessCIDRs"] == ["192.0.2.0/24"]


def test_karpenter_is_told_of_the_part_of_a_gpu_that_it_does_not_count(
    instances: Mapping[str, Instance],
) -> None:
    overlays = {
        name: [
            each["spec"]["capacity"]
            for each in karpenter_objects(fleet({name: 1}, instances), "nodes")
            if each["kind"] == "NodeOverlay"
        ]
        for name in ("g6f.xlarge", "gr6f.4xlarge", "g6.xlarge")
    }
    part = [{"nvidia.com/gpu": "1"}]
    assert overlays == {"g6f.xlarge": part, "gr6f.4xlarge": part, "g6.xlarge": []}
    assert instances["g6f.xlarge"].labels["karpenter.k8s.aws/instance-gpu-count"] == "0"


def test_every_type_has_a_price_or_is_known_to_have_none(paths: Paths) -> None:
    facts = yaml.safe_load((paths.values / "prices.yaml").read_text())
    known = [*facts["onDemand"], *facts["unlisted"]]
    assert {"m7i.2xlarge", *TYPES} <= set(known)
    assert len(known) == len(set(known))


def test_the_costs_and_quotas_of_a_cluster_are_sums(paths: Paths, instances: Mapping[str, Instance]) -> None:
    prices = load_prices(paths)
    nodes = {CPU_TYPE: 2, "p4d.24xlarge": 3, "p5.48xlarge": 1, "trn1.32xlarge": 1}
    costs = estimate(fleet(nodes, instances).groups, prices)
    total = 0.1 + 2 * 0.4032 + 3 * 21.957642 + 55.04 + 21.5
    assert f"{total:.2f} USD by the list of us-east-1 on 2026-07-06" in costs[0]
    assert [each.strip() for each in costs if "quota L-" in each] == [
        "quota L-1216C47A: 16 vCPUs of on-demand standard instances",
        "quota L-417A185B: 480 vCPUs of on-demand P instances",
        "quota L-2C3B7624: 128 vCPUs of on-demand Trn instances",
    ]


@pytest.mark.parametrize(("kind", "period"), [("on-demand", "10m"), ("spot", "2m")])
def test_pods_are_told_before_aws_takes_their_node(
    instances: Mapping[str, Instance], kind: str, period: str
) -> None:
    """AWS takes spot nodes two minutes after it says so."""
    pools = karpenter_objects(fleet({"g5.xlarge": 1}, instances, capacity=Capacity(kind)), "nodes")
    found = [
        each["spec"]["template"]["spec"]["terminationGracePeriod"]
        for each in pools
        if each["kind"] == "NodePool"
    ]
    assert found == [period]


def test_spot_nodes_count_against_another_quota_and_blocks_against_none(
    paths: Paths, instances: Mapping[str, Instance]
) -> None:
    prices = load_prices(paths)
    spot = estimate(fleet({"g5.xlarge": 2}, instances, capacity=Capacity("spot")).groups, prices)
    assert "  quota L-3819A6DF: 8 vCPUs of spot G and VT instances" in spot
    block = Capacity("block", "cr-0a1")
    held = estimate(fleet({"p5e.48xlarge": 2}, instances, capacity=block).groups, prices, control_plane=False)
    assert held[0].startswith("An hour costs 0.00 USD")
    assert any("2 × p5e.48xlarge: no list price" in each for each in held)
    assert not any("quota L-" in each for each in held)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--capacity", "block"], "--capacity block needs the id of a capacity reservation"),
        (["--reservation", "cr-1"], "--reservation needs --capacity reservation"),
        (["--zones", "us-east-1a,us-east-1b"], "for example us-west-2a,us-west-2b"),
        (["--region", "west"], "is not a region"),
        (["--cluster", "My_Cluster"], "lower-case letters"),
        (["--nodes", "p4d.24xlarg=3"], "did you mean p4d.24xlarge"),
        (
            ["--nodes", "p4d.24xlarge=1,p5.48xlarge=1", "--capacity", "reservation", "--reservation", "cr-1"],
            "--reservation is of one instance type, and --nodes names p4d.24xlarge, p5.48xlarge",
        ),
    ],
)
@pytest.mark.parametrize("command", ["eksctl", "karpenter"])
def test_options_that_cannot_work_are_refused(command: str, options: list[str], words: str) -> None:
    done = CliRunner().invoke(cli, [command, "--nodes", "p4d.24xlarge=3", *options])
    assert isinstance(done.exception, BiremeError)
    assert words in str(done.exception)


def test_nodes_of_karpenter_have_the_role_that_is_named_and_may_be_in_one_zone() -> None:
    """Those of a reservation are in one zone."""
    options = ["--nodes", "p5.48xlarge=2", "--zones", "us-west-2a", "--role", "workers"]
    done = CliRunner().invoke(cli, ["karpenter", *options])
    assert done.exit_code == 0, done.output
    node_class, pool, _ = yaml.safe_load_all(done.stdout)
    assert node_class["spec"]["role"] == "workers"
    wanted = {each["key"]: each["values"] for each in pool["spec"]["template"]["spec"]["requirements"]}
    assert wanted["topology.kubernetes.io/zone"] == ["us-west-2a"]


@pytest.mark.parametrize("command", ["eksctl", "karpenter"])
def test_the_costs_stand_above_the_yaml(command: str) -> None:
    done = CliRunner().invoke(cli, [command, "--nodes", "p4d.24xlarge=3", "--capacity", "spot"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("# An hour costs ")
    assert "quota L-7212CCBC: 288 vCPUs of spot P instances" in done.stdout.split("apiVersion")[0]
    kinds = [document["kind"] for document in yaml.safe_load_all(done.stdout)]
    assert kinds == (
        ["ClusterConfig"] if command == "eksctl" else ["EC2NodeClass", "NodePool", "NodeOverlay"]
    )
    assert "&id" not in done.stdout


def test_the_commands_of_the_document_print_yaml(paths: Paths) -> None:
    text = (paths.root / "docs/eks.md").read_text()
    lines = [line.partition(" > ")[0] for line in text.splitlines() if line.startswith("bireme ")]
    commands = [line.split()[1:] for line in lines]
    assert {command[0] for command in commands} == {"eksctl", "karpenter"}
    for command in commands:
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 0, done.output
        assert list(yaml.safe_load_all(done.stdout))


def test_new_clusters_have_a_version_that_is_long_in_standard_support() -> None:
    # If this fails, raise both defaults, after a look at EKS's release calendar.
    root = Paths.discover().root
    ends = yaml.safe_load((root / "values/prices.yaml").read_text())["standardSupport"]
    (option,) = [each for each in cli.commands["eksctl"].params if each.name == "kubernetes"]
    assert f'default     = "{option.default}"' in (root / "hack/eks/variables.tf").read_text()
    assert (ends[option.default] - date.today()).days > 30
