"""The EC2 instance types the charts know, and what a node of each offers to Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bireme.errors import BiremeError
from bireme.helm import values
from bireme.paths import Paths

EFA = "vpc.amazonaws.com/efa"
HUGE_PAGES = "hugepages-2Mi"
_PODS = 110
_ROOT_VOLUME_GIB = 80


@dataclass(frozen=True)
class Accelerator:
    """The accelerators of one instance: ``count`` devices named ``resource`` by their device plugin."""

    name: str
    count: int
    memory_mib: int | None
    resource: str


@dataclass(frozen=True)
class Instance:
    """The facts of one EC2 instance type, as values/instances/<type>.yaml holds them."""

    type: str
    accelerator: Accelerator
    efa: int
    vcpu: int
    memory_mib: int
    allocatable_memory_mib: int
    network_gbps: float
    nvme_gb: int

    def allocatable(self, huge_pages_mib: int = 0) -> dict[str, str]:
        """What a node of this type offers to pods, as Kubernetes quantities.

        ``huge_pages_mib``: 2 MiB huge pages set aside on the node, in MiB; they come out of the memory.
        Raises BiremeError when they do not fit the memory or are not whole pages.
        """
        if huge_pages_mib % 2 or not 0 <= huge_pages_mib < self.allocatable_memory_mib:
            raise BiremeError(
                f"{huge_pages_mib}Mi huge pages on {self.type}: give an even number of MiB "
                f"below its {self.allocatable_memory_mib}Mi of allocatable memory"
            )
        offer = {
            "cpu": f"{self.allocatable_cpu_millis}m",
            "memory": f"{self.allocatable_memory_mib - huge_pages_mib}Mi",
            self.accelerator.resource: str(self.accelerator.count),
            "pods": str(_PODS),
            "ephemeral-storage": f"{self.nvme_gb * 10**9 // 2**30 if self.nvme_gb else _ROOT_VOLUME_GIB}Gi",
        }
        if self.efa:
            offer[EFA] = str(self.efa)
        if huge_pages_mib:
            offer[HUGE_PAGES] = f"{huge_pages_mib}Mi"
        return offer

    @property
    def allocatable_cpu_millis(self) -> int:
        """CPU left for pods in thousandths of a core, after what EKS reserves for the kubelet.

        6% of the first core, 1% of the second, 0.5% of the next two and 0.25% of the rest
        (awslabs/amazon-eks-ami, nodeadm's default kubelet reservation).
        """
        reserved_quarters = sum(
            per_core * max(0, min(self.vcpu, until) - since)
            for since, until, per_core in ((0, 1, 240), (1, 2, 40), (2, 4, 20), (4, self.vcpu, 10))
        )
        return self.vcpu * 1000 - reserved_quarters // 4


def load_instances(paths: Paths) -> Mapping[str, Instance]:
    """Every instance type of values/instances/*.yaml by its name.

    Raises BiremeError naming the file and the key when a fact is missing or of the wrong kind.
    """
    files = sorted((paths.values / "instances").glob("*.yaml"))
    found = [read_instance(file) for file in files]
    return MappingProxyType({instance.type: instance for instance in found})


def read_instance(file: Path) -> Instance:
    """The instance of one file ``{instance: {...}}``. Raises BiremeError naming the file and the key."""
    facts = _Facts(file, "instance", values.read_file(file).get("instance"))
    accelerator = _Facts(file, "instance.accelerator", facts.given.get("accelerator"))
    instance = Instance(
        type=facts.text("type"),
        accelerator=Accelerator(
            name=accelerator.text("name"),
            count=accelerator.whole("count"),
            memory_mib=accelerator.whole("memoryMiB")
            if accelerator.given.get("memoryMiB") is not None
            else None,
            resource=accelerator.text("resource"),
        ),
        efa=facts.whole("efa"),
        vcpu=facts.whole("vcpu"),
        memory_mib=facts.whole("memoryMiB"),
        allocatable_memory_mib=facts.whole("allocatableMemoryMiB"),
        network_gbps=facts.number("networkGbps"),
        nvme_gb=facts.whole("nvmeGB"),
    )
    if instance.type != file.stem:
        raise BiremeError(
            f"{file}: instance.type is {instance.type}, so the file should be {instance.type}.yaml"
        )
    return instance


class _Facts:
    """Typed access to one mapping of a values file, with errors that name the file and the key."""

    def __init__(self, file: Path, prefix: str, given: Any) -> None:
        if not isinstance(given, dict):
            raise BiremeError(f"{file}: {prefix} must be a mapping of facts")
        self.given: Mapping[str, Any] = given
        self._file = file
        self._prefix = prefix

    def _wrong(self, key: str, wanted: str) -> BiremeError:
        given = repr(self.given[key]) if key in self.given else "missing"
        return BiremeError(f"{self._file}: {self._prefix}.{key} is {given}, it must be {wanted}")

    def text(self, key: str) -> str:
        value = self.given.get(key)
        if not isinstance(value, str) or not value:
            raise self._wrong(key, "a name")
        return value

    def whole(self, key: str) -> int:
        value = self.given.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._wrong(key, "a whole number, 0 or more")
        return value

    def number(self, key: str) -> float:
        value = self.given.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            raise self._wrong(key, "a number, 0 or more")
        return float(value)
