"""The pods of a release as they are on the cluster, compared with the plan difference by difference."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from bireme.clusters.api import ApiError
from bireme.clusters.base import Cluster
from bireme.core.labels import OUT_OF_SERVICE_TAINT
from bireme.core.manifests import Manifest
from bireme.core.plain import Plain
from bireme.core.progress import step
from bireme.core.quantities import quantity
from bireme.live.owners import Owners
from bireme.live.pods import NodeState, ObservedPod, is_ready, node_state, observed_pod, shorten
from bireme.plan.topology import Plan
from bireme.plan.workloads import kind_of
from bireme.plan.workloads.model import ObservedWorkload, PodPlan, WorkloadKind, WorkloadPlan

if TYPE_CHECKING:
    from rich.console import Console

LAUNCHER_ROLE = "launcher"

Category = Literal[
    "missing",
    "extra",
    "resources",
    "node-selector",
    "hostname",
    "pending",
    "not-ready",
    "terminating",
    "unreachable",
    "node-gone",
    "node-ill",
    "failed",
    "job-failed",
    "updating",
]

# Differences that do not go away by waiting. An unreachable node may come back, but most do not.
_PERMANENT: frozenset[Category] = frozenset(
    ("extra", "resources", "node-selector", "hostname", "pending", "unreachable", "node-ill", "job-failed")
)
# Of a pod that is pending, until the scheduler says what it lacks.
_UNSEEN = "the scheduler has not looked at it yet"
UNSEEN_SECONDS = 60
"""After that a scheduler, or a queue, that has not looked at something is taken for one that never will."""
# How long an embedded cluster may stay unchanged with nothing but permanent differences.
_UNCHANGED_SECONDS = 10
_NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"
_LOOK_SECONDS = 1
_NODES_SECONDS = 5


@dataclass(frozen=True)
class Difference(Plain):
    """One difference between the cluster and the plan; ``pod`` is "" where it is not about a single pod."""

    category: Category
    workload: str
    pod: str
    sentence: str


@dataclass(frozen=True)
class Observation:
    """The pods and workloads of a release at one moment, and how they differ from its plan."""

    pods: tuple[ObservedPod, ...]
    differences: tuple[Difference, ...]
    workloads: tuple[ObservedWorkload, ...] = ()


def observe(cluster: Cluster, plan: Plan) -> tuple[ObservedPod, ...]:
    """The pods of a release, by name; those of hooks and helm tests are left out. Raises BiremeError."""
    return LiveRelease(cluster, plan).read().pods()


def check(cluster: Cluster, plan: Plan) -> Observation:
    """The release as it is now, compared with its plan. Raises BiremeError."""
    return LiveRelease(cluster, plan).read().compared()


def wait(
    cluster: Cluster,
    plan: Plan,
    timeout: float = 300,
    console: Console | None = None,
    held: Callable[[tuple[Difference, ...], float], bool] = lambda differences, unchanged: False,
) -> Observation:
    """Watch the pods arrive until all is as planned; the last observation has the differences that remain.

    ``timeout`` in seconds. Ends early when only permanent differences are left; on an embedded cluster these
    include pods that no node has room for, unless Karpenter adds nodes. Ends early too when what has not
    changed for ten seconds is ``held`` by something that may take hours. ``console`` shows the progress.
    """
    is_fixed = cluster.provider == "embedded" and cluster.api.find(_NODE_POOLS) is None
    unchanged_seconds = _UNCHANGED_SECONDS if is_fixed else timeout
    live = LiveRelease(cluster, plan).read()
    deadline = time.monotonic() + timeout
    changed, now = time.monotonic(), live.compared()
    with step(console, f"Waiting for {plan.release}", detail=lambda: _ready(plan, now)):
        while now.differences and time.monotonic() < deadline:
            unchanged = time.monotonic() - changed
            if _are_permanent(now.differences, unchanged) and unchanged > unchanged_seconds:
                break
            if unchanged > _UNCHANGED_SECONDS and held(now.differences, unchanged):
                break
            live.follow(_LOOK_SECONDS, until_ready=_expected_pods(plan))
            before, now = now, live.compared()
            if now.differences != before.differences:
                changed = time.monotonic()
    return now


def compare(
    plan: Plan, observed: Iterable[ObservedPod], workloads: Iterable[ObservedWorkload] = ()
) -> tuple[Difference, ...]:
    """How the observed pods differ from the plan.

    Pods are matched by the slot that their kind finds for them, or (Deployments) by what made them. A pod
    that is being deleted or that a newer one has replaced is not a difference. ``workloads`` tell which pods
    will not come any more, and which are about to be replaced.
    """
    states = {(each.kind, each.name): each for each in workloads}
    by_workload: dict[tuple[str, str], list[ObservedPod]] = defaultdict(list)
    for pod in observed:
        by_workload[pod.kind, pod.workload].append(pod)
    found: list[Difference] = []
    for workload in plan.workloads:
        there = by_workload.pop((workload.kind, workload.name), [])
        no_state = ObservedWorkload(workload.kind, workload.name, "")
        state = states.get((workload.kind, workload.name), no_state)
        if workload.is_autoscaled and state.replicas is not None:
            low, high = workload.min_replicas, workload.max_replicas
            workload = replace(workload, replicas=state.replicas).sized(low, high)
        found += _uncounted(workload, there) if workload.note else _counted(workload, there, state)
        found += _of_state(workload, state)
    # Of an object that looks like no workload, such as an operator's, nobody knows how many pods it makes.
    makers = {(each.kind, each.name) for each in plan.objects}
    for key, pods in by_workload.items():
        unplanned = WorkloadPlan(key[1], key[0], "", 0, 0, 0, (), note="makes pods")
        found += (
            _uncounted(unplanned, pods) if key in makers else [_extra(pod) for pod in pods if pod.is_live]
        )
    return tuple(found)


# --- one workload ----------------------------------------------------------------------------------------


def _counted(
    workload: WorkloadPlan, there: Sequence[ObservedPod], state: ObservedWorkload
) -> Iterator[Difference]:
    planned = () if workload.suspended else workload.pods
    slots = _by_slot(planned, there)
    for pod in planned:
        candidates = slots.pop(pod.name, [])
        current = max(candidates, key=_precedence, default=None)
        yield from (_extra(other) for other in candidates if other.is_live and other is not current)
        # A Job that has ended makes no more pods, and may have removed the others.
        if state.state in ("", "Updating") or (current is not None and current.is_live):
            yield from _pod_differences(workload, pod, current)
    for leftover in slots.values():
        yield from (_extra(pod) for pod in leftover if pod.is_live)


def _uncounted(workload: WorkloadPlan, there: Iterable[ObservedPod]) -> Iterator[Difference]:
    """The plan does not count these pods; each that is there should be in order."""
    # Finished pods are history, but a DaemonSet replaces a failed one.
    finished = ("Succeeded", "Failed") if workload.instance_types is None else ("Succeeded",)
    for pod in there:
        if pod.phase not in finished:
            for category, sentence in _condition(pod):
                yield Difference(category, workload.name, pod.name, f"{pod.name}{sentence}")


def _of_state(workload: WorkloadPlan, state: ObservedWorkload) -> Iterator[Difference]:
    """The differences that the workload's own status tells."""
    who = f"{workload.kind} {workload.name}"
    if state.state == "Failed":
        why = shorten(state.message) or "it does not say why"
        yield Difference("job-failed", workload.name, "", f"{who} has failed for good: {why}")
    if state.state == "Updating":
        yield Difference("updating", workload.name, "", f"{who} {state.message}")


def _by_slot(planned: Sequence[PodPlan], there: Sequence[ObservedPod]) -> dict[str, list[ObservedPod]]:
    """Observed pods by planned name; those with a generated name take the planned ones in turn."""
    slots: dict[str, list[ObservedPod]] = defaultdict(list)
    taken = {pod.slot for pod in there}
    names = iter([pod.name for pod in planned if pod.name not in taken])
    for pod in sorted(there, key=lambda pod: (not pod.is_live, pod.name)):
        slots[pod.slot if pod.slot is not None else next(names, pod.name)].append(pod)
    return slots


def _precedence(pod: ObservedPod) -> tuple[bool, bool, bool, str]:
    """Sorts the pods of one slot: a live one counts most, then one that succeeded, then one being deleted."""
    return (pod.is_live, pod.phase == "Succeeded", pod.terminating, pod.created)


def _pod_differences(
    workload: WorkloadPlan, planned: PodPlan, there: ObservedPod | None
) -> Iterator[Difference]:
    def difference(category: Category, sentence: str) -> Difference:
        return Difference(category, workload.name, planned.name, f"{planned.name}{sentence}")

    if there is None:
        yield difference(
            "missing", f" ({planned.role}) is missing: {workload.kind} {workload.name} has no such pod"
        )
        return
    if there.phase != "Succeeded":
        yield from (difference(*condition) for condition in _condition(there))
    for name, wanted, has in _unequal(planned.resources, there.resources):
        yield difference("resources", f" asks for {has} of {name}, planned {wanted}")
    for key in sorted({*planned.node_selector, *there.node_selector}):
        wanted, has = planned.node_selector.get(key, "nothing"), there.node_selector.get(key, "nothing")
        if wanted != has:
            yield difference("node-selector", f" selects nodes by {key}={has}, planned {wanted}")
    if planned.hostname and there.hostname != planned.hostname:
        yield difference("hostname", f" has host name {there.hostname}, planned {planned.hostname}")


def _condition(pod: ObservedPod) -> Iterator[tuple[Category, str]]:
    """Why a pod is not in order: at most one reason, the one that explains the others."""
    if pod.node_state == "unreachable":
        yield "unreachable", _unreachable(pod)
    elif pod.node_state == "gone":
        yield "node-gone", f" was on {pod.node}, which is gone: Kubernetes replaces it in about a minute"
    elif pod.terminating:
        on = f" on {pod.node}{_ill(pod)}" if pod.node else ""
        yield "terminating", f" is being deleted{on}: its replacement comes when it is gone"
    elif pod.phase == "Failed":
        code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
        yield "failed", f" failed{code}{f' ({pod.reason})' if pod.reason else ''} and has no replacement yet"
    elif not pod.scheduled:
        yield "pending", f" is Pending: {pod.reason or _UNSEEN}"
    elif _ill(pod):
        yield "node-ill", f" is on {pod.node}{_ill(pod)}"
    elif not pod.ready:
        yield "not-ready", f" is not ready on {pod.node}: {pod.reason or 'its containers are starting'}"


def _ill(pod: ObservedPod) -> str:
    is_ill = pod.node_state not in ("", "out-of-service", "unreachable", "gone")
    return f", which is ill ({pod.node_state})" if is_ill else ""


def _unreachable(pod: ObservedPod) -> str:
    state = "is stuck" if pod.terminating else "is"
    return (
        f" {state} on {pod.node}, which does not answer; if the machine is lost for good, mark it with: "
        f"kubectl taint node {pod.node} {OUT_OF_SERVICE_TAINT}=nodeshutdown:NoExecute"
    )


def _unequal(planned: Mapping[str, str], there: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    if planned == there:
        return
    for name in sorted({*planned, *there}):
        wanted, has = planned.get(name, "0"), there.get(name, "0")
        if wanted != has and quantity(wanted) != quantity(has):
            yield name, wanted, has


def _extra(pod: ObservedPod) -> Difference:
    owner = f"it belongs to {pod.kind} {pod.workload}" if pod.workload != pod.name else "nothing owns it"
    role = f" ({pod.role})" if pod.role else ""
    sentence = f"{pod.name}{role} is there and was not planned: {owner}"
    return Difference("extra", pod.workload, pod.name, sentence)


def _are_permanent(differences: Sequence[Difference], unchanged: float) -> bool:
    """Whether waiting cannot help. A pod missing beside a permanent difference will not come either."""
    is_late = unchanged > UNSEEN_SECONDS
    lasting = {
        each
        for each in differences
        if each.category in _PERMANENT and (is_late or _UNSEEN not in each.sentence)
    }
    stuck = {each.workload for each in lasting}
    return all(
        each in lasting or (each.category == "missing" and each.workload in stuck) for each in differences
    )


def _ready(plan: Plan, found: Observation) -> str:
    ready = sum((pod.ready and not pod.terminating) or pod.phase == "Succeeded" for pod in found.pods)
    return f"{ready} of {_expected_pods(plan)} pods ready"


def _expected_pods(plan: Plan) -> int:
    return sum(len(workload.pods) for workload in plan.workloads if not workload.suspended)


# --- reading the API server ----------------------------------------------------------------------------


class LiveRelease:
    """The pods of one release as they come and go, with the nodes and workloads they depend on."""

    def __init__(self, cluster: Cluster, plan: Plan) -> None:
        self._api = cluster.api
        self._plan = plan
        self._owners = Owners(cluster.api, plan)
        # Only the first is watched: the others, which few charts have, are read again and again.
        self._paths = [f"/api/v1/namespaces/{each}/pods" for each in self._owners.namespaces]
        self._raw: dict[str, dict[str, Any]] = {}
        self._nodes: dict[str, NodeState] | None = {}
        self._nodes_read = 0.0
        self._workloads: tuple[ObservedWorkload, ...] = ()
        self._version = ""

    def read(self) -> LiveRelease:
        """Read everything again."""
        found = [self._api.get(path, **self._owners.pod_query) for path in self._paths]
        pods = (pod for each in found for pod in each["items"] if self._owners.maker("Pod", pod))
        self._raw = {pod["metadata"]["name"]: pod for pod in pods}
        self._version = found[0]["metadata"]["resourceVersion"]
        self._nodes_read = 0.0
        self._read_workloads_and_nodes()
        return self

    def follow(self, seconds: float, until_ready: int) -> None:
        """Follow the pods for some seconds, or until ``until_ready`` of them are ready."""
        query = {**self._owners.pod_query, "resourceVersion": self._version}
        ready = {name for name, pod in self._raw.items() if is_ready(pod)}
        with self._api.watch(self._paths[0], seconds, **query) as events:
            for event in events:
                if event["type"] == "ERROR":
                    self.read()
                    return
                name = self._take(event)
                (ready.add if is_ready(self._raw.get(name, {})) else ready.discard)(name)
                if len(ready) >= until_ready:
                    break
        if len(self._paths) > 1:
            self.read()
        self._read_workloads_and_nodes()

    def pods(self) -> tuple[ObservedPod, ...]:
        """The pods, by name."""
        return tuple(self._observed(pod) for _, pod in sorted(self._raw.items()))

    def compared(self) -> Observation:
        """The pods, and how they differ from the plan."""
        pods = self.pods()
        return Observation(pods, compare(self._plan, pods, self._workloads), self._workloads)

    def _take(self, event: Mapping[str, Any]) -> str:
        pod: dict[str, Any] = event["object"]
        name: str = pod["metadata"]["name"]
        self._version = pod["metadata"]["resourceVersion"]
        if event["type"] == "DELETED":
            self._raw.pop(name, None)
        elif self._owners.maker("Pod", pod):
            self._raw[name] = pod
        return name

    def _read_workloads_and_nodes(self) -> None:
        found = ((each, kind) for each in self._plan.objects if (kind := kind_of(each)) and kind.has_state)
        self._workloads = tuple(filter(None, self._api.each(lambda each: self._state(*each), found)))
        used = {pod["spec"].get("nodeName") for pod in self._raw.values()} - {None}
        is_old = time.monotonic() - self._nodes_read > _NODES_SECONDS
        if self._nodes is not None and (is_old or not used <= self._nodes.keys()):
            self._nodes = self._node_states()
            self._nodes_read = time.monotonic()

    def _state(self, item: Manifest, kind: WorkloadKind) -> ObservedWorkload | None:
        """What the live object says; None where it, or its kind, is not there."""
        path = kind.path(item.namespace or self._plan.namespace, item.api_version)
        try:
            live = self._api.find(f"{path}/{item.name}")
        except ApiError as error:
            # Users may lack the right to read a kind that their cluster does not have.
            if error.status != 403 or "." not in kind.group:
                raise
            return None
        return kind.state(live) if live else None

    def _node_states(self) -> dict[str, NodeState] | None:
        try:
            nodes = self._api.get("/api/v1/nodes")["items"]
        except ApiError as error:
            if error.status == 403:
                # Users of one namespace may not read nodes; the pods tell enough without them.
                return None
            raise
        return {node["metadata"]["name"]: node_state(node) for node in nodes}

    def _observed(self, pod: Mapping[str, Any]) -> ObservedPod:
        kind, workload = self._owners.maker("Pod", pod) or ("", "")
        node = pod["spec"].get("nodeName")
        state = self._nodes.get(node, "gone") if node and self._nodes is not None else ""
        return replace(observed_pod(pod, state), kind=kind, workload=workload)
