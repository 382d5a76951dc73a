"""What a node of each EC2 type offers, read from values/instances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.plan.instances import Instance, choose_nodes, load_instances

P4D = """instance:
  type: p4d.24xlarge
  accelerator: {name: A100, count: 8, memoryMiB: 40960, resource: nvidia.com/gpu}
  efa: 4
  vcpu: 96
  memoryMiB: 1179648
  allocatableMemoryMiB: 1082712
  networkGbps: 400
  nvmeGB: 8000
"""


def test_a_p4d_node_offers_its_cpus_less_the_kubelets_share(instances: Mapping[str, Instance]) -> None:
    assert instances["p4d.24xlarge"].allocatable() == {
        "cpu": "95690m",
        "memory": "1082712Mi",
        "nvidia.com/gpu": "8",
        "vpc.amazonaws.com/efa": "4",
        "pods": "110",
        "ephemeral-storage": "7450Gi",
    }


def test_the_kubelets_share_of_cpu_follows_eks(instances: Mapping[str, Instance]) -> None:
    shares = {1: 940, 2: 1930, 4: 3920, 8: 7910, 192: 191450}
    of_sizes = {vcpu: replace(instances["p4d.24xlarge"], vcpu=vcpu) for vcpu in shares}
    assert {vcpu: each.allocatable_cpu_millis for vcpu, each in of_sizes.items()} == shares


def test_huge_pages_come_out_of_the_memory(instances: Mapping[str, Instance]) -> None:
    offer = instances["p4d.24xlarge"].allocatable(huge_pages=True)
    assert (offer["hugepages-2Mi"], offer["memory"]) == ("5120Mi", "1077592Mi")


def test_every_file_of_the_table_is_loaded_under_its_own_name(
    paths: Paths, instances: Mapping[str, Instance]
) -> None:
    assert {f"{name}.yaml" for name in instances} == {
        file.name for file in (paths.values / "instances").iterdir()
    }
    for instance in instances.values():
        assert instance.allocatable_memory_mib < instance.memory_mib
        assert instance.accelerator.count > 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("  vcpu: 96\n", ""), "`instance.vcpu` is missing"),
        (("vcpu: 96", "vcpu: many"), '`instance.vcpu` is "many", it must be a whole number'),
        (("type: p4d.24xlarge", "type: p4d"), "instance.type is p4d, so the file should be p4d.yaml"),
        (("instance:", "instances:"), "`instance` is missing"),
    ],
)
def test_a_wrong_fact_is_named_with_its_file_and_key(
    change: tuple[str, str], sentence: str, paths: Paths, tmp_path: Path
) -> None:
    folder = tmp_path / "values" / "instances"
    folder.mkdir(parents=True)
    (folder / "p4d.24xlarge.yaml").write_text(P4D.replace(*change))
    with pytest.raises(BiremeError, match=r"p4d\.24xlarge\.yaml: ") as raised:
        load_instances(Paths(tmp_path, paths.cache, paths.state))
    assert sentence in str(raised.value)


TYPE = "node.kubernetes.io/instance-type"
FAMILY, GPUS = "karpenter.k8s.aws/instance-family", "karpenter.k8s.aws/instance-gpu-count"


@pytest.mark.parametrize(
    ("key", "operator", "values", "admitted", "is_bound"),
    [
        (TYPE, "In", ["p4d.24xlarge"], {"p4d.24xlarge"}, True),
        (TYPE, "NotIn", ["p4d.24xlarge"], {"p3.8xlarge", "trn1.2xlarge"}, False),
        (TYPE, "Exists", [], {"p4d.24xlarge", "p3.8xlarge", "trn1.2xlarge"}, False),
        (TYPE, "DoesNotExist", [], set(), False),
        (FAMILY, "In", ["p3", "p4d"], {"p4d.24xlarge", "p3.8xlarge"}, True),
        (GPUS, "Gt", ["4"], {"p4d.24xlarge"}, True),
        (GPUS, "Lt", ["8"], {"p3.8xlarge"}, True),
        (GPUS, "Exists", [], {"p4d.24xlarge", "p3.8xlarge"}, False),
        (GPUS, "DoesNotExist", [], {"trn1.2xlarge"}, False),
        (TYPE, "Gt", ["4"], set(), True),
        ("team", "In", ["blue"], {"p4d.24xlarge", "p3.8xlarge", "trn1.2xlarge"}, False),
    ],
)
def test_node_affinity_chooses_types_by_the_labels_of_their_nodes(
    key: str,
    operator: str,
    values: list[str],
    admitted: set[str],
    is_bound: bool,
    instances: Mapping[str, Instance],
) -> None:
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    choice = choose_nodes({"affinity": {"nodeAffinity": required}}, instances)
    types = {"p4d.24xlarge", "p3.8xlarge", "trn1.2xlarge"}
    assert {each for each in types if choice.admits(each)} == admitted
    assert choice.is_bound == is_bound


def test_an_affinity_without_a_term_that_can_match_admits_no_node(instances: Mapping[str, Instance]) -> None:
    empty: list[dict[str, Any]] = [{}]
    for terms in ([], empty):
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        choice = choose_nodes({"affinity": {"nodeAffinity": required}}, instances)
        assert not any(choice.admits(each) for each in instances)


def test_a_node_selector_keeps_a_type_without_facts(
    instances: Mapping[str, Instance],
) -> None:
    assert choose_nodes({"nodeSelector": {TYPE: "m5.large"}}, instances).types == ("m5.large",)
