"""Facts of instance types are read from Karpenter's table as DescribeInstanceTypes has them."""

from __future__ import annotations

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
    assert capsys.readouterr().out == "p4d.24xlarge: efa is 4, the table has 5\n"


def test_only_types_of_the_collection_are_read(table: Path) -> None:
    assert sorted(instances.read_table(table.read_text())) == ["p4d.24xlarge", "trn2.48xlarge"]
