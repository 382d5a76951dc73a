"""hack/eks applied by the real AWS provider, to moto as AWS.

The provider's checks and calls are real; moto keeps what it is sent and gives it back. What moto 5.2 lacks is
replaced by Terraform's override file below, and by nothing else.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.eks.conftest import Terraform, copied
from tests.runtime.s3_servers import KEYS, s3_server

OVERRIDES = """
# moto has no add-ons and no Pod Identity.
resource "aws_eks_addon" "early" {
  for_each = {}
}
resource "aws_eks_addon" "late" {
  for_each = {}
}
resource "aws_eks_pod_identity_association" "data" {
  count = 0
}
resource "aws_eks_pod_identity_association" "account" {
  for_each = {}
}

# moto has no placement groups.
resource "aws_placement_group" "this" {
  for_each = {}
}
resource "aws_launch_template" "node" {
  placement {
    group_name = "stand-in"
  }
}

# moto gives a cluster no security group.
resource "aws_efs_mount_target" "this" {
  security_groups = [aws_security_group.efa.id]
}
"""
VARIABLES = {
    "nodes": '{"p4d.24xlarge"=3, "g5.xlarge"=2}',
    "admitted": '["192.0.2.7/32"]',
    "buckets": '["photos"]',
    "gpu_metrics": "true",
}
MADE = {
    "aws_cloudwatch_dashboard": 1,
    "aws_default_security_group": 1,
    "aws_efs_file_system": 1,
    "aws_efs_mount_target": 2,
    "aws_eip": 1,
    "aws_eks_cluster": 1,
    "aws_eks_node_group": 3,
    "aws_iam_policy": 1,
    "aws_iam_role": 8,
    "aws_iam_role_policy": 1,
    "aws_iam_role_policy_attachment": 8,
    "aws_internet_gateway": 1,
    "aws_launch_template": 3,
    "aws_nat_gateway": 1,
    "aws_route_table": 2,
    "aws_route_table_association": 4,
    "aws_security_group": 1,
    "aws_subnet": 4,
    "aws_vpc": 1,
    "aws_vpc_endpoint": 1,
}


@pytest.fixture(scope="module")
def on_moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terraform]:
    """Terraform whose AWS is an empty moto."""
    folder = tmp_path_factory.mktemp("moto")
    with s3_server(folder / "log", MOTO_IAM_LOAD_MANAGED_POLICIES="true") as server:
        here = {f"TF_VAR_{name}": value for name, value in VARIABLES.items()}
        aws = {"AWS_ENDPOINT_URL": server.url, "AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1"}
        found = copied(folder, {**KEYS, **aws, **here})
        (found.folder / "moto_override.tf").write_text(OVERRIDES)
        yield found


@pytest.fixture(scope="module")
def made(on_moto: Terraform) -> dict[str, dict[str, Any]]:
    """The resources after ``terraform apply``, as moto describes them, by address."""
    done = on_moto.run("apply", "-auto-approve", "-no-color")
    assert done.returncode == 0, done.stderr
    state = json.loads(on_moto.run("show", "-json").stdout)
    resources = state["values"]["root_module"]["resources"]
    return {each["address"]: each["values"] for each in resources if each["mode"] == "managed"}


def test_the_provider_makes_everything_that_moto_has(made: dict[str, dict[str, Any]]) -> None:
    assert Counter(address.partition(".")[0] for address in made) == MADE


def test_nodes_have_the_interfaces_of_their_type(made: dict[str, dict[str, Any]]) -> None:
    with_efa = made['aws_launch_template.node["p4d-24xlarge"]']
    kinds = [each["interface_type"] for each in with_efa["network_interfaces"]]
    assert kinds == ["efa", *["efa-only"] * 3]
    assert made['aws_launch_template.node["g5-xlarge"]']["network_interfaces"] == []
    groups = {each["node_group_name"]: each for name, each in made.items() if "aws_eks_node_group" in name}
    sizes = {name: each["scaling_config"][0]["desired_size"] for name, each in groups.items()}
    assert sizes == {"cpu": 2, "p4d-24xlarge": 3, "g5-xlarge": 2}


def test_roles_have_policies_that_aws_has(made: dict[str, dict[str, Any]]) -> None:
    # moto knows AWS's own policies and refuses others.
    attached = [each for name, each in made.items() if ".aws_iam_role_policy_attachment" in f".{name}"]
    own = [each for each in attached if "::aws:policy/" not in each["policy_arn"]]
    assert [each["role"] for each in own] == ["bireme-aws-fsx-csi-driver"]


def test_the_dashboard_that_cloudwatch_keeps_has_one_gpu_of_each_node(
    made: dict[str, dict[str, Any]],
) -> None:
    (widget,) = json.loads(made["aws_cloudwatch_dashboard.gpus[0]"]["dashboard_body"])["widgets"]
    assert widget["properties"]["region"] == "us-west-2"
    ((search,),) = widget["properties"]["metrics"]
    # The agent's name for the metric, and its dimension for the GPU's number, of any node.
    wanted = 'Namespace="CWAgent" MetricName="nvidia_smi_utilization_gpu" index="0"'
    assert search == {"expression": f"SEARCH('{wanted}', 'Average', 60)"}


def test_the_api_server_answers_the_admitted_network_only(made: dict[str, dict[str, Any]]) -> None:
    (access,) = made["aws_eks_cluster.this"]["vpc_config"]
    assert access["public_access_cidrs"] == ["192.0.2.7/32"]
    assert access["endpoint_private_access"]


def test_an_apply_with_other_boot_scripts_replaces_no_node(
    on_moto: Terraform, made: dict[str, dict[str, Any]]
) -> None:
    before = planned(on_moto)
    script = on_moto.folder / "user-data.mime"
    text = script.read_text()
    script.write_text(text.replace("#!/bin/bash\n", "#!/bin/bash\n# another\n"))
    after = planned(on_moto)
    script.write_text(text)
    template = 'aws_launch_template.node["p4d-24xlarge"]'
    assert after[template].startswith(f"{template} will be updated in-place")
    # moto forgets some of what it is told, and so a plan has changes before.
    assert {name: each for name, each in after.items() if "node_group" in name} == {
        name: each for name, each in before.items() if "node_group" in name
    }


def planned(terraform: Terraform) -> dict[str, str]:
    """What a plan says of each resource that it changes, by the resource's address."""
    plan = terraform.run("plan", "-no-color").stdout
    parts = re.split("^  # ", plan, flags=re.MULTILINE)[1:]
    return {part.split(" ")[0]: part for part in parts}


# After the others, which look at what was made.
def test_destroy_leaves_nothing(on_moto: Terraform, made: dict[str, dict[str, Any]]) -> None:
    done = on_moto.run("destroy", "-auto-approve", "-no-color")
    assert done.returncode == 0, done.stderr
    assert f"{len(made)} destroyed" in done.stdout
    assert on_moto.run("state", "list").stdout == ""
