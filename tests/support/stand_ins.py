"""Stand-ins for ``aws``, ``eksctl`` and ``terraform``, with an embedded cluster for one on EKS.

They refuse what the programs would refuse. Run in a folder that looks like the clone, they keep what AWS
knows there, in aws.json.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from bireme.clusters.embedded import EmbeddedCluster, EmbeddedProvider
from bireme.core.labels import NODE_TYPE_LABEL
from bireme.core.paths import Paths
from bireme.plan.instances import CPU_NODE, CPU_TYPE
from bireme.tools import Toolbox
from tests.support import faults

STATE = Path("aws.json")
DRIVERS = {"aws-efs-csi-driver": "efs.csi.aws.com", "aws-fsx-csi-driver": "fsx.csi.aws.com"}
AWS = {
    "eks update-kubeconfig": {"--region", "--name"},
    "cloudwatch get-dashboard": {"--dashboard-name"},
    "ec2 terminate-instances": {"--instance-ids"},
    "service-quotas get-service-quota": {"--service-code", "--quota-code"},
    "s3 mb": set(),
    "s3 rb": {"--force"},
}
FILE_SYSTEM = "fs-0123456789abcdef0"
OUTPUTS: dict[str, Any] = {
    "efs_values": {
        "volumes": {"efsvol": {"type": "csi", "fileSystemId": FILE_SYSTEM, "uid": 1000, "gid": 1000}}
    },
    "fsx_dynamic_values": {
        "provisioning": "dynamic",
        "zone": "us-west-2a",
        "dynamic": {"subnetId": "subnet-0123456789abcdef0", "securityGroupIds": ["sg-0123456789abcdef0"]},
    },
    "dataset_values": {"serviceAccount": {"create": True, "name": "data"}},
    "gpu_metrics_values": {
        "cloudwatch": {
            "region": "us-west-2",
            "containerInsights": {"enabled": True, "clusterName": "bireme"},
        }
    },
    "fsx_values": {
        "provisioning": "static",
        "zone": "us-west-2a",
        "size": "1200Gi",
        "static": {
            "fileSystemId": FILE_SYSTEM,
            "dnsName": f"{FILE_SYSTEM}.fsx.us-west-2.amazonaws.com",
            "mountName": "fsx",
        },
    },
}
"""What tests/eks finds in the outputs of hack/eks."""


def main(program: str, arguments: list[str]) -> None:
    """Do what ``program`` would do on AWS."""
    {"aws": aws, "eksctl": eksctl, "terraform": terraform}[program](arguments)


def terraform(arguments: list[str]) -> None:
    """Commands in hack/eks, whose variables and outputs must be there."""
    assert arguments.pop(0) == "-chdir=hack/eks", "hack/eks is the only configuration"
    folder = Path("hack/eks")
    verb, options = arguments[0], arguments[1:]
    assert verb in ("init", "plan", "apply", "destroy", "output"), verb
    if verb == "output":
        _output(folder, options)
        return
    known = set(re.findall(r'^variable "(\w+)"', (folder / "variables.tf").read_text(), re.MULTILINE))
    given = _variables(options)
    assert set(given) <= known, f"hack/eks has no variable {set(given) - known}"
    if verb == "plan":
        _remember(planned=given)
    elif verb == "apply":
        assert given == _state().get("planned"), "apply has other variables than plan"
        nodes = {CPU_TYPE: int(given.get("cpu_nodes", 2)), **json.loads(_as_json(given.get("nodes", "{}")))}
        _create(given.get("name", "bireme"), given.get("region", "us-west-2"), nodes, list(DRIVERS))
    elif verb == "destroy":
        assert given == _state().get("planned"), "destroy has other variables than apply"
        _destroy()


def eksctl(arguments: list[str]) -> None:
    """``create cluster -f FILE`` and ``delete cluster --name NAME``."""
    verb, noun, option, value, *rest = arguments
    assert noun == "cluster", noun
    if verb == "create":
        assert (option, rest) == ("-f", []), arguments
        config = yaml.safe_load(Path(value).read_text())
        assert config["kind"] == "ClusterConfig", config["kind"]
        nodes = {
            CPU_TYPE if group["instanceType"] == CPU_NODE.type else group["instanceType"]: group[
                "desiredCapacity"
            ]
            for group in config["managedNodeGroups"]
        }
        addons = [each["name"] for each in config["addons"]]
        _create(config["metadata"]["name"], config["metadata"]["region"], nodes, addons)
    else:
        assert (verb, option) == ("delete", "--name"), arguments
        assert value == _state()["name"], f"there is no cluster {value}"
        _destroy()


def aws(arguments: list[str]) -> None:
    """The commands of AWS's command line that the documents use."""
    called, rest = " ".join(arguments[:2]), arguments[2:]
    options = dict(zip(rest[::2], rest[1::2], strict=False)) if called.partition(" ")[0] != "s3" else {}
    assert called in AWS, f"the stand-in of aws does not know {called}"
    unknown = {each for each in rest if each.startswith("--")} - AWS[called]
    assert not unknown, f"aws {called} has no {unknown}"
    if called == "eks update-kubeconfig":
        asked = {"name": options["--name"], "region": options["--region"]}
        assert asked == {key: _state()[key] for key in asked}, "there is no such cluster"
    elif called == "ec2 terminate-instances":
        _terminate(options["--instance-ids"])


def _output(folder: Path, options: list[str]) -> None:
    name = options[-1]
    assert name in re.findall(r'^output "(\w+)"', (folder / "outputs.tf").read_text(), re.MULTILINE), name
    if name == "kubeconfig_command":
        print("aws eks update-kubeconfig --region {region} --name {name}".format_map(_state()))
    elif name in OUTPUTS:
        asked = {
            "fsx_values": "fsx_gib",
            "dataset_values": "buckets",
            "gpu_metrics_values": "gpu_metrics",
        }.get(name)
        assert not asked or asked in _state()["planned"], f"{name} is empty without the variable {asked}"
        print(yaml.safe_dump(OUTPUTS[name]))


def _variables(options: list[str]) -> dict[str, str]:
    assert options[::2] == ["-var"] * (len(options) // 2), options
    return dict(each.split("=", 1) for each in options[1::2])


def _as_json(value: str) -> str:
    return value.replace("=", ":")


def _create(name: str, region: str, nodes: dict[str, int], addons: list[str]) -> None:
    paths = Paths.discover()
    cluster = EmbeddedProvider(paths, Toolbox(paths)).up(name, nodes)
    for driver in sorted(DRIVERS[each] for each in addons if each in DRIVERS):
        cluster.api.create("/apis/storage.k8s.io/v1/csidrivers", {"metadata": {"name": driver}, "spec": {}})
    for node in cluster.api.get("/api/v1/nodes")["items"]:
        _identify(cluster, node["metadata"]["name"])
    _remember(name=name, region=region)


def _identify(cluster: EmbeddedCluster, node: str) -> None:
    cluster.api.patch(f"/api/v1/nodes/{node}", {"spec": {"providerID": f"aws:///us-west-2a/i-{node}"}})


def _terminate(instance: str) -> None:
    """The instance's group starts another one, and its Node goes, as the cloud controller does it."""
    cluster = _cluster()
    node = instance.removeprefix("i-")
    kind = cluster.api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"][NODE_TYPE_LABEL]
    (new,) = cluster.add_nodes(kind, 1)
    _identify(cluster, new)
    faults.remove_node(cluster, node)


def _destroy() -> None:
    paths = Paths.discover()
    assert EmbeddedProvider(paths, Toolbox(paths)).down(_state()["name"]), "there is no cluster"


def _cluster() -> EmbeddedCluster:
    paths = Paths.discover()
    return EmbeddedProvider(paths, Toolbox(paths)).get(_state()["name"])


def _state() -> dict[str, Any]:
    return dict(json.loads(STATE.read_text())) if STATE.exists() else {}


def _remember(**facts: object) -> None:
    STATE.write_text(json.dumps(_state() | facts))


if __name__ == "__main__":
    os.environ.pop("KUBECONFIG", None)
    try:
        main(sys.argv[1], sys.argv[2:])
    except AssertionError as error:
        sys.exit(f"{sys.argv[1]}: {error}")
