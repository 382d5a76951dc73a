"""Facts of instance types are read from what EC2 says of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import instances
import pytest

# What DescribeInstanceTypes says of three types, without what is not read.
ANSWER = {
    "g5g.xlarge": {
        "GpuInfo": {"Gpus": [{"LogicalGpuCount": 1, "MemoryInfo": {"SizeInMiB": 16384}, "Name": "T4g"}]},
        "MemoryInfo": {"SizeInMiB": 8192},
        "NetworkInfo": {
            "Ipv4AddressesPerInterface": 15,
            "NetworkCards": [{"BaselineBandwidthInGbps": 1.25, "MaximumNetworkInterfaces": 4}],
            "NetworkPerformance": "Up to 10 Gigabit",
        },
        "ProcessorInfo": {"SupportedArchitectures": ["arm64"]},
        "VCpuInfo": {"DefaultVCpus": 4},
    },
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
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
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
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
        "VCpuInfo": {"DefaultVCpus": 12},
    },
}


@pytest.fixture
def moto(tmp_path: Path) -> Path:
    """The copy that moto has."""
    file = tmp_path / "instance_types.json.gz"
    file.write_bytes(gzip.compress(json.dumps({**ANSWER, "m5.large": {}}).encode()))
    return file


def test_the_files_that_are_there_have_the_facts_of_ec2(
    moto: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert instances.main(moto, check=True) == 0, capsys.readouterr().out


def test_a_fact_that_differs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = {**ANSWER["trn2.3xlarge"], "InstanceType": "trn2.3xlarge", "VCpuInfo": {"DefaultVCpus": 13}}
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps({"InstanceTypes": [said]}))
    assert instances.main(answer, check=True) == 1
    assert capsys.readouterr().out == "trn2.3xlarge: vcpu is 12, the source has 13\n"


def test_only_types_of_the_collection_are_read() -> None:
    assert sorted(instances.read({**ANSWER, "m5.large": {}, "g4ad.xlarge": {}})) == sorted(ANSWER)
