"""Facts of EC2 instance types: python hack/instances.py SOURCE [--check].

SOURCE is what `aws ec2 describe-instance-types` prints, or the copy of that in the package moto,
moto/ec2/resources/instance_types.json.gz.

Writes values/instances/TYPE.yaml for each type of FAMILIES that has no file yet; --check compares the files
that are there instead, and exits with 1 where one differs.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bireme.core.paths import Paths

# Not g4ad, whose GPUs are AMD's.
FAMILIES = (
    *("g4dn", "g5", "g5g", "g6", "g6e", "g6f", "gr6", "gr6f", "g7", "g7e", "p3", "p3dn", "p4d", "p4de"),
    *("p5", "p5e", "p5en", "p6-b200", "p6-b300", "trn1", "trn1n", "trn2"),
)
SCHEMA = "# yaml-language-server: $schema=../../charts/torch-elastic/values.schema.json\n"
_NAMES = {"T4g": "T4G", "RTX PRO Server 4500": "RTX PRO 4500", "RTX PRO Server 6000": "RTX PRO 6000"}
# Cores that a process sees as one, unless it sets NEURON_LOGICAL_NC_CONFIG.
_JOINED = {"trainium2": 2}
_STEADY = re.compile(r"(?:(?P<cards>\d+)x )?(?P<gbps>[0-9.]+) Gigabit")


def read(answer: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The facts of each type of FAMILIES, as its values file has them, by what EC2 says of it."""
    listed = answer.get("InstanceTypes")
    types = answer if listed is None else {each["InstanceType"]: each for each in listed}
    return {name: _facts(name, each) for name, each in types.items() if name.partition(".")[0] in FAMILIES}


def _facts(name: str, said: Mapping[str, Any]) -> dict[str, Any]:
    network, memory = said["NetworkInfo"], said["MemoryInfo"]["SizeInMiB"]
    interfaces = network["NetworkCards"][0]["MaximumNetworkInterfaces"]
    pods = interfaces * (network["Ipv4AddressesPerInterface"] - 1) + 2
    steady = _STEADY.fullmatch(network["NetworkPerformance"])
    gbps = (
        int(steady["cards"] or 1) * float(steady["gbps"])
        if steady
        else sum(card["BaselineBandwidthInGbps"] for card in network["NetworkCards"])
    )
    # As Karpenter reckons: without 64 MiB that Linux keeps on Arm, 7.5 percent for the virtual machine, and
    # what the kubelet keeps.
    is_arm = "arm64" in said["ProcessorInfo"]["SupportedArchitectures"]
    seen = memory - 64 * is_arm
    return {
        "type": name,
        "accelerator": _accelerator(said),
        "efa": network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        "vcpu": said["VCpuInfo"]["DefaultVCpus"],
        "memoryMiB": memory,
        "allocatableMemoryMiB": seen - math.ceil(seen * 0.075) - (11 * pods + 255) - 100,
        "networkGbps": int(gbps) if gbps.is_integer() else gbps,
        "nvmeGB": said.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0),
    }


def _accelerator(said: Mapping[str, Any]) -> dict[str, Any]:
    if "GpuInfo" in said:
        (gpu,) = said["GpuInfo"]["Gpus"]
        return {
            "name": _NAMES.get(gpu["Name"], gpu["Name"]),
            "count": gpu["LogicalGpuCount"],
            "memoryMiB": gpu["MemoryInfo"]["SizeInMiB"],
            "resource": "nvidia.com/gpu",
        }
    (device,) = said["NeuronInfo"]["NeuronDevices"]
    return {
        "name": device["Name"],
        "count": device["Count"],
        "cores": device["CoreInfo"]["Count"] // _JOINED.get(device["Name"].lower(), 1),
        "resource": "aws.amazon.com/neuron",
    }


def main(source: Path, check: bool) -> int:
    folder = Paths.discover(start=Path(__file__)).values / "instances"
    content, wrong = source.read_bytes(), 0
    answer = json.loads(gzip.decompress(content) if source.suffix == ".gz" else content)
    for name, facts in sorted(read(answer).items()):
        file = folder / f"{name}.yaml"
        if not file.exists() and not check:
            file.write_text(SCHEMA + yaml.safe_dump({"instance": facts}, sort_keys=False))
            print(f"{name} is written")
        elif check:
            kept = yaml.safe_load(file.read_text())["instance"] if file.exists() else {}
            for key in sorted(facts.keys() | kept.keys()):
                if facts.get(key) != kept.get(key):
                    wrong += 1
                    print(f"{name}: {key} is {kept.get(key)}, the source has {facts.get(key)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "--check" in sys.argv[2:]))
