"""Facts of EC2 instance types: python hack/instances.py SOURCE [--check].

SOURCE is one of two files that come from DescribeInstanceTypes:

- website/content/en/docs/reference/instance-types.md of github.com/aws/karpenter-provider-aws, a table of
  what Karpenter makes of the answer;
- moto/ec2/resources/instance_types.json.gz of the package moto, the answer itself, for what that table lacks.

Writes values/instances/TYPE.yaml for each type of FAMILIES or LACKING that has no file yet; --check compares
the files that are there instead, and exits with 1 where one differs.
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
    *("g4dn", "g5", "g5g", "g6", "g6e", "gr6", "g7", "g7e", "p3", "p3dn", "p4d", "p4de", "p5", "p5e", "p5en"),
    *("p6-b200", "p6-b300", "trn1", "trn1n", "trn2"),
)
# Of these Karpenter's table has no row, or no GPU because theirs are parts of one.
LACKING = re.compile(r"g6f\..*|gr6f\..*|trn2\.3xlarge")
_NAMES = {"v100": "V100", "rtx-pro-4500": "RTX PRO 4500", "rtx-pro-server-6000": "RTX PRO 6000"}
# Cores that a process sees as one, unless it sets NEURON_LOGICAL_NC_CONFIG.
_JOINED = {"trainium2": 2}
_TYPE = re.compile(
    r"^### `(?P<name>[a-z0-9-]+\.[a-z0-9-]+)`$(?P<rows>.*?)(?=^#{2,3} )", re.MULTILINE | re.DOTALL
)
_ROW = re.compile(r"^ \|(?P<key>[^|]+)\|(?P<value>[^|]*)\|$", re.MULTILINE)
_LABEL = "karpenter.k8s.aws/instance-"
_STEADY = re.compile(r"(?:(?P<cards>\d+)x )?(?P<gbps>[0-9.]+) Gigabit")


def read_table(text: str) -> dict[str, dict[str, Any]]:
    """The facts of each type of FAMILIES, as its values file has them."""
    found = {}
    for each in _TYPE.finditer(f"{text}\n## "):
        rows = {row["key"]: row["value"] for row in _ROW.finditer(each["rows"])}
        if each["name"].partition(".")[0] in FAMILIES and not LACKING.fullmatch(each["name"]):
            found[each["name"]] = _facts(each["name"], rows)
    return found


def _facts(name: str, rows: Mapping[str, str]) -> dict[str, Any]:
    def label(key: str) -> str:
        return rows.get(_LABEL + key, "0")

    gbps = int(label("network-bandwidth")) / 1000
    return {
        "type": name,
        "accelerator": _accelerator(rows),
        "efa": int(rows.get("vpc.amazonaws.com/efa", 0)),
        "vcpu": int(label("cpu")),
        "memoryMiB": int(label("memory")),
        "allocatableMemoryMiB": int(rows["memory"].removesuffix("Mi")),
        "networkGbps": int(gbps) if gbps.is_integer() else gbps,
        "nvmeGB": int(label("local-nvme")),
    }


def _accelerator(rows: Mapping[str, str]) -> dict[str, Any]:
    if f"{_LABEL}gpu-count" in rows:
        model = rows[f"{_LABEL}gpu-name"]
        return {
            "name": _NAMES.get(model, model.upper()),
            "count": int(rows[f"{_LABEL}gpu-count"]),
            "memoryMiB": int(rows[f"{_LABEL}gpu-memory"]),
            "resource": "nvidia.com/gpu",
        }
    name, count = rows[f"{_LABEL}accelerator-name"], int(rows[f"{_LABEL}accelerator-count"])
    return {
        "name": name.capitalize(),
        "count": count,
        "cores": int(rows["aws.amazon.com/neuroncore"]) // count // _JOINED.get(name, 1),
        "resource": "aws.amazon.com/neuron",
    }


def read_answer(types: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The facts of each type that LACKING names, by what DescribeInstanceTypes says of it."""
    return {name: _described(name, each) for name, each in types.items() if LACKING.fullmatch(name)}


def _described(name: str, said: Mapping[str, Any]) -> dict[str, Any]:
    network, memory = said["NetworkInfo"], said["MemoryInfo"]["SizeInMiB"]
    pods = (
        network["NetworkCards"][0]["MaximumNetworkInterfaces"] * (network["Ipv4AddressesPerInterface"] - 1)
        + 2
    )
    steady = _STEADY.fullmatch(network["NetworkPerformance"])
    gbps = (
        int(steady["cards"] or 1) * float(steady["gbps"])
        if steady
        else sum(card["BaselineBandwidthInGbps"] for card in network["NetworkCards"])
    )
    return {
        "type": name,
        "accelerator": _described_accelerator(said),
        "efa": network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        "vcpu": said["VCpuInfo"]["DefaultVCpus"],
        "memoryMiB": memory,
        # As Karpenter reckons: without 7.5 percent for the virtual machine, and what the kubelet keeps.
        "allocatableMemoryMiB": memory - math.ceil(memory * 0.075) - (11 * pods + 255) - 100,
        "networkGbps": int(gbps) if gbps.is_integer() else gbps,
        "nvmeGB": said.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0),
    }


def _described_accelerator(said: Mapping[str, Any]) -> dict[str, Any]:
    if "GpuInfo" in said:
        (gpu,) = said["GpuInfo"]["Gpus"]
        return {
            "name": gpu["Name"],
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


def _read(source: Path) -> dict[str, dict[str, Any]]:
    if source.suffix == ".gz":
        return read_answer(json.loads(gzip.decompress(source.read_bytes())))
    return read_table(source.read_text(encoding="utf-8"))


def main(source: Path, check: bool) -> int:
    folder = Paths.discover(start=Path(__file__)).values / "instances"
    wrong = 0
    for name, facts in sorted(_read(source).items()):
        file = folder / f"{name}.yaml"
        if not file.exists() and not check:
            file.write_text(yaml.safe_dump({"instance": facts}, sort_keys=False))
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
