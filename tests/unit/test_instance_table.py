"""Facts of instance types are read from Karpenter's table as DescribeInstanceTypes has them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import instances
import pytest

TABLE = """## p9 Family
### `p4d.24xlarge`
#### Labels
 | Label | Value |
 |--|--|
 |karpenter.k8s.aws/instance-cpu|96|
 |karpenter.k8s.aws/instance-gpu-count|8|
 |karpenter.k8s.aws/instance-gpu-memory|40960|
 |karpenter.k8s.aws/instance-gpu-name|a100|
 |karpenter.k8s.aws/instance-local-nvme|8000|
 |karpenter.k8s.aws/instance-memory|1179648|
 |karpenter.k8s.aws/instance-network-bandwidth|400000|
#### Resources
 | Resource | Quantity |
 |--|--|
 |cpu|95690m|
 |memory|1082712Mi|
 |nvidia.com/gpu|8|
 |vpc.amazonaws.com/efa|4|
### `m5.large`
#### Labels
 |karpenter.k8s.aws/instance-cpu|2|
## trn2 Family
### `trn2.48xlarge`
#### Labels
 |karpenter.k8s.aws/instance-accelerator-count|16|
 |karpenter.k8s.aws/instance-accelerator-name|trainium2|
 |karpenter.k8s.aws/instance-cpu|192|
 |karpenter.k8s.aws/instance-local-nvme|7600|
 |karpenter.k8s.aws/instance-memory|2097152|
 |karpenter.k8s.aws/instance-network-bandwidth|3200000|
#### Resources
 |aws.amazon.com/neuron|16|
 |aws.amazon.com/neuroncore|128|
 |memory|1938410Mi|
 |vpc.amazonaws.com/efa|16|
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "instance-types.md"
    file.write_text(TABLE)
    return file


def test_the_files_that_are_there_have_the_facts_of_the_table(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert instances.main(table, check=True) == 0, capsys.readouterr().out


def test_a_fact_that_differs_is_named(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table.write_text(TABLE.replace("|vpc.amazonaws.com/efa|4|", "|vpc.amazonaws.com/efa|5|"))
    assert instances.main(table, check=True) == 1
    assert capsys.readouterr().out == "p4d.24xlarge: efa is 4, the source has 5\n"


def test_only_types_of_the_collection_are_read(table: Path) -> None:
    assert sorted(instances.read_table(table.read_text())) == ["p4d.24xlarge", "trn2.48xlarge"]


# What DescribeInstanceTypes says of two types, without what is not read.
ANSWER = {
    "g6f.xlarge": {
        "GpuInfo": {
            "Gpus": [{"Count": 0, "LogicalGpuCount": 1, "MemoryInfo": {"SizeInMiB": 2861}, "Name": "L4"}]
        },
        "InstanceStorageInfo": {"TotalSizeInGB": 100},
        "MemoryInfo": {"SizeInMiB": 16384},
        "NetworkInfo": {
            "Ipv4AddressesPerInterface": 15,
            "NetworkCards": [{"BaselineBandwidthInGbps": 2.5, "MaximumNetworkInterfaces": 4}],
            "NetworkPerformance": "Up to 10 Gigabit",
        },
        "VCpuInfo": {"DefaultVCpus": 4},
    },
    "trn2.3xlarge": {
        "InstanceStorageInfo": {"TotalSizeInGB": 470},
        "MemoryInfo": {"SizeInMiB": 131072},
        "NetworkInfo": {
            "EfaInfo": {"MaximumEfaInterfaces": 1},
            "Ipv4AddressesPerInterface": 15,
            "NetworkCards": [{"BaselineBandwidthInGbps": 50.0, "MaximumNetworkInterfaces": 2}],
            "NetworkPerformance": "200 Gigabit",
        },
        "NeuronInfo": {"NeuronDevices": [{"CoreInfo": {"Count": 8}, "Count": 1, "Name": "Trainium2"}]},
        "VCpuInfo": {"DefaultVCpus": 12},
    },
}


def test_types_that_the_table_lacks_are_read_from_the_answer_of_ec2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "instance_types.json.gz"
    file.write_bytes(gzip.compress(json.dumps({**ANSWER, "m5.large": {}, "p4d.24xlarge": {}}).encode()))
    assert instances.main(file, check=True) == 0, capsys.readouterr().out
