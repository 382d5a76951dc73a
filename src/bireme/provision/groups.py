"""Groups of nodes: what the nodes of each type need so that the charts' jobs run on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from bireme.core.errors import BiremeError, refuse_name
from bireme.core.labels import NODE_TYPE_LABEL
from bireme.plan.instances import CPU_TYPE, HYPERPOD, Instance, instance_of

_RESERVATION = re.compile(r"cr-[0-9a-z]+")
_REGION = re.compile(r"[a-z]{2,3}(-[a-z]+)+-\d+")
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
    """``count`` nodes of one type. ``zone`` is the one zone they are in, or None."""

    instance: Instance
    count: int
    zone: str | None = None
    capacity: Capacity = Capacity()

    @property
    def labels(self) -> dict[str, str]:
        """What Bireme's own label says."""
        return {NODE_TYPE_LABEL: self.instance.node_type}

    @property
    def boot_script(self) -> str | None:
        """What EFA needs: huge pages, before the kubelet counts them, and no limit of locked memory."""
        pages = self.instance.huge_pages_mib // _MIB_PER_PAGE
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
        refuse_name("--cluster", self.name, 63)
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
        instance = instance_of(node_type, self.instances)
        if not instance.taints:
            return Group(instance, count)
        return Group(instance, count, self.zones[0], self.capacity)
