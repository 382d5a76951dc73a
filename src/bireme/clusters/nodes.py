"""What cluster nodes look like: the ``--nodes`` syntax, and Node objects made from the instance facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bireme.core.errors import BiremeError, suggestion
from bireme.core.labels import (
    ARCHITECTURE_LABEL,
    FAKE_LABEL,
    FAKE_VALUE,
    HOSTNAME_LABEL,
    INSTANCE_TYPE_LABEL,
    NODE_TYPE_LABEL,
    OS_LABEL,
    REGION_LABEL,
    ZONE_LABEL,
)
from bireme.plan.instances import CPU_INSTANCE_TYPE, CPU_TYPE, CPU_VCPU, Instance

REGION = "us-west-2"
ZONE = f"{REGION}a"

# A node without accelerators: what its type has, and what EKS leaves of it to pods.
_CPU_CAPACITY = {"cpu": str(CPU_VCPU), "memory": "32768Mi", "pods": "58", "ephemeral-storage": "80Gi"}
_CPU_ALLOCATABLE = _CPU_CAPACITY | {"cpu": "7910m", "memory": "30100Mi"}


@dataclass(frozen=True)
class NodeShape:
    """What every node of one type has in common.

    ``name`` is what ``--nodes`` calls it, ``instance_type`` what its label says; ``capacity`` and
    ``allocatable`` are Kubernetes quantities by resource name; ``taint`` is a resource name whose
    ``=present:NoSchedule`` taint keeps other pods away, or None.
    """

    name: str
    instance_type: str
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    taint: str | None
    architecture: str = "amd64"

    def node_name(self, index: int) -> str:
        """The name of the ``index``-th node of this type, e.g. ``p4d-24xlarge-0``."""
        return f"{self.name.replace('.', '-')}-{index}"


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
        shape_of(node_type, instances)
        nodes[node_type] = int(count)
    if not nodes:
        raise BiremeError("--nodes is empty: write for example p4d.24xlarge=3,p3.8xlarge=4")
    return nodes


def shape_of(node_type: str, instances: Mapping[str, Instance]) -> NodeShape:
    """The shape of nodes of an EC2 type, or of the pseudo-type ``cpu``.

    Raises BiremeError with the closest names when the type is unknown.
    """
    if node_type == CPU_TYPE:
        return NodeShape(CPU_TYPE, CPU_INSTANCE_TYPE, _CPU_CAPACITY, _CPU_ALLOCATABLE, None)
    if node_type not in instances:
        raise BiremeError(f"unknown node type {node_type!r}: {suggestion(node_type, [*instances, CPU_TYPE])}")
    instance = instances[node_type]
    allocatable = instance.allocatable(huge_pages=True)
    capacity = allocatable | {"cpu": str(instance.vcpu), "memory": f"{instance.memory_mib}Mi"}
    taint = instance.accelerator.resource
    return NodeShape(node_type, node_type, capacity, allocatable, taint, instance.architecture)


def node_manifest(shape: NodeShape, index: int, kubernetes: str) -> dict[str, Any]:
    """A Node object as the kubelet of a fresh, healthy instance would register it.

    ``kubernetes`` is the version the kubelet reports, e.g. ``1.36.3``. There is no machine behind the
    node, and the label ``kwok.x-k8s.io/node`` says so.
    """
    name = shape.node_name(index)
    taints = [{"key": shape.taint, "value": "present", "effect": "NoSchedule"}] if shape.taint else []
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                INSTANCE_TYPE_LABEL: shape.instance_type,
                ARCHITECTURE_LABEL: shape.architecture,
                HOSTNAME_LABEL: name,
                OS_LABEL: "linux",
                REGION_LABEL: REGION,
                ZONE_LABEL: ZONE,
                FAKE_LABEL: FAKE_VALUE,
                NODE_TYPE_LABEL: shape.name,
            },
        },
        "spec": {"taints": taints},
        "status": {
            "addresses": [{"type": "Hostname", "address": name}],
            "allocatable": dict(shape.allocatable),
            "capacity": dict(shape.capacity),
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "nodeInfo": {
                "architecture": shape.architecture,
                "containerRuntimeVersion": "fake://0",
                "kubeProxyVersion": f"v{kubernetes}",
                "kubeletVersion": f"v{kubernetes}",
                "operatingSystem": "linux",
                "osImage": "none: a fake node of bireme",
            },
        },
    }
