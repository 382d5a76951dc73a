"""The objects of `bireme karpenter` are what Karpenter's own kinds accept, their rules included."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.clusters.api import ApiError
from bireme.clusters.embedded import EmbeddedCluster
from bireme.clusters.waiting import until
from bireme.core.paths import Paths
from bireme.plan.instances import load_instances
from bireme.provision.groups import Capacity, Fleet
from bireme.provision.karpenter import karpenter_objects
from bireme.tools import Toolbox

pytestmark = pytest.mark.whole

MODULE = "github.com/aws/karpenter-provider-aws@v1.14.1"
KINDS = {
    "NodePool": "karpenter.sh_nodepools",
    "EC2NodeClass": "karpenter.k8s.aws_ec2nodeclasses",
    "NodeOverlay": "karpenter.sh_nodeoverlays",
}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
INSTANCES = load_instances(Paths.discover())


def path_of(item: dict[str, Any]) -> str:
    plural = {"NodePool": "nodepools", "EC2NodeClass": "ec2nodeclasses", "NodeOverlay": "nodeoverlays"}
    return f"/apis/{item['apiVersion']}/{plural[item['kind']]}"


@pytest.fixture(scope="module")
def karpenter(
    cluster: EmbeddedCluster, toolbox: Toolbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedCluster]:
    """A cluster that knows Karpenter's kinds, from its module."""
    answer = subprocess.run(
        [toolbox.go(), "mod", "download", "-json", MODULE],
        cwd=tmp_path_factory.mktemp("module"),
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    folder = Path(json.loads(answer)["Dir"], "pkg/apis/crds")
    definitions = [yaml.safe_load((folder / f"{name}.yaml").read_text()) for name in KINDS.values()]
    for each in definitions:
        cluster.api.create(DEFINITIONS, each)
    paths = [
        f"/apis/{each['spec']['group']}/{each['spec']['versions'][0]['name']}/{each['spec']['names']['plural']}"
        for each in definitions
    ]
    until(lambda: all(map(cluster.api.find, paths)), 120, "Karpenter's kinds to be served")
    yield cluster
    for each in definitions:
        cluster.api.delete(f"{DEFINITIONS}/{each['metadata']['name']}")


def objects(name: str, capacity: Capacity) -> list[dict[str, Any]]:
    nodes = {"cpu": 2, name: 3}
    zones = ("us-west-2a", "us-west-2b")
    fleet = Fleet("training", "us-west-2", zones, nodes, INSTANCES, capacity, placement_group="near")
    return karpenter_objects(fleet, "KarpenterNodeRole-training")


@pytest.mark.parametrize(
    "capacity",
    [Capacity(), Capacity("spot"), Capacity("reservation", "cr-0a1"), Capacity("block", "cr-0a1")],
    ids=lambda capacity: capacity.kind,
)
def test_karpenter_takes_the_nodes_of_every_type(karpenter: EmbeddedCluster, capacity: Capacity) -> None:
    """The API server checks fields and rules, and creates nothing (dryRun)."""
    wanted = [item for name in INSTANCES for item in objects(name, capacity)]
    query = "?dryRun=All&fieldValidation=Strict"
    made = karpenter.api.each(lambda item: karpenter.api.create(path_of(item) + query, item), wanted)
    assert [each["metadata"]["name"] for each in made] == [each["metadata"]["name"] for each in wanted]


def test_karpenter_would_say_what_is_wrong(karpenter: EmbeddedCluster) -> None:
    """So the test above says something."""
    node_class = objects("p4d.24xlarge", Capacity())[2]
    node_class["spec"]["instanceProfile"] = "both"
    with pytest.raises(ApiError, match="exactly one of"):
        karpenter.api.create(f"{path_of(node_class)}?dryRun=All", node_class)
    del node_class["spec"]["instanceProfile"]
    node_class["spec"]["hugePages"] = 1
    with pytest.raises(ApiError, match="unknown field"):
        karpenter.api.create(f"{path_of(node_class)}?dryRun=All&fieldValidation=Strict", node_class)
