"""The plan: the pods that rendered objects will become, their ranks and resources, and the nodes they need.

How each kind of workload expands into pods is said here and nowhere else.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

from bireme.errors import BiremeError
from bireme.instances import EFA, HUGE_PAGES, Instance
from bireme.labels import COMPONENT_LABEL, INSTANCE_TYPE_LABEL
from bireme.manifests import Manifest

ACCELERATORS = ("nvidia.com/gpu", "aws.amazon.com/neuron")
# What mpi-operator adds to an MPIJob's name for the Job and the host of its launcher.
LAUNCHER_SUFFIX = "-launcher"


@dataclass(frozen=True)
class PodPlan:
    """One pod to be. ``hostname`` is None where Kubernetes makes the name up (Deployments).

    ``rank`` is the pod's own, among ``processes`` per pod it runs world ranks rank·processes and on; None for
    pods that do not train. ``resources`` are the requests the scheduler counts, as quantities.
    """

    name: str
    role: str
    rank: int | None
    hostname: str | None
    resources: Mapping[str, str]
    node_selector: Mapping[str, str]
    processes: int | None = field(default=None, compare=False)

    @property
    def instance_type(self) -> str | None:
        """The EC2 type its node selector names, if it does."""
        return self.node_selector.get(INSTANCE_TYPE_LABEL)

    @property
    def accelerators(self) -> int:
        """Accelerators it asks for, of whatever kind."""
        return _accelerators(self.resources)

    @property
    def efa(self) -> int:
        """EFA interfaces it asks for."""
        return int(quantity(self.resources.get(EFA, "0")))


@dataclass(frozen=True)
class WorkloadPlan:
    """One Job, MPIJob, StatefulSet, Deployment, DaemonSet or bare Pod.

    A suspended Job's pods are those it has once resumed. ``role`` and ``replicas`` of an MPIJob are its
    workers'; its launcher is the first of its ``pods``. How many pods a DaemonSet has is a matter of the
    cluster: it has no ``pods`` here, but the known ``instance_types`` whose nodes get one each.
    """

    name: str
    kind: str
    role: str
    replicas: int
    min_replicas: int
    max_replicas: int
    pods: tuple[PodPlan, ...]
    suspended: bool = field(default=False, compare=False)
    instance_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class Totals:
    """Sums over all pods; ``nodes`` is the number of nodes needed per instance type."""

    pods: int
    accelerators: int
    efa: int
    nodes: Mapping[str, int]


@dataclass(frozen=True)
class NodePlan:
    """One node the plan needs: its type, its number of accelerators, and the pods packed onto it."""

    type: str
    accelerators: int
    pods: tuple[PodPlan, ...]


@dataclass(frozen=True)
class Plan:
    """What one release becomes on a cluster. ``placement`` is one way to pack it, not a promise."""

    release: str
    namespace: str
    workloads: tuple[WorkloadPlan, ...]
    totals: Totals
    placement: tuple[NodePlan, ...] = field(default=(), compare=False)

    @property
    def pods(self) -> tuple[PodPlan, ...]:
        """All pods of all workloads, in order."""
        return tuple(pod for workload in self.workloads for pod in workload.pods)

    def to_json(self) -> dict[str, Any]:
        """The plan in the shape of schemas/plan.schema.json."""
        return {
            "release": self.release,
            "namespace": self.namespace,
            "workloads": [_workload_json(workload) for workload in self.workloads],
            "totals": {
                "pods": self.totals.pods,
                "accelerators": self.totals.accelerators,
                "efa": self.totals.efa,
                "nodes": dict(self.totals.nodes),
            },
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], instances: Mapping[str, Instance] | None = None) -> Plan:
        """The plan that `to_json` wrote; ``instances`` to have its placement again.

        Raises BiremeError when ``data`` is not such a plan.
        """
        try:
            workloads = tuple(_workload_from_json(entry) for entry in data["workloads"])
            totals = Totals(**data["totals"])
            plan = cls(data["release"], data["namespace"], workloads, totals)
        except (KeyError, TypeError, AttributeError) as error:
            raise BiremeError(f"this is not a plan (see schemas/plan.schema.json): {error}") from error
        return cls(
            plan.release, plan.namespace, workloads, totals, tuple(_needed(plan.pods, instances or {}))
        )


def _workload_json(workload: WorkloadPlan) -> dict[str, Any]:
    of_each = {"instanceTypes": list(workload.instance_types)} if workload.kind == "DaemonSet" else {}
    return {
        "name": workload.name,
        "kind": workload.kind,
        "role": workload.role,
        "replicas": workload.replicas,
        "minReplicas": workload.min_replicas,
        "maxReplicas": workload.max_replicas,
        "pods": [
            {
                "name": pod.name,
                "role": pod.role,
                "rank": pod.rank,
                "hostname": pod.hostname,
                "resources": dict(pod.resources),
                "nodeSelector": dict(pod.node_selector),
            }
            for pod in workload.pods
        ],
        **of_each,
    }


def _workload_from_json(entry: Mapping[str, Any]) -> WorkloadPlan:
    pods = tuple(
        PodPlan(
            pod["name"],
            pod["role"],
            pod["rank"],
            pod["hostname"],
            dict(pod["resources"]),
            dict(pod["nodeSelector"]),
        )
        for pod in entry["pods"]
    )
    counts = entry["replicas"], entry["minReplicas"], entry["maxReplicas"]
    types = tuple(entry.get("instanceTypes", ()))
    return WorkloadPlan(entry["name"], entry["kind"], entry["role"], *counts, pods, instance_types=types)


# --- from objects to pods ---


def expand(
    release: str, namespace: str, manifests: Iterable[Manifest], instances: Mapping[str, Instance]
) -> Plan:
    """The plan of a rendered release. Hooks and helm tests are left out: they are not there to stay.

    ``instances`` say how many pods fit a node; a type it does not know is missing from ``totals.nodes`` and
    named by `fit`. Raises BiremeError for a quantity or a count that is not one.
    """
    expanders: Mapping[str, Callable[[Manifest], WorkloadPlan]] = {
        **_EXPANDERS,
        "DaemonSet": partial(_daemon_set, types=sorted(instances)),
    }
    workloads = tuple(
        expanders[manifest.kind](manifest)
        for manifest in manifests
        if manifest.kind in expanders and not manifest.is_hook
    )
    pods = [pod for workload in workloads for pod in workload.pods]
    placement = tuple(_needed(pods, instances))
    totals = Totals(
        pods=len(pods),
        accelerators=sum(pod.accelerators for pod in pods),
        efa=sum(pod.efa for pod in pods),
        nodes=dict(Counter(node.type for node in placement)),
    )
    return Plan(release, namespace, workloads, totals, placement)


def _job(manifest: Manifest) -> WorkloadPlan:
    spec = manifest["spec"]
    parallelism = int(spec.get("parallelism", 1))
    completions = spec.get("completions")
    replicas = parallelism if completions is None else min(parallelism, int(completions))
    is_indexed = spec.get("completionMode") == "Indexed"
    low, high = _elastic_bounds(spec["template"]["spec"]) or (replicas, replicas)
    # Only an Indexed Job gives its pods a rank and a host name of their own.
    rank = (lambda index: index) if is_indexed else _no_rank
    pods = _pods(manifest, replicas, rank, has_hostname=is_indexed)
    role = _role(manifest)
    return WorkloadPlan(manifest.name, "Job", role, replicas, low, high, pods, bool(spec.get("suspend")))


def _replicated(manifest: Manifest) -> WorkloadPlan:
    spec = manifest.get("spec") or {}
    replicas = int(spec.get("replicas", 1))
    pods = _pods(manifest, replicas, _no_rank, has_hostname=manifest.kind == "StatefulSet")
    return WorkloadPlan(manifest.name, manifest.kind, _role(manifest), replicas, replicas, replicas, pods)


def _bare_pod(manifest: Manifest) -> WorkloadPlan:
    spec = manifest["spec"]
    pod = PodPlan(
        name=manifest.name,
        role=_role(manifest),
        rank=None,
        hostname=str(spec.get("hostname") or manifest.name),
        resources=pod_requests(spec),
        node_selector=dict(spec.get("nodeSelector") or {}),
        processes=_processes(spec),
    )
    return WorkloadPlan(manifest.name, "Pod", pod.role, 1, 1, 1, (pod,))


def _mpi_job(manifest: Manifest) -> WorkloadPlan:
    """A launcher and workers, whose host names mpi-operator makes from the job's.

    Ranks follow the host file, which it writes: a worker's are index·slots and on, and a launcher that works
    too comes first (mpi-operator ``pkg/controller/mpi_job_controller.go``).
    """
    spec = manifest["spec"]
    launcher, worker = (spec["mpiReplicaSpecs"].get(role) for role in ("Launcher", "Worker"))
    if launcher is None:
        raise BiremeError(f"{manifest.identity} has no Launcher in spec.mpiReplicaSpecs: an MPIJob needs one")
    slots, works = int(spec.get("slotsPerWorker", 1)), bool(spec.get("runLauncherAsWorker"))
    replicas = int(worker.get("replicas", 1)) if worker else 0
    first = _replica(f"{manifest.name}{LAUNCHER_SUFFIX}", launcher, "launcher", 0 if works else None, slots)
    others = (
        _replica(f"{manifest.name}-worker-{index}", worker, "worker", index + works, slots)
        for index in range(replicas)
    )
    pods = (first, *others)
    suspended = bool((spec.get("runPolicy") or {}).get("suspend"))
    return WorkloadPlan(manifest.name, "MPIJob", pods[-1].role, replicas, replicas, replicas, pods, suspended)


def _replica(name: str, spec: Mapping[str, Any], role: str, rank: int | None, slots: int) -> PodPlan:
    template = spec["template"]
    labels = (template.get("metadata") or {}).get("labels") or {}
    return PodPlan(
        name=name,
        role=str(labels.get(COMPONENT_LABEL) or role),
        rank=rank,
        hostname=name,
        resources=pod_requests(template["spec"]),
        node_selector=dict(template["spec"].get("nodeSelector") or {}),
        processes=None if rank is None else slots,
    )


def _daemon_set(manifest: Manifest, types: Iterable[str]) -> WorkloadPlan:
    spec = manifest["spec"]["template"]["spec"]
    chosen = tuple(kind for kind in types if _chooses(spec, kind))
    return WorkloadPlan(manifest.name, "DaemonSet", _role(manifest), 0, 0, 0, (), instance_types=chosen)


def _chooses(pod_spec: Mapping[str, Any], kind: str) -> bool:
    """Whether nodes of an instance type can be among those a pod asks for. Only that label is looked at."""
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms: Sequence[Mapping[str, Any]] = required.get("nodeSelectorTerms") or ({},)
    wanted = (pod_spec.get("nodeSelector") or {}).get(INSTANCE_TYPE_LABEL, kind)
    return wanted == kind and any(_takes(term, kind) for term in terms)


def _takes(term: Mapping[str, Any], kind: str) -> bool:
    about_type = [each for each in term.get("matchExpressions") or () if each["key"] == INSTANCE_TYPE_LABEL]
    return all(
        (kind in (each.get("values") or (kind,))) == (each["operator"] in ("In", "Exists"))
        for each in about_type
    )


_EXPANDERS: Mapping[str, Callable[[Manifest], WorkloadPlan]] = {
    "Job": _job,
    "MPIJob": _mpi_job,
    "StatefulSet": _replicated,
    "Deployment": _replicated,
    "Pod": _bare_pod,
}


def _no_rank(_index: int) -> int | None:
    return None


def _pods(
    manifest: Manifest, replicas: int, rank: Callable[[int], int | None], has_hostname: bool
) -> tuple[PodPlan, ...]:
    spec = manifest["spec"]["template"]["spec"]
    role, requests, selector = _role(manifest), pod_requests(spec), dict(spec.get("nodeSelector") or {})
    processes = _processes(spec)
    names = [f"{manifest.name}-{index}" for index in range(replicas)]
    return tuple(
        PodPlan(name, role, rank(index), name if has_hostname else None, requests, selector, processes)
        for index, name in enumerate(names)
    )


def _role(manifest: Manifest) -> str:
    template = manifest.pod_template or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    return str(labels.get(COMPONENT_LABEL) or manifest.labels.get(COMPONENT_LABEL) or manifest.name)


def _env(pod_spec: Mapping[str, Any], name: str) -> str | None:
    for container in pod_spec.get("containers") or ():
        for variable in container.get("env") or ():
            if variable.get("name") == name and variable.get("value"):
                return str(variable["value"])
    return None


def _elastic_bounds(pod_spec: Mapping[str, Any]) -> tuple[int, int] | None:
    """torchrun's ``min:max`` (or one number for both) from PET_NNODES."""
    bounds = _env(pod_spec, "PET_NNODES")
    if bounds is None:
        return None
    low, _, high = bounds.partition(":")
    try:
        return int(low), int(high or low)
    except ValueError as error:
        raise BiremeError(f"PET_NNODES is {bounds!r}, it must be MIN:MAX, as in 1:128") from error


def _processes(pod_spec: Mapping[str, Any]) -> int | None:
    """Processes per pod: PET_NPROC_PER_NODE, where torchrun's gpu and auto mean one per accelerator."""
    said = _env(pod_spec, "PET_NPROC_PER_NODE")
    if said is None:
        return None
    if said.isdigit():
        return int(said)
    return _accelerators(pod_requests(pod_spec)) or None


def _accelerators(resources: Mapping[str, str]) -> int:
    return sum(int(quantity(resources.get(name, "0"))) for name in ACCELERATORS)


# --- quantities ---

_SUFFIXES: Mapping[str, Fraction] = {
    **{
        suffix: Fraction(1024) ** power
        for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
    },
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    "m": Fraction(1, 10**3),
    "u": Fraction(1, 10**6),
    "n": Fraction(1, 10**9),
}


def quantity(text: object) -> Fraction:
    """A Kubernetes quantity ("1500m", "5120Mi", "1e3", 2) as a number of cores, bytes or devices.

    Raises BiremeError when it is none.
    """
    said = str(text).strip()
    suffix = next((suffix for suffix in _SUFFIXES if said.endswith(suffix)), "")
    try:
        return Fraction(said.removesuffix(suffix)) * _SUFFIXES.get(suffix, Fraction(1))
    except (ValueError, ZeroDivisionError) as error:
        raise BiremeError(f"{said!r} is not a Kubernetes quantity: write it like 500m, 16Gi or 8") from error


def format_quantity(name: str, amount: Fraction) -> str:
    """``amount`` of resource ``name`` in one spelling: cores or millicores, MiB if whole, else plain."""
    if name == "cpu":
        return str(amount) if amount.denominator == 1 else f"{math.ceil(amount * 1000)}m"
    whole = math.ceil(amount)
    is_bytes = name in {"memory", "storage", "ephemeral-storage"} or name.startswith("hugepages-")
    return f"{whole // 2**20}Mi" if is_bytes and whole and whole % 2**20 == 0 else str(whole)


def pod_requests(pod_spec: Mapping[str, Any]) -> dict[str, str]:
    """What the scheduler counts for a pod, sorted by name, each in one spelling (see `format_quantity`).

    Containers add up; an init container needs its own requests and those of the sidecars started before it,
    and the larger counts; requests of the pod as a whole win; overhead is added
    (kubernetes/component-helpers ``resource/helpers.go``).
    """
    running: dict[str, Fraction] = defaultdict(Fraction)
    peak: dict[str, Fraction] = defaultdict(Fraction)
    for container in pod_spec.get("initContainers") or ():
        requests = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(running, requests)
            requests = {}
        for name in {*running, *requests}:
            peak[name] = max(peak[name], running[name] + requests.get(name, Fraction()))
    for container in pod_spec.get("containers") or ():
        _add(running, _requests(container))
    total = {name: max(running[name], peak[name]) for name in {*running, *peak}}
    total.update(_requests(pod_spec))
    for name, amount in (pod_spec.get("overhead") or {}).items():
        total[name] = total.get(name, Fraction()) + quantity(amount)
    return {name: format_quantity(name, total[name]) for name in sorted(total)}


def _requests(holder: Mapping[str, Any]) -> dict[str, Fraction]:
    """Requests of a container or pod; a limit stands in for a missing request, as in the API server."""
    resources = holder.get("resources") or {}
    given = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(amount) for name, amount in given.items()}


def _add(total: dict[str, Fraction], more: Mapping[str, Fraction]) -> None:
    for name, amount in more.items():
        total[name] += amount


# --- pods on nodes ---


Demand = Mapping[str, Fraction]


class _Node:
    """A node being filled. Huge pages come out of its memory: it sets aside what its pods ask for."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.pods: list[PodPlan] = []
        self.free = {name: quantity(amount) for name, amount in instance.allocatable().items()}

    def lacks(self, demand: Demand) -> str | None:
        """The first resource that ``demand`` needs more of than is free, None when it fits."""
        return next((name for name, amount in demand.items() if amount > self.free.get(name, 0)), None)

    def take(self, pod: PodPlan, demand: Demand) -> None:
        """Put ``pod`` here."""
        self.pods.append(pod)
        for name, amount in demand.items():
            self.free[name] = self.free.get(name, Fraction()) - amount


def _demand(pod: PodPlan) -> Demand:
    demand = {name: quantity(amount) for name, amount in pod.resources.items()}
    demand["memory"] = demand.get("memory", Fraction()) + demand.pop(HUGE_PAGES, Fraction())
    demand["pods"] = Fraction(1)
    # Devices first: they say best why a pod does not fit.
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
    pods: Iterable[PodPlan], nodes: list[_Node], new_node: Callable[[], _Node] | None = None
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
                nodes.append(new_node())
            nodes[at].take(pod, demand)
    return left


def _needed(pods: Sequence[PodPlan], instances: Mapping[str, Instance]) -> Iterator[NodePlan]:
    """The nodes for the pods that name a known instance type.

    A pod too large for its type has a node to itself; `fit` says so.
    """
    for kind in sorted({pod.instance_type for pod in pods if pod.instance_type} & set(instances)):
        nodes: list[_Node] = []
        _pack([pod for pod in pods if pod.instance_type == kind], nodes, partial(_Node, instances[kind]))
        for node in nodes:
            yield NodePlan(kind, node.instance.accelerator.count, tuple(node.pods))


def fit(plan: Plan, nodes: Mapping[str, int], instances: Mapping[str, Instance]) -> list[str]:
    """Why the plan cannot run whole on ``nodes`` (instance type → number), as sentences; empty when it can.

    Pods that name an instance type go there; the others take what is left anywhere. Taints and affinities are
    not looked at, and huge pages are taken as set aside on the nodes whose pods ask for them.
    """
    unknown = sorted(set(nodes) - set(instances))
    if unknown:
        raise BiremeError(
            f"{unknown[0]} is not in values/instances: known types are {', '.join(sorted(instances))}"
        )
    cluster = [_Node(instances[kind]) for kind, count in nodes.items() for _ in range(count)]
    problems: list[str] = []
    for (role, kind), pods in _groups(plan.pods).items():
        candidates = [node for node in cluster if kind is None or node.instance.type == kind]
        left = _pack(pods, candidates)
        if left:
            problems.append(_why(role, kind, pods, left, candidates, instances))
    return problems


def _groups(pods: Sequence[PodPlan]) -> dict[tuple[str, str | None], list[PodPlan]]:
    """Pods by role and instance type, those that name a type first: the others settle for what is left."""
    groups: dict[tuple[str, str | None], list[PodPlan]] = defaultdict(list)
    for pod in sorted(pods, key=lambda pod: pod.instance_type is None):
        groups[pod.role, pod.instance_type].append(pod)
    return groups


def _why(
    role: str,
    kind: str | None,
    pods: Sequence[PodPlan],
    left: Sequence[PodPlan],
    candidates: Sequence[_Node],
    instances: Mapping[str, Instance],
) -> str:
    of_all = f"{len(left)} of {len(pods)}" if len(left) < len(pods) else str(len(pods))
    who = f"{of_all} {role} {'pod' if len(pods) == 1 else 'pods'}"
    if kind is not None and kind not in instances:
        return f"{who} cannot be placed: they want {kind} nodes, and values/instances has no such type"
    needed = f"{sum(1 for _ in _needed(pods, instances))} {kind} nodes"
    if not candidates:
        return (
            f"{who} cannot be placed: there are no {kind} nodes, {needed} are needed"
            if kind
            else (f"{who} cannot be placed: there are no nodes")
        )
    demand = _demand(left[0])
    where = f"{len(candidates)} {kind or ''} {'node' if len(candidates) == 1 else 'nodes'}".replace("  ", " ")
    fresh = [_Node(node.instance) for node in candidates]
    name = _commonest(node.lacks(demand) for node in fresh)
    if name and all(node.lacks(demand) for node in fresh):
        offered = format_quantity(name, max(node.free.get(name, Fraction()) for node in fresh))
        wanted = format_quantity(name, demand[name])
        return f"{who} can never fit {where}: a pod asks for {wanted} {name}, a whole node has {offered}"
    name = _commonest(node.lacks(demand) for node in candidates) or "pods"
    wanted = format_quantity(name, demand[name])
    more = f", {needed} are needed" if kind else ""
    verb = "does" if len(left) == 1 else "do"
    return f"{who} {verb} not fit on {where}: a pod asks for {wanted} {name} and no node has that left{more}"


def _commonest(names: Iterable[str | None]) -> str | None:
    counted = Counter(name for name in names if name)
    return counted.most_common(1)[0][0] if counted else None
