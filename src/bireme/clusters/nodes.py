"""What cluster nodes look like: the ``--nodes`` syntax, and Node objects made from the instance facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bireme.core import labels
from bireme.core.errors import BiremeError
from bireme.plan.instances import Instance, instance_of

REGION = "us-west-2"
ZONE = f"{REGION}a"

_MOST_NODES = 100_000


def parse_nodes(text: str, instances: Mapping[str, Instance]) -> dict[str, int]:
    """The number of nodes by type from ``p4d.24xlarge=3,p3.8xlarge=4``.

    ``cpu`` stands for a node without accelerators. Raises BiremeError naming the part that is wrong.
    """
    nodes: dict[str, int] = {}
    parts = [part.strip() for part in text.split(",")]
    for part in parts if any(parts) else ():
        node_type, equals, count = (piece.strip() for piece in part.partition("="))
        if not equals or not count.isascii() or not count.isdigit() or not 1 <= int(count[:9]) <= _MOST_NODES:
            raise BiremeError(
                f"--nodes: {part!r} is not TYPE=NUMBER with a number from 1 to {_MOST_NODES:,}, "
                "write for example p4d.24xlarge=3,p3.8xlarge=4"
            )
        if node_type in nodes:
            raise BiremeError(f"--nodes: {node_type} is given twice, write one number for each type")
        instance_of(node_type, instances)
        nodes[node_type] = int(count)
    if not nodes:
        raise BiremeError("--nodes is empty: write for example p4d.24xlarge=3,p3.8xlarge=4")
    return nodes


def node_manifest(instance: Instance, index: int, kubernetes: str) -> dict[str, Any]:
    """A Node object as the kubelet of a fresh, healthy instance would register it.

    ``kubernetes`` is the version the kubelet reports, e.g. ``1.36.3``. There is no machine behind the
    node, and the label ``kwok.x-k8s.io/node`` says so.
    """
    name, allocatable = f"{instance.node_name}-{index}", instance.allocatable(huge_pages=True)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                labels.INSTANCE_TYPE_LABEL: instance.type,
                labels.ARCHITECTURE_LABEL: instance.architecture,
                labels.HOSTNAME_LABEL: name,
                labels.OS_LABEL: "linux",
                labels.REGION_LABEL: REGION,
                labels.ZONE_LABEL: ZONE,
                labels.FAKE_LABEL: labels.FAKE_VALUE,
                labels.NODE_TYPE_LABEL: instance.node_type,
            },
        },
        "spec": {"taints": instance.taints},
        "status": {
            "addresses": [{"type": "Hostname", "address": name}],
            "allocatable": allocatable,
            "capacity": allocatable | {"cpu": str(instance.vcpu), "memory": f"{instance.memory_mib}Mi"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "nodeInfo": {
                "architecture": instance.architecture,
                "containerRuntimeVersion": "fake://0",
                "kubeProxyVersion": f"v{kubernetes}",
                "kubeletVersion": f"v{kubernetes}",
                "operatingSystem": "linux",
                "osImage": "none: a fake node of bireme",
            },
        },
    }
