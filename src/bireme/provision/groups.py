"""Groups of nodes: what the nodes of each type need so that the charts' jobs run on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from bireme.core.errors import BiremeError
from bireme.core.labels import NODE_TYPE_LABEL
from bireme.plan.instances import CPU_INSTANCE_TYPE, CPU_TYPE, CPU_VCPU, HYPERPOD, Instance

KINDS = ("on-demand", "spot", "reservation", "block")
_RESERVATION = re.compile(r"cr-[0-9a-z]+")
_REGION = re.compile(r"[a-z]{2,3}(-[a-z]+)+-\d+")
_CLUSTER = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_MIB_PER_PAGE = 2
_EFA_BOOT = """\
echo vm.nr_hugepages={pages} > /etc/sysctl.d/90-bireme.conf
sysctl --load=/etc/sysctl.d/90-bireme.conf
mkdir -p /etc/systemd/system/containerd.service.d
printf '[Service]\\nLimitMEMLOCK=infinity\\n' > /etc/systemd/system/containerd.service.d/90-bireme.conf
systemctl daemon-reload
systemctl try-restart containerd
"""
NODE_CONFIG = """\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  featureGates:
    FastImagePull: true
"""
"""What nodes with accelerators tell nodeadm: SOCI gets and unpacks the layers of an image at once."""


@dataclass(frozen=True)
class Capacity:
    """How accelerated nodes are bought: on demand, as spot, or from a reservation or capacity block.

    ``reservation`` is the id of the reservation or block, else None. Raises BiremeError when they disagree.
    """

    kind: str = "on-demand"
    reservation: str | None = None

    def __post_init__(self) -> None:
        wanted = self.kind in ("reservation", "block")
        if wanted and not _RESERVATION.fullmatch(self.reservation or ""):
            raise BiremeError(
                f"--capacity {self.kind} needs the id of a capacity reservation: --reservation cr-…, "
                "as printed by aws ec2 describe-capacity-reservations"
            )
        if self.reservation and not wanted:
            raise BiremeError("--reservation needs --capacity reservation, or block for a capacity block")


@dataclass(frozen=True)
class Group:
    """``count`` nodes of one type.

    ``name`` is that of ``--nodes`` without dots; ``zone`` is the one zone they are in, or None; ``taint`` is
    the resource whose ``=present:NoSchedule`` keeps other pods away, or None; ``accelerators`` is how many of
    it a node has, and ``has_part_of_gpu`` whether Karpenter counts none of them.
    """

    name: str
    instance_type: str
    count: int
    vcpu: int
    labels: Mapping[str, str]
    taint: str | None = None
    accelerators: int = 0
    has_part_of_gpu: bool = False
    efa: int = 0
    huge_pages_mib: int = 0
    has_nvme: bool = False
    zone: str | None = None
    capacity: Capacity = Capacity()
    architecture: str = "amd64"

    @property
    def taints(self) -> list[dict[str, str]]:
        """Its taints, as a Node has them."""
        return [{"key": self.taint, "value": "present", "effect": "NoSchedule"}] if self.taint else []

    @property
    def boot_script(self) -> str | None:
        """What EFA needs: huge pages, before the kubelet counts them, and no limit of locked memory."""
        pages = self.huge_pages_mib // _MIB_PER_PAGE
        return _EFA_BOOT.format(pages=pages) if pages else None


@dataclass(frozen=True)
class Fleet:
    """A cluster's name and place, and how many nodes of each type it has.

    ``zones``: at least ``least_zones``. Accelerated nodes are in the first one, because EFA, placement
    groups, FSx and reservations have one zone. ``nodes`` as `bireme.clusters.nodes.parse_nodes` returns
    them. Raises BiremeError when a name or a zone is none.
    """

    name: str
    region: str
    zones: tuple[str, ...]
    nodes: Mapping[str, int]
    instances: Mapping[str, Instance]
    capacity: Capacity = Capacity()
    placement_group: str | None = None
    least_zones: int = 2

    def __post_init__(self) -> None:
        if not _CLUSTER.fullmatch(self.name):
            raise BiremeError(f"--cluster {self.name!r}: use lower-case letters, digits and dashes")
        if not _REGION.fullmatch(self.region):
            raise BiremeError(f"--region {self.region!r} is not a region: write for example us-west-2")
        outside = [zone for zone in self.zones if not zone.startswith(self.region) or zone == self.region]
        if outside or len(set(self.zones)) < self.least_zones:
            least = "two zones" if self.least_zones == 2 else "a zone"
            raise BiremeError(
                f"--zones {','.join(self.zones)}: name at least {least} of {self.region}, "
                f"for example {self.region}a,{self.region}b; accelerated nodes are in the first"
            )
        managed = [name for name in self.nodes if name.startswith(HYPERPOD)]
        if managed:
            raise BiremeError(
                f"--nodes {', '.join(managed)}: HyperPod makes its own nodes; leave them out, "
                f"or name EC2 types such as {managed[0].removeprefix(HYPERPOD)}"
            )
        accelerated = [name for name in self.nodes if name != CPU_TYPE]
        if self.capacity.reservation and len(accelerated) != 1:
            raise BiremeError(
                "--reservation is of one instance type, and --nodes names "
                f"{', '.join(accelerated) or 'none'}: "
                "run the command once for each type"
            )

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """A group for each type of ``nodes``."""
        return tuple(self._group(name, count) for name, count in self.nodes.items())

    def _group(self, node_type: str, count: int) -> Group:
        labels = {NODE_TYPE_LABEL: node_type}
        if node_type == CPU_TYPE:
            return Group(CPU_TYPE, CPU_INSTANCE_TYPE, count, CPU_VCPU, labels)
        instance = self.instances[node_type]
        return Group(
            name=node_type.replace(".", "-"),
            instance_type=node_type,
            count=count,
            vcpu=instance.vcpu,
            labels=labels,
            taint=instance.accelerator.resource,
            accelerators=instance.accelerator.count,
            has_part_of_gpu=instance.has_part_of_gpu,
            efa=instance.efa,
            huge_pages_mib=instance.huge_pages_mib,
            has_nvme=bool(instance.nvme_gb),
            zone=self.zones[0],
            capacity=self.capacity,
            architecture=instance.architecture,
        )
