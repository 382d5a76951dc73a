"""The EC2 instance types the charts know: what their nodes offer to pods, and which pods they admit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from bireme.core.errors import BiremeError, suggestion
from bireme.core.labels import (
    ARCHITECTURE_LABEL,
    AUTO_GPU_MAKER_LABEL,
    GPU_PRESENT_LABEL,
    HYPERPOD_HEALTH_LABEL,
    INSTANCE_TYPE_LABEL,
    KARPENTER_INSTANCE,
    OS_LABEL,
)
from bireme.core.paths import Paths
from bireme.core.quantities import ACCELERATORS, EFA, HUGE_PAGES
from bireme.helm import ChartValues, values
from bireme.schemas.problems import violations

_OF_KARPENTER = ("family", "size", "cpu", "memory", "gpu-count", "gpu-manufacturer")
_GIVEN = frozenset(
    {INSTANCE_TYPE_LABEL, AUTO_GPU_MAKER_LABEL, GPU_PRESENT_LABEL}
    | {KARPENTER_INSTANCE + fact for fact in _OF_KARPENTER}
)
# What nodes have without somebody who gives it to them.
_BY_THEMSELVES = _GIVEN - {GPU_PRESENT_LABEL} | {ARCHITECTURE_LABEL, OS_LABEL}
# What ``--nodes`` calls a node without accelerators, for etcd and operators.
CPU_TYPE = "cpu"
# What HyperPod puts before the types of its nodes.
HYPERPOD = "ml."
# Huge pages that a node with EFA sets aside: libfabric's EFA provider and NCCL's OFI plugin map their
# buffers with them.
EFA_HUGE_PAGES_MIB = 5120
ROOT_VOLUME_GIB = 80
_PODS, _CPU_PODS = 110, 58


# Families with accelerators and Arm processors.
_GRAVITON = frozenset(("g5g", "p6e-gb200"))
# Families whose instances have a part of a GPU, which Karpenter does not count.
_GPU_PARTS = frozenset(("g6f", "gr6f"))


@dataclass(frozen=True)
class Accelerator:
    """The accelerators of one instance: ``count`` devices named ``resource`` by their device plugin."""

    count: int
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

    @property
    def node_type(self) -> str:
        """What ``--nodes`` calls its nodes."""
        return self.type if self.accelerator.count else CPU_TYPE

    @property
    def node_name(self) -> str:
        """The same as a part of names."""
        return self.node_type.replace(".", "-")

    @property
    def taints(self) -> list[dict[str, str]]:
        """What keeps pods away that need none of its accelerators."""
        taint = {"key": self.accelerator.resource, "value": "present", "effect": "NoSchedule"}
        return [taint] if self.accelerator.count else []

    @property
    def huge_pages_mib(self) -> int:
        """The huge pages that its nodes set aside, in MiB."""
        return EFA_HUGE_PAGES_MIB if self.efa else 0

    @property
    def architecture(self) -> str:
        """That of its processors, as Kubernetes names it: images have to be built for it."""
        return "arm64" if self.type.removeprefix(HYPERPOD).partition(".")[0] in _GRAVITON else "amd64"

    @property
    def has_part_of_gpu(self) -> bool:
        """Whether its GPU is a part of one: the device plugin counts it, Karpenter does not."""
        return self.type.partition(".")[0] in _GPU_PARTS

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels that its nodes have because of their type, from EKS and from Karpenter or HyperPod."""
        if self.type.startswith(HYPERPOD):
            return {INSTANCE_TYPE_LABEL: self.type, HYPERPOD_HEALTH_LABEL: "Schedulable"}
        family, _, size = self.type.partition(".")
        facts = {"family": family, "size": size, "cpu": str(self.vcpu), "memory": str(self.memory_mib)}
        if self.accelerator.resource == ACCELERATORS[0]:
            count = 0 if self.has_part_of_gpu else self.accelerator.count
            facts |= {"gpu-count": str(count), "gpu-manufacturer": "nvidia"}
        return {INSTANCE_TYPE_LABEL: self.type, **{KARPENTER_INSTANCE + name: facts[name] for name in facts}}

    def allocatable(self, huge_pages: bool = False) -> dict[str, str]:
        """What a node of this type offers to pods, as Kubernetes quantities.

        ``huge_pages``: whether it sets its 2 MiB huge pages aside, which come out of the memory.
        """
        huge_pages_mib = self.huge_pages_mib if huge_pages else 0
        offer = {
            "cpu": f"{self.allocatable_cpu_millis}m",
            "memory": f"{self.allocatable_memory_mib - huge_pages_mib}Mi",
            "pods": str(_PODS if self.accelerator.count else _CPU_PODS),
            "ephemeral-storage": f"{self.nvme_gb * 10**9 // 2**30 if self.nvme_gb else ROOT_VOLUME_GIB}Gi",
        }
        if self.accelerator.count:
            offer[self.accelerator.resource] = str(self.accelerator.count)
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


CPU_NODE = Instance(
    "m7i.2xlarge",
    Accelerator(0, ACCELERATORS[0]),
    efa=0,
    vcpu=8,
    memory_mib=32768,
    allocatable_memory_mib=30100,
    network_gbps=0,
    nvme_gb=0,
)
"""A node of ``cpu=NUMBER``."""


def instance_of(node_type: str, instances: Mapping[str, Instance]) -> Instance:
    """The facts of an EC2 type, or of the pseudo-type ``cpu``.

    Raises BiremeError with the closest names when the type is unknown.
    """
    if node_type != CPU_TYPE and node_type not in instances:
        raise BiremeError(f"unknown node type {node_type!r}: {suggestion(node_type, [*instances, CPU_TYPE])}")
    return CPU_NODE if node_type == CPU_TYPE else instances[node_type]


@dataclass(frozen=True)
class NodeChoice:
    """The nodes that a pod's node selector and required node affinity leave it.

    ``types`` are the instance types it may run on, None where it may run on any. It ``is_bound`` if it can
    run on no other nodes.
    """

    types: tuple[str, ...] | None = None
    is_bound: bool = False

    @property
    def name(self) -> str:
        """The types that the pod is bound to, as people read them; "" if it is bound to none."""
        types = (self.types or ()) if self.is_bound else ()
        return " or ".join(types) if len(types) < 3 else f"{types[0]} (or {len(types) - 1} others)"

    def admits(self, instance_type: str) -> bool:
        """Whether the pod may run on nodes of ``instance_type``."""
        return self.types is None or instance_type in self.types


@dataclass(frozen=True)
class _Requirement:
    """One match expression about a label that instance types give their nodes."""

    key: str
    operator: str
    values: tuple[str, ...]

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with ``labels`` satisfies it."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt" as operator if value is not None and value.isdigit():
                number, limit = int(value), int(self.values[0])
                return number > limit if operator == "Gt" else number < limit
        return False

    def __str__(self) -> str:
        words = {"Gt": " over ", "Lt": " under ", "In": "=" if len(self.values) == 1 else " of "}
        return f"{self.key}{words.get(self.operator, '')}{', '.join(map(str, self.values))}"

    @property
    def is_extra(self) -> bool:
        """Whether it wants a label that nodes do not have by themselves."""
        return self.key not in _BY_THEMSELVES and self.operator not in ("NotIn", "DoesNotExist")

    @property
    def is_open(self) -> bool:
        """Whether nodes of types that values/instances does not know can satisfy it too."""
        return self.operator not in ("In", "Gt", "Lt")


def choose_nodes(pod_spec: Mapping[str, Any], instances: Mapping[str, Instance]) -> NodeChoice:
    """Where a pod may run, by the labels that instance types give their nodes; no other labels are looked at.

    Types that the pod names are among ``types`` also if ``instances`` does not know them.
    """
    terms = [[each for each in term if each.key in _GIVEN] for term in _terms(pod_spec)]
    if not any(terms):
        return NodeChoice() if terms else NodeChoice((), is_bound=True)
    labels = {name: instance.labels for name, instance in instances.items()}
    for requirement in (each for term in terms for each in term):
        if requirement.key == INSTANCE_TYPE_LABEL and requirement.operator == "In":
            labels |= {name: {INSTANCE_TYPE_LABEL: name} for name in requirement.values if name not in labels}
    types = (
        name
        for name, own in sorted(labels.items())
        if any(all(each.accepts(own) for each in term) for term in terms)
    )
    is_open = any(all(each.is_open for each in term) for term in terms)
    return NodeChoice(tuple(types), not is_open)


def admits(pod_spec: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    """Whether a pod's node selector and required node affinity admit the node ``name`` with ``labels``."""
    facts = {**labels, "metadata.name": name}
    return any(all(each.accepts(facts) for each in term) for term in _terms(pod_spec))


def other_labels(pod_spec: Mapping[str, Any]) -> str:
    """The labels that a pod needs and nodes do not have by themselves, in words; "" if it needs none."""
    terms = [" and ".join(str(each) for each in term if each.is_extra) for term in _terms(pod_spec)]
    return " or ".join(dict.fromkeys(terms)) if all(terms) else ""


def _terms(pod_spec: Mapping[str, Any]) -> Iterator[list[_Requirement]]:
    """The alternatives that a pod's node selector and affinity leave, each a list of requirements."""
    selector = []
    for key, value in (pod_spec.get("nodeSelector") or {}).items():
        if value is None:
            raise BiremeError(f"nodeSelector.{key} has no value: give it one, or leave the key out")
        selector.append(_Requirement(key, "In", (value,)))
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        yield selector
        return
    for term in required.get("nodeSelectorTerms") or ():
        expressions = term.get("matchExpressions") or ()
        # A term that says nothing matches no node.
        if expressions or term.get("matchFields"):
            yield [*selector, *map(_requirement, [*expressions, *(term.get("matchFields") or ())])]


def _requirement(expression: Mapping[str, Any]) -> _Requirement:
    return _Requirement(expression["key"], expression["operator"], tuple(expression.get("values") or ()))


class Instances(Mapping[str, Instance]):
    """Instance types by name. Those of HyperPod, ml.TYPE, have the facts of TYPE and are not listed."""

    def __init__(self, found: Iterable[Instance]) -> None:
        self._found = {instance.type: instance for instance in found}

    def __getitem__(self, name: str) -> Instance:
        instance = self._found[name.removeprefix(HYPERPOD)]
        return replace(instance, type=name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def load_instances(paths: Paths) -> Mapping[str, Instance]:
    """Every instance type of values/instances/*.yaml by its name, and HyperPod's.

    Raises BiremeError naming the file and the key when a fact is missing or has the wrong type.
    """
    files = sorted((paths.values / "instances").glob("*.yaml"))
    return Instances(map(read_instance, files))


def read_instance(file: Path) -> Instance:
    """The instance of one file ``{instance: {...}}``. Raises BiremeError naming the file and the key."""
    given = values.read_file(file)
    for problem in violations(ChartValues(file.name, given, _schema(), ())):
        raise BiremeError(f"{file}: {problem}")
    facts, accelerator = given["instance"], given["instance"]["accelerator"]
    if facts["type"] != file.stem:
        raise BiremeError(
            f"{file}: instance.type is {facts['type']}, so the file should be {facts['type']}.yaml"
        )
    return Instance(
        type=facts["type"],
        accelerator=Accelerator(accelerator["count"], accelerator["resource"]),
        efa=facts["efa"],
        vcpu=facts["vcpu"],
        memory_mib=facts["memoryMiB"],
        allocatable_memory_mib=facts["allocatableMemoryMiB"],
        network_gbps=float(facts["networkGbps"]),
        nvme_gb=facts["nvmeGB"],
    )


@cache
def _schema() -> dict[str, Any]:
    text = resources.files("bireme.plan").joinpath("instance.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))
