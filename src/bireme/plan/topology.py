"""The plan: the pods that rendered objects will become, and the nodes they need.

How an object of each kind expands into pods stands in `bireme.plan.workloads`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

from bireme.core.labels import ADVICE_ANNOTATION, SOURCE_ANNOTATION
from bireme.core.manifests import Manifest, read_as_kubernetes
from bireme.core.plain import Plain
from bireme.core.quantities import ACCELERATORS, EFA, HUGE_PAGES, counted, format_quantity
from bireme.plan.instances import Instance, NodeChoice, instance_of
from bireme.plan.packing import Demand, Room, demand_of
from bireme.plan.queues import Queued, queued
from bireme.plan.storage import CLAIM, CLASS, VOLUME, Storage, storage_of
from bireme.plan.workloads import plan_of, pod_templates
from bireme.plan.workloads.model import PodPlan, WorkloadPlan, count_in, spec_of

NEVER = "can never fit"
"""In the sentences of `fit`: the nodes are too small, however many there are."""


@dataclass(frozen=True)
class Totals(Plain):
    """Sums over all pods; ``nodes`` is the number of nodes needed per instance type."""

    pods: int
    accelerators: int
    efa: int
    nodes: Mapping[str, int]


@dataclass(frozen=True)
class NodePlan:
    """One node that the plan needs: its type, its number of accelerators, and its pods."""

    type: str
    accelerators: int
    pods: tuple[PodPlan, ...]


@dataclass(frozen=True)
class Plan(Plain):
    """What one release becomes on a cluster. ``placement`` is one way to pack it, not a promise.

    ``source`` is the repository and the commit that pods clone, as URL@COMMIT; "" without one. ``objects``
    are those that it was made from, without hooks. What the chart says about it is in ``advice``.
    """

    hidden = ("placement", "objects")
    optional = ("storage", "queued", "source", "advice")

    release: str
    namespace: str
    workloads: tuple[WorkloadPlan, ...]
    totals: Totals
    placement: tuple[NodePlan, ...] = field(default=(), compare=False)
    storage: tuple[Storage, ...] = ()
    queued: tuple[Queued, ...] = ()
    source: str = ""
    advice: tuple[str, ...] = ()
    objects: tuple[Manifest, ...] = field(default=(), compare=False, repr=False)

    @property
    def summary(self) -> str:
        """Pods, accelerators, EFA interfaces and nodes in one line. Without pods, the storage."""
        if self.storage and not self.workloads:
            counts = Counter(each.kind for each in self.storage)
            words = {CLAIM: ("claim",), VOLUME: ("volume",), CLASS: ("storage class", "storage classes")}
            return ", ".join(counted(counts[kind], *word) for kind, word in words.items() if counts[kind])
        totals = self.totals
        nodes = ", ".join(f"{count} × {name}" for name, count in sorted(totals.nodes.items())) or "any"
        devices = f"{counted(totals.accelerators, 'accelerator')}, {totals.efa} EFA"
        return f"{counted(totals.pods, 'pod')}, {devices}, nodes: {nodes}"

    @property
    def pods(self) -> tuple[PodPlan, ...]:
        """All pods of all workloads, in order."""
        return tuple(pod for workload in self.workloads for pod in workload.pods)


def expand(
    release: str, namespace: str, manifests: Iterable[Manifest], instances: Mapping[str, Instance]
) -> Plan:
    """The plan of a rendered release. Hooks and helm tests are left out, because they do not stay.

    ``instances`` say how many pods fit a node; a type that is not among them is missing from
    ``totals.nodes``, and `fit` names it. Raises BiremeError for a quantity or a count that is not one.
    """
    lasting = tuple(manifest for manifest in manifests if not manifest.is_hook)
    bounds = autoscaled(lasting)
    planned = [(each, workload) for each in lasting if (workload := _workload(each, bounds, instances))]
    workloads = tuple(workload for _, workload in planned)
    pods = [pod for workload in workloads for pod in workload.pods]
    placement = tuple(_needed(pods, instances))
    totals = Totals(
        pods=len(pods),
        accelerators=sum(pod.accelerators for pod in pods),
        efa=sum(pod.efa for pod in pods),
        nodes=dict(Counter(node.type for node in placement)),
    )
    storage = tuple(each for manifest in lasting for each in storage_of(manifest))
    templates = (Manifest(each) for manifest in lasting for each in pod_templates(manifest))
    sources = (each.annotations.get(SOURCE_ANNOTATION) for each in templates)
    source = str(next(filter(None, sources), ""))
    advice = tuple(filter(None, (each.annotations.get(ADVICE_ANNOTATION) for each in lasting)))
    waits = queued(planned)
    return Plan(release, namespace, workloads, totals, placement, storage, waits, source, advice, lasting)


def autoscaled(manifests: Iterable[Manifest]) -> Mapping[tuple[str, str], tuple[int, int]]:
    """The bounds of HorizontalPodAutoscalers, by kind and name of the object that each scales.

    Raises BiremeError for bounds that are no numbers.
    """
    found = {}
    for item in manifests:
        if item.kind == "HorizontalPodAutoscaler":
            with read_as_kubernetes(item):
                spec = spec_of(item)
                low, target = count_in(spec, "minReplicas"), spec["scaleTargetRef"]
                found[target["kind"], target["name"]] = low, count_in(spec, "maxReplicas", low)
    return found


def _workload(
    item: Manifest, bounds: Mapping[tuple[str, str], tuple[int, int]], instances: Mapping[str, Instance]
) -> WorkloadPlan | None:
    """The plan of an object, with the pods that its autoscaler begins with."""
    planned = plan_of(item, instances)
    if planned is None or (item.kind, item.name) not in bounds:
        return planned
    low, high = bounds[item.kind, item.name]
    return replace(planned.sized(low, high), min_replicas=low, max_replicas=high, is_autoscaled=True)


# --- pods on nodes ---


class _Node(Room):
    """A node that is being filled. The huge pages that its pods ask for are taken from its memory."""

    def __init__(self, instance: Instance, offered: Mapping[str, str] | None = None) -> None:
        self.instance, self.offered = instance, offered or instance.allocatable()
        super().__init__(self.offered)
        self.free["memory"] += self.free.pop(HUGE_PAGES, Fraction())
        self.pods: list[PodPlan] = []


def _demand(pod: PodPlan) -> Demand:
    demand = demand_of(pod.resources)
    demand["memory"] = demand.get("memory", Fraction()) + demand.pop(HUGE_PAGES, Fraction())
    # Devices first: a lack of devices explains best why a pod does not fit.
    order = {name: place for place, name in enumerate((*ACCELERATORS, EFA))}
    return dict(sorted(demand.items(), key=lambda item: (order.get(item[0], len(order)), item[0])))


def _alike(pods: Iterable[PodPlan]) -> list[tuple[Demand, list[PodPlan]]]:
    """Pods grouped by what they ask for, the largest first."""
    groups: dict[tuple[tuple[str, str], ...], list[PodPlan]] = defaultdict(list)
    for pod in pods:
        groups[tuple(pod.resources.items())].append(pod)
    sizes = (*ACCELERATORS, EFA, "memory", "cpu")
    found = [(_demand(group[0]), group) for group in groups.values()]
    return sorted(found, key=lambda item: tuple(-item[0].get(name, Fraction()) for name in sizes))


def _pack(
    pods: Iterable[PodPlan], nodes: list[_Node], new_node: Callable[[Demand], _Node] | None = None
) -> list[PodPlan]:
    """First fit, largest pod first, onto ``nodes`` and then onto new ones; the pods that found no place."""
    left: list[PodPlan] = []
    for demand, group in _alike(pods):
        # A node too full for one of these pods is too full for the next: nodes only fill up.
        at = 0
        for pod in group:
            while at < len(nodes) and nodes[at].lacks(demand):
                at += 1
            if at == len(nodes):
                if new_node is None:
                    left.append(pod)
                    continue
                nodes.append(new_node(demand))
            nodes[at].take(demand)
            nodes[at].pods.append(pod)
    return left


def _needed(pods: Sequence[PodPlan], instances: Mapping[str, Instance]) -> Iterator[NodePlan]:
    """The nodes for the pods that are bound to known instance types, by type.

    Pods that may run on several types fill nodes that others need, then nodes of the first type that holds
    them. A pod that is too large for its types has a node to itself; `fit` reports it.
    """
    by_types: dict[tuple[str, ...], list[PodPlan]] = defaultdict(list)
    for pod in pods:
        known = tuple(each for each in pod.nodes.types or () if each in instances)
        if pod.nodes.is_bound and known:
            by_types[known].append(pod)
    nodes: list[_Node] = []
    for types in sorted(by_types, key=lambda types: (len(types), types)):
        there = [node for node in nodes if node.instance.type in types]
        candidates = [instances[each] for each in types]
        already = len(there)
        _pack(by_types[types], there, partial(_new_node, candidates))
        nodes += there[already:]
    for node in sorted(nodes, key=lambda node: node.instance.type):
        yield NodePlan(node.instance.type, node.instance.accelerator.count, tuple(node.pods))


def _new_node(candidates: Sequence[Instance], demand: Demand) -> _Node:
    """An empty node of the first type that holds ``demand``, or of the first type."""
    fresh = [_Node(instance) for instance in candidates]
    return next((node for node in fresh if not node.lacks(demand)), fresh[0])


def fit(
    pods: Iterable[PodPlan],
    nodes: Mapping[str, int | Sequence[Mapping[str, str]]],
    instances: Mapping[str, Instance],
) -> list[str]:
    """Why not all ``pods`` can run on ``nodes``, as sentences; empty when they can.

    ``nodes``: instance type or ``cpu`` → number, or what each of them offers, as quantities. Pods that are
    bound to instance types go there; the others take what is left on the nodes that they may run on. Taints
    and pod affinities are ignored. Nodes are assumed to set aside the huge pages that their pods ask for.
    """
    cluster = [
        _Node(instance, offered)
        for name, there in nodes.items()
        for instance in [instance_of(name, instances)]
        for offered in ([None] * there if isinstance(there, int) else there)
    ]
    problems: list[str] = []
    for (role, choice), alike in _groups(pods).items():
        candidates = [node for node in cluster if choice.admits(node.instance.type)]
        if left := _pack(alike, candidates):
            problems.append(_why(role, choice, alike, left, candidates, instances))
    return problems


def _groups(pods: Iterable[PodPlan]) -> dict[tuple[str, NodeChoice], list[PodPlan]]:
    """Pods by role and by the nodes they may run on, those with the least choice first."""
    groups: dict[tuple[str, NodeChoice], list[PodPlan]] = defaultdict(list)

    def choice(pod: PodPlan) -> tuple[bool, float]:
        return not pod.nodes.is_bound, math.inf if pod.nodes.types is None else len(pod.nodes.types)

    for pod in sorted(pods, key=choice):
        groups[pod.role, pod.nodes].append(pod)
    return groups


def _why(
    role: str,
    choice: NodeChoice,
    pods: Sequence[PodPlan],
    left: Sequence[PodPlan],
    candidates: Sequence[_Node],
    instances: Mapping[str, Instance],
) -> str:
    count = f"{len(left)} of {len(pods)}" if len(left) < len(pods) else str(len(pods))
    who = f"{count} {role} {'pod' if len(pods) == 1 else 'pods'}"
    types = choice.name
    if choice.is_bound and not any(name in instances for name in choice.types or ()):
        if types:
            return f"{who} cannot be placed: they want {types} nodes, and values/instances has no such type"
        return f"{who} cannot be placed: no type of values/instances has the labels that they want"
    needed = f"{sum(1 for _ in _needed(pods, instances))} {types} nodes"
    if not candidates:
        if types:
            return f"{who} cannot be placed: there are no {types} nodes, {needed} are needed"
        rest = " that their node affinity admits" if choice.types is not None else ""
        return f"{who} cannot be placed: there are no nodes{rest}"
    demand = _demand(left[0])
    where = f"{len(candidates)} {types} {'node' if len(candidates) == 1 else 'nodes'}".replace("  ", " ")
    fresh = [_Node(node.instance, node.offered) for node in candidates]
    name = _commonest(node.lacks(demand) for node in fresh)
    if name and all(node.lacks(demand) for node in fresh):
        offered = format_quantity(name, max(node.free.get(name, Fraction()) for node in fresh))
        wanted = format_quantity(name, demand[name])
        return f"{who} {NEVER} {where}: a pod asks for {wanted} {name}, a whole node has {offered}"
    name = _commonest(node.lacks(demand) for node in candidates) or "pods"
    wanted = format_quantity(name, demand[name])
    more = f", {needed} are needed" if types else ""
    verb = "does" if len(left) == 1 else "do"
    return f"{who} {verb} not fit on {where}: a pod asks for {wanted} {name} and no node has that left{more}"


def _commonest(names: Iterable[str | None]) -> str | None:
    counted = Counter(name for name in names if name)
    return counted.most_common(1)[0][0] if counted else None
