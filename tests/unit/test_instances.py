"""What a node of each EC2 type offers, read from values/instances."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from bireme.errors import BiremeError
from bireme.instances import Instance, load_instances, read_instance
from bireme.paths import Paths

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


@pytest.mark.parametrize(
    ("vcpu", "millis"), [(1, 940), (2, 1930), (4, 3920), (8, 7910), (32, 31850), (96, 95690), (192, 191450)]
)
def test_the_kubelets_share_of_cpu_follows_eks(vcpu: int, millis: int, tmp_path: Path) -> None:
    file = tmp_path / "p4d.24xlarge.yaml"
    file.write_text(P4D.replace("vcpu: 96", f"vcpu: {vcpu}"))
    assert read_instance(file).allocatable_cpu_millis == millis


def test_huge_pages_come_out_of_the_memory(instances: Mapping[str, Instance]) -> None:
    offer = instances["p4d.24xlarge"].allocatable(huge_pages_mib=5120)
    assert (offer["hugepages-2Mi"], offer["memory"]) == ("5120Mi", "1077592Mi")


@pytest.mark.parametrize("mib", [-2, 5, 1082712])
def test_huge_pages_that_are_no_pages_are_refused(mib: int, instances: Mapping[str, Instance]) -> None:
    with pytest.raises(BiremeError, match=r"huge pages on p4d.24xlarge: give an even number of MiB"):
        instances["p4d.24xlarge"].allocatable(huge_pages_mib=mib)


def test_a_trainium_node_offers_neuron_devices_and_no_efa_it_does_not_have(
    instances: Mapping[str, Instance],
) -> None:
    offer = instances["trn1.2xlarge"].allocatable()
    assert offer["aws.amazon.com/neuron"] == "1"
    assert "vpc.amazonaws.com/efa" not in offer
    assert "nvidia.com/gpu" not in offer


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
        (("  vcpu: 96\n", ""), "instance.vcpu is missing, it must be a whole number"),
        (("vcpu: 96", "vcpu: many"), "instance.vcpu is 'many', it must be a whole number"),
        (("efa: 4", "efa: -1"), "instance.efa is -1"),
        (("networkGbps: 400", "networkGbps: fast"), "instance.networkGbps is 'fast', it must be a number"),
        (("name: A100", "name: ''"), "instance.accelerator.name is '', it must be a name"),
        (("type: p4d.24xlarge", "type: p4d"), "instance.type is p4d, so the file should be p4d.yaml"),
        (("accelerator: {", "gpu: {"), "instance.accelerator must be a mapping of facts"),
        (("instance:", "instances:"), "instance must be a mapping of facts"),
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
