"""hack/eks makes the nodes that `bireme eksctl` makes, and values that the charts take."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.core.paths import Paths
from bireme.helm import Renderer, RenderRequest
from bireme.plan.instances import load_instances
from bireme.provision.costs import estimate, load_prices
from bireme.provision.eksctl import cluster_config
from bireme.provision.groups import Fleet, Group
from bireme.tools import Toolbox
from tests.eks.conftest import ROOT, Terraform
from tests.support import stand_ins

PATHS = Paths.discover(start=ROOT)
INSTANCES = load_instances(PATHS)
NODES = {"cpu": 2} | dict.fromkeys(INSTANCES, 3)
MODULE = "github.com/aws/karpenter-provider-aws@v1.14.1"
FLEET = Fleet("bireme", "us-west-2", ("us-west-2a", "us-west-2b"), NODES, INSTANCES)


def resources(state: Mapping[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """The values of all resources of a kind, by their key."""
    return {
        str(each.get("index", "")): each["values"]
        for each in state["root_module"]["resources"]
        if each["type"] == kind and each["mode"] == "managed"
    }


def parts(template: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The shell script and the NodeConfig of a node's user data."""
    message = message_from_string(base64.b64decode(template["user_data"]).decode())
    script, config = (str(part.get_payload()) for part in message.walk() if not part.is_multipart())
    # The line end before a boundary belongs to the boundary.
    return f"{script}\n", yaml.safe_load(config)


def test_the_configuration_is_formatted_and_valid(terraform: Terraform) -> None:
    done = terraform.run("fmt", "-check", "-recursive", "-diff")
    assert done.returncode == 0, done.stdout
    done = terraform.run("validate", "-no-color")
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_group_is_that_of_eksctl(states: Mapping[str, Mapping[str, Any]]) -> None:
    (cluster,) = resources(states["everything"], "aws_eks_cluster").values()
    assert cluster["upgrade_policy"] == [{"support_type": "STANDARD"}]
    assert "eks-node-monitoring-agent" in resources(states["everything"], "aws_eks_addon")
    for group in FLEET.groups:
        check_group(states["everything"], group)


def check_group(state: Mapping[str, Any], group: Group) -> None:
    wanted, name = group.instance, group.instance.node_name
    made = resources(state, "aws_eks_node_group")["" if name == "cpu" else name]
    assert made["node_group_name"] == name
    assert made["labels"] == group.labels
    assert ("ARM_64" in made["ami_type"]) == (wanted.architecture == "arm64")
    taints = [{"key": each["key"], "value": each["value"]} for each in made["taint"]]
    assert taints == [{"key": each["key"], "value": each["value"]} for each in wanted.taints]
    assert [each["effect"] for each in made["taint"]] == ["NO_SCHEDULE"] * len(taints)
    assert made["scaling_config"][0]["max_size"] == group.count
    assert made["node_repair_config"] == ([] if name == "cpu" else [{"enabled": True}])
    if name == "cpu":
        assert made["instance_types"] == [wanted.type]
        return
    template = resources(state, "aws_launch_template")[name]
    assert template["instance_type"] == wanted.type
    interfaces = template["network_interfaces"]
    with_efa = [each for each in interfaces if each["interface_type"] in ("efa", "efa-only")]
    assert len(with_efa) == wanted.efa
    assert [each["network_card_index"] for each in interfaces] == list(range(len(interfaces)))
    assert [each["interface_type"] for each in interfaces[:1]] in ([], ["efa"], ["interface"])
    assert (name in resources(state, "aws_placement_group")) == bool(wanted.efa)
    assert len(made["subnet_ids"]) == 1
    options = template["metadata_options"][0]
    assert (options["http_tokens"], options["http_put_response_hop_limit"]) == ("required", 1)
    script, config = parts(template)
    assert script.startswith("#!/bin/bash")
    assert (group.boot_script or "") in script
    assert ("nr_hugepages" in script) == bool(wanted.huge_pages_mib)
    (of_eksctl,) = cluster_config(replace(FLEET, nodes={wanted.type: 3}), "1.35")["managedNodeGroups"]
    assert config == yaml.safe_load(of_eksctl["overrideBootstrapCommand"])
    assert config["spec"]["featureGates"] == {"FastImagePull": True}
    assert ("localStorage" in str(config)) == bool(wanted.nvme_gb)


def test_one_card_of_p6_b300_has_no_efa(states: Mapping[str, Mapping[str, Any]]) -> None:
    template = resources(states["everything"], "aws_launch_template")["p6-b300-48xlarge"]
    kinds = [each["interface_type"] for each in template["network_interfaces"]]
    assert kinds == ["interface"] + ["efa-only"] * 16


def test_costs_and_quotas_are_those_of_the_harness(states: Mapping[str, Mapping[str, Any]]) -> None:
    outputs = states["everything"]["outputs"]
    costs = estimate(FLEET.groups, load_prices(PATHS))
    assert f"An hour costs {outputs['cost_per_hour']['value']:.2f} USD" in costs[0]
    quotas = {f"  quota {code}: {count} vCPUs" for code, count in outputs["quotas"]["value"].items()}
    assert quotas == {each.split(" of ")[0] for each in costs if "quota L-" in each}


def test_bottlerocket_has_its_settings(states: Mapping[str, Mapping[str, Any]]) -> None:
    templates = resources(states["bottlerocket"], "aws_launch_template")
    settings = {
        name: tomllib.loads(base64.b64decode(template["user_data"]).decode())["settings"]
        for name, template in templates.items()
        if name != "cpu"
    }
    pages = {"p4d-24xlarge": "2560", "trn1-32xlarge": "2560", "g5-xlarge": None, "p3-8xlarge": None}
    found = {
        name: each.get("kernel", {}).get("sysctl", {}).get("vm.nr_hugepages")
        for name, each in settings.items()
    }
    assert found == pages
    assert {name for name, each in settings.items() if "bootstrap-commands" in each} == {
        "p4d-24xlarge",
        "trn1-32xlarge",
        "g5-xlarge",
    }


@pytest.mark.parametrize("chart", ["efs", "fsx"])
def test_the_charts_take_the_outputs_as_values(
    states: Mapping[str, Mapping[str, Any]], chart: str, tmp_path: Any
) -> None:
    values = yaml.safe_load(states["everything"]["outputs"][f"{chart}_values"]["value"])
    values["checkDriver"] = False
    request = RenderRequest(PATHS.charts / chart, values, chart)
    manifests = Renderer(Toolbox(PATHS), PATHS).render(request).manifests
    volumes = [each.thaw() for each in manifests if each.kind == "PersistentVolume"]
    assert len(volumes) == 1
    assert "fs-0" in str(volumes[0]["spec"]["csi"])


def test_the_stand_ins_of_the_walkthroughs_have_these_outputs(
    states: Mapping[str, Mapping[str, Any]],
) -> None:
    outputs = states["everything"]["outputs"]
    made = {name: yaml.safe_load(outputs[name]["value"]) for name in stand_ins.OUTPUTS}
    assert shape_of(made) == shape_of(stand_ins.OUTPUTS)


def shape_of(value: Any) -> Any:
    """Keys and types."""
    if isinstance(value, dict):
        return {key: shape_of(each) for key, each in value.items()}
    return type(value)


def test_roles_of_drivers_can_only_be_taken_by_pods(states: Mapping[str, Mapping[str, Any]]) -> None:
    roles = resources(states["everything"], "aws_iam_role")
    drivers = {name: role["assume_role_policy"] for name, role in roles.items() if name}
    assert set(drivers) >= {"aws-efs-csi-driver", "aws-fsx-csi-driver", "vpc-cni"}
    assert all("pods.eks.amazonaws.com" in policy for policy in drivers.values())
    attached = resources(states["everything"], "aws_iam_role_policy_attachment").values()
    assert not [each["policy_arn"] for each in attached if each["policy_arn"].endswith("FullAccess")]


def test_karpenters_role_allows_each_call_that_it_makes(states: Mapping[str, Mapping[str, Any]]) -> None:
    (policy,) = (
        json.loads(each["policy"])
        for name, each in resources(states["karpenter"], "aws_iam_policy").items()
        if name == "karpenter"
    )
    statements = [each for each in policy["Statement"] if each["Effect"] == "Allow"]
    allowed = {action for each in statements for action in listed(each["Action"])}
    called = calls_of_karpenter()
    assert {"ec2:CreateFleet", "iam:CreateInstanceProfile", "sqs:ReceiveMessage"} <= called
    assert sorted(called - allowed) == []
    # Beside its calls, it gives nodes their role.
    assert sorted(allowed - called) == ["iam:PassRole"]
    changing = {each for each in allowed if not re.match(r"\w+:(Describe|Get|List|Receive)", each)}
    everywhere = [each for each in statements if "*" in listed(each["Resource"])]
    assert not changing & {action for each in everywhere for action in listed(each["Action"])}


def listed(value: str | list[str]) -> list[str]:
    """Of IAM's fields that are one text or several."""
    return [value] if isinstance(value, str) else value


def calls_of_karpenter() -> set[str]:
    """The actions of the calls that Karpenter's module knows, without those of its tests and options."""
    answer = subprocess.run(
        [Toolbox(PATHS).go(), "mod", "download", "-json", MODULE], check=True, capture_output=True, text=True
    ).stdout
    text = Path(json.loads(answer)["Dir"], "pkg/aws/sdk.go").read_text()
    calls = {
        f"{service}:{call}" for call, service in re.findall(r"^\t(\w+)\(.*\*(\w+)\.\w+Input,", text, re.M)
    }
    # Its tests send messages and write time series. Zonal shifts are an option of its chart.
    return {each for each in calls if not re.match("timestreamwrite|arczonalshift|sqs:SendMessage", each)}
