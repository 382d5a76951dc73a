"""The topology that is there, compared with the plan, difference by difference."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bireme.clusters import Cluster
from bireme.clusters.api import ApiError
from bireme.errors import BiremeError
from bireme.labels import (
    COMPONENT_LABEL,
    HOOK_ANNOTATION,
    JOB_INDEX_LABEL,
    KUBEFLOW_JOB_LABEL,
    OUT_OF_SERVICE_TAINT,
    POD_TEMPLATE_HASH_LABEL,
    RELEASE_LABEL,
    UNREACHABLE_TAINT,
)
from bireme.topology import LAUNCHER_SUFFIX, Plan, PodPlan, WorkloadPlan, pod_requests, quantity

if TYPE_CHECKING:
    from rich.console import Console

LAUNCHER_ROLE = "launcher"

NodeState = Literal["", "unreachable", "out-of-service", "gone"]
Kind = Literal[
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
    "failed",
    "job-failed",
    "updating",
]

# What time alone does not mend. A node that comes back mends "unreachable", but nobody should wait for it.
_HOPELESS: frozenset[Kind] = frozenset(
    ("extra", "resources", "node-selector", "hostname", "pending", "unreachable", "job-failed")
)
_PATIENCE_SECONDS = 10
_LOOK_SECONDS = 1
_NODES_SECONDS = 5


@dataclass(frozen=True)
class ObservedPod:
    """One pod as the API server has it.

    ``workload`` and ``kind`` name what made it; ``slot`` is the planned pod that it stands for (job index or
    ordinal), None where its name is made up. ``reason`` says in a phrase why it is not ready, and
    ``exit_code`` how its first failed container ended. ``created`` is the API server's timestamp.
    """

    name: str
    role: str
    workload: str
    kind: str
    slot: str | None
    phase: str
    node: str | None
    node_state: NodeState
    hostname: str | None
    resources: Mapping[str, str]
    node_selector: Mapping[str, str]
    ready: bool
    terminating: bool
    scheduled: bool
    reason: str
    exit_code: int | None
    created: str

    @property
    def is_live(self) -> bool:
        """Whether it is there to stay: neither finished nor on its way out."""
        return self.phase in ("Pending", "Running", "Unknown") and not self.terminating

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for ``-o json``."""
        return {
            "name": self.name,
            "role": self.role,
            "workload": self.workload,
            "phase": self.phase,
            "ready": self.ready,
            "terminating": self.terminating,
            "node": self.node,
            "hostname": self.hostname,
            "resources": dict(self.resources),
            "reason": self.reason,
            "exitCode": self.exit_code,
        }


@dataclass(frozen=True)
class ObservedWorkload:
    """What a workload says of itself, when that is more than its pods show.

    ``state`` is ``Complete`` or ``Failed`` for a Job or MPIJob that has ended, ``Updating`` for a
    StatefulSet, Deployment or DaemonSet whose pods are not all of its newest template yet, else "";
    ``message`` says why.
    """

    kind: str
    name: str
    state: Literal["", "Complete", "Failed", "Updating"]
    message: str = ""


@dataclass(frozen=True)
class Difference:
    """One way in which what is there is not what was planned; ``pod`` is "" where it is no single one."""

    kind: Kind
    workload: str
    pod: str
    sentence: str

    def to_json(self) -> dict[str, str]:
        """Plain JSON for ``-o json``."""
        return {
            "kind": self.kind,
            "workload": self.workload,
            "pod": self.pod,
            "sentence": self.sentence,
        }


def observe(cluster: Cluster, release: str, namespace: str) -> tuple[ObservedPod, ...]:
    """The pods of a release, by name; those of hooks and helm tests are left out. Raises BiremeError."""
    return _Scene(cluster, release, namespace).look().pods()


def launcher_log(cluster: Cluster, release: str, namespace: str) -> str:
    """What the newest launcher of an MPI job has printed: an MPIJob's, or the first pod of an Indexed Job.

    Raises BiremeError when the release has none, or one that has not started.
    """
    pods = observe(cluster, release, namespace)
    launchers = [pod for pod in pods if pod.role == LAUNCHER_ROLE]
    launchers = launchers or [pod for pod in pods if pod.kind == "Job" and pod.slot == f"{pod.workload}-0"]
    if not launchers:
        raise BiremeError(
            f"{release} in namespace {namespace} has no launcher: bireme status {release} says what is there"
        )
    newest = max(launchers, key=lambda pod: pod.created)
    path = f"/api/v1/namespaces/{namespace}/pods/{newest.name}"
    container = cluster.api.get(path)["spec"]["containers"][0]["name"]
    return cluster.api.text(f"{path}/log", container=container)


def check(cluster: Cluster, plan: Plan) -> tuple[Difference, ...]:
    """How the release that is there differs from its plan, now. Raises BiremeError."""
    return _Scene(cluster, plan.release, plan.namespace).look().differences(plan)


def wait(
    cluster: Cluster, plan: Plan, timeout: float = 300, console: Console | None = None
) -> tuple[Difference, ...]:
    """Watch the pods arrive until all is as planned; the differences that remain.

    ``timeout`` in seconds. Ends early when time cannot help any more; on an embedded cluster that includes
    pods without a node that fits them, for nothing adds nodes there. ``console`` shows the progress.
    """
    patience = _PATIENCE_SECONDS if cluster.provider == "embedded" else timeout
    scene = _Scene(cluster, plan.release, plan.namespace).look()
    deadline = time.monotonic() + timeout
    changed, before = time.monotonic(), scene.differences(plan)
    with _Progress(plan, console) as progress:
        progress.show(scene.pods())
        while before and time.monotonic() < deadline:
            if _is_hopeless(before) and time.monotonic() - changed > patience:
                break
            scene.follow(_LOOK_SECONDS, until_ready=_expected_pods(plan))
            progress.show(scene.pods())
            now = scene.differences(plan)
            if now != before:
                changed, before = time.monotonic(), now
    return before


def compare(
    plan: Plan, observed: Iterable[ObservedPod], workloads: Iterable[ObservedWorkload] = ()
) -> tuple[Difference, ...]:
    """How the observed pods differ from the plan.

    Pods are matched by job index, by ordinal, or (Deployments) by what made them. A pod that is on its way
    out or that a newer one has replaced is no difference; ``workloads`` say which pods will not come any
    more, and which are about to be replaced.
    """
    says = {(each.kind, each.name): each for each in workloads}
    by_workload: dict[tuple[str, str], list[ObservedPod]] = defaultdict(list)
    for pod in observed:
        by_workload[pod.kind, pod.workload].append(pod)
    found: list[Difference] = []
    for workload in plan.workloads:
        there = by_workload.pop((workload.kind, workload.name), [])
        quiet = ObservedWorkload(workload.kind, workload.name, "")
        found += _workload_differences(workload, there, says.get((workload.kind, workload.name), quiet))
    for pods in by_workload.values():
        found += [_extra(pod) for pod in pods if pod.is_live]
    return tuple(found)


# --- one workload ----------------------------------------------------------------------------------------


def _workload_differences(
    workload: WorkloadPlan, there: Sequence[ObservedPod], itself: ObservedWorkload
) -> Iterator[Difference]:
    if workload.kind == "DaemonSet":
        yield from _daemon_set_differences(workload, there, itself)
        return
    planned = () if workload.suspended else workload.pods
    slots = _by_slot(planned, there)
    for pod in planned:
        candidates = slots.pop(pod.name, [])
        current = max(candidates, key=_precedence, default=None)
        yield from (_extra(other) for other in candidates if other.is_live and other is not current)
        # A Job that has ended makes no more pods, and may have removed the others.
        if itself.state in ("", "Updating") or (current is not None and current.is_live):
            yield from _pod_differences(workload, pod, current)
    for leftover in slots.values():
        yield from (_extra(pod) for pod in leftover if pod.is_live)
    if itself.state == "Failed":
        why = shorten(itself.message) or "it does not say why"
        yield Difference(
            "job-failed", workload.name, "", f"{workload.kind} {workload.name} has failed for good: {why}"
        )
    if itself.state == "Updating":
        sentence = f"{workload.kind} {workload.name} is still replacing pods of its last version"
        yield Difference("updating", workload.name, "", sentence)


def _daemon_set_differences(
    workload: WorkloadPlan, there: Iterable[ObservedPod], itself: ObservedWorkload
) -> Iterator[Difference]:
    """Its controller alone knows how many pods it should have; each that is there should be in order."""
    for pod in there:
        for kind, sentence in _condition(pod):
            yield Difference(kind, workload.name, pod.name, f"{pod.name}{sentence}")
    if itself.state == "Updating":
        sentence = f"DaemonSet {workload.name} is not on all its nodes yet: {itself.message}"
        yield Difference("updating", workload.name, "", sentence)


def _by_slot(planned: Sequence[PodPlan], there: Sequence[ObservedPod]) -> dict[str, list[ObservedPod]]:
    """Observed pods by planned name; those whose name is made up take the planned ones in turn."""
    slots: dict[str, list[ObservedPod]] = defaultdict(list)
    names = iter([pod.name for pod in planned])
    for pod in sorted(there, key=lambda pod: (not pod.is_live, pod.name)):
        slots[pod.slot if pod.slot is not None else next(names, pod.name)].append(pod)
    return slots


def _precedence(pod: ObservedPod) -> tuple[bool, bool, bool, str]:
    """The pod that stands for its slot: a live one, else one that succeeded, else one on its way out."""
    return (pod.is_live, pod.phase == "Succeeded", pod.terminating, pod.created)


def _pod_differences(
    workload: WorkloadPlan, planned: PodPlan, there: ObservedPod | None
) -> Iterator[Difference]:
    def difference(kind: Kind, sentence: str) -> Difference:
        return Difference(kind, workload.name, planned.name, f"{planned.name}{sentence}")

    if there is None:
        yield difference(
            "missing", f" ({planned.role}) is missing: {workload.kind} {workload.name} has no such pod"
        )
        return
    if there.phase != "Succeeded":
        yield from (difference(kind, sentence) for kind, sentence in _condition(there))
    for name, wanted, has in _unequal(planned.resources, there.resources):
        yield difference("resources", f" asks for {has} of {name}, planned {wanted}")
    for key in sorted({*planned.node_selector, *there.node_selector}):
        wanted, has = planned.node_selector.get(key, "nothing"), there.node_selector.get(key, "nothing")
        if wanted != has:
            yield difference("node-selector", f" selects nodes by {key}={has}, planned {wanted}")
    if planned.hostname and there.hostname != planned.hostname:
        yield difference("hostname", f" has host name {there.hostname}, planned {planned.hostname}")


def _condition(pod: ObservedPod) -> Iterator[tuple[Kind, str]]:
    """Why a pod is not in order: at most one, the one that explains the others."""
    if pod.node_state == "unreachable":
        yield "unreachable", _unreachable(pod)
    elif pod.node_state == "gone":
        yield "node-gone", f" was on {pod.node}, which is gone: Kubernetes replaces it in about a minute"
    elif pod.terminating:
        on = f" on {pod.node}" if pod.node else ""
        yield "terminating", f" is being deleted{on}: its replacement comes when it is gone"
    elif pod.phase == "Failed":
        code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
        yield "failed", f" failed{code}{f' ({pod.reason})' if pod.reason else ''} and has no replacement yet"
    elif not pod.scheduled:
        yield "pending", f" is Pending: {pod.reason or 'the scheduler has not looked at it yet'}"
    elif not pod.ready:
        yield "not-ready", f" is not ready on {pod.node}: {pod.reason or 'its containers are starting'}"


def _unreachable(pod: ObservedPod) -> str:
    state = "is stuck" if pod.terminating else "is"
    return (
        f" {state} on {pod.node}, which does not answer; if the machine is lost for good, say so by: "
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
    maker = f"{pod.kind} {pod.workload}" if pod.kind != "Pod" else "nobody's"
    sentence = f"{pod.name} ({pod.role or maker}) is there and was not planned: it belongs to {maker}"
    return Difference("extra", pod.workload, pod.name, sentence)


def _is_hopeless(differences: Sequence[Difference]) -> bool:
    """Whether waiting cannot help. A missing pod comes late or, behind a hopeless one, not at all."""
    stuck = {each.workload for each in differences if each.kind in _HOPELESS}
    return all(
        each.kind in _HOPELESS or (each.kind == "missing" and each.workload in stuck) for each in differences
    )


def _expected_pods(plan: Plan) -> int:
    return sum(len(workload.pods) for workload in plan.workloads if not workload.suspended)


# --- what the API server says ----------------------------------------------------------------------------


class _Scene:
    """The pods of one release as they come and go, with the nodes and Jobs they depend on."""

    def __init__(self, cluster: Cluster, release: str, namespace: str) -> None:
        self._api = cluster.api
        self._selector = f"{RELEASE_LABEL}={release}"
        self._pods_path = f"/api/v1/namespaces/{namespace}/pods"
        self._jobs_path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self._mpi_jobs_path = f"/apis/kubeflow.org/v2beta1/namespaces/{namespace}/mpijobs"
        self._apps_path = f"/apis/apps/v1/namespaces/{namespace}"
        self._raw: dict[str, dict[str, Any]] = {}
        self._seen: dict[str, tuple[str, ObservedPod]] = {}
        self._nodes: dict[str, NodeState] | None = {}
        self._nodes_read = 0.0
        self._workloads: tuple[ObservedWorkload, ...] = ()
        self._hooks: frozenset[str] = frozenset()
        self._version = ""

    def look(self) -> _Scene:
        """Read everything anew."""
        pods = self._api.get(self._pods_path, labelSelector=self._selector)
        self._raw = {pod["metadata"]["name"]: pod for pod in pods["items"]}
        self._version = pods["metadata"]["resourceVersion"]
        self._nodes_read = 0.0
        self._look_around()
        return self

    def follow(self, seconds: float, until_ready: int) -> None:
        """Take in what happens to the pods for a while, or until as many are ready."""
        query = {"labelSelector": self._selector, "resourceVersion": self._version}
        ready = {name for name, pod in self._raw.items() if _is_ready(pod)}
        with self._api.watch(self._pods_path, seconds, **query) as events:
            for event in events:
                if event["type"] == "ERROR":
                    self.look()
                    return
                name = self._take(event)
                (ready.add if _is_ready(self._raw.get(name, {})) else ready.discard)(name)
                if len(ready) >= until_ready:
                    break
        self._look_around()

    def pods(self) -> tuple[ObservedPod, ...]:
        """The pods, by name."""
        kept = (pod for _, pod in sorted(self._raw.items()) if not self._is_hook(pod))
        return tuple(self._observed(pod) for pod in kept)

    def differences(self, plan: Plan) -> tuple[Difference, ...]:
        """How they differ from the plan."""
        return compare(plan, self.pods(), self._workloads)

    def _take(self, event: Mapping[str, Any]) -> str:
        pod: dict[str, Any] = event["object"]
        name: str = pod["metadata"]["name"]
        self._version = pod["metadata"]["resourceVersion"]
        if event["type"] == "DELETED":
            self._raw.pop(name, None)
        else:
            self._raw[name] = pod
        return name

    def _look_around(self) -> None:
        jobs = self._list(self._jobs_path)
        self._hooks = frozenset(job["metadata"]["name"] for job in jobs if _has_hook(job))
        self._workloads = (
            *(_observed_job(job) for job in jobs if not _has_hook(job)),
            *(_observed_mpi_job(job) for job in self._mpi_jobs()),
            *(_replicated("StatefulSet", each) for each in self._list(f"{self._apps_path}/statefulsets")),
            *(_replicated("Deployment", each) for each in self._list(f"{self._apps_path}/deployments")),
            *(_observed_daemon_set(each) for each in self._list(f"{self._apps_path}/daemonsets")),
        )
        if self._nodes is not None and self._nodes_are_old(self._nodes):
            self._nodes = self._node_states()
            self._nodes_read = time.monotonic()

    def _mpi_jobs(self) -> list[dict[str, Any]]:
        """The MPIJobs; none where the cluster does not know the kind, or its user may not see them."""
        try:
            return self._list(self._mpi_jobs_path)
        except ApiError as error:
            if error.status in (403, 404):
                return []
            raise

    def _list(self, path: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self._api.get(path, labelSelector=self._selector)["items"]
        return items

    def _nodes_are_old(self, nodes: Mapping[str, NodeState]) -> bool:
        used = {pod["spec"].get("nodeName") for pod in self._raw.values()} - {None}
        return not used <= nodes.keys() or time.monotonic() - self._nodes_read > _NODES_SECONDS

    def _node_states(self) -> dict[str, NodeState] | None:
        try:
            nodes = self._api.get("/api/v1/nodes")["items"]
        except ApiError as error:
            if error.status == 403:
                # Namespaced users may not see nodes; the pods say enough without.
                return None
            raise
        return {node["metadata"]["name"]: _node_state(node) for node in nodes}

    def _is_hook(self, pod: Mapping[str, Any]) -> bool:
        return _has_hook(pod) or _owner(pod) in {("Job", name) for name in self._hooks}

    def _observed(self, pod: Mapping[str, Any]) -> ObservedPod:
        name, version = pod["metadata"]["name"], pod["metadata"]["resourceVersion"]
        state = self._state_of(pod["spec"].get("nodeName"))
        known = self._seen.get(name)
        if known is None or known[0] != version or known[1].node_state != state:
            self._seen[name] = (version, observed_pod(pod, state))
        return self._seen[name][1]

    def _state_of(self, node: str | None) -> NodeState:
        if node is None or self._nodes is None:
            return ""
        return self._nodes.get(node, "gone")


def observed_pod(pod: Mapping[str, Any], node_state: NodeState = "") -> ObservedPod:
    """An ObservedPod from the API server's JSON and the state of its node."""
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    kind, workload = _owner(pod)
    return ObservedPod(
        name=meta["name"],
        role=meta.get("labels", {}).get(COMPONENT_LABEL, ""),
        workload=workload,
        kind=kind,
        slot=_slot(pod, kind, workload),
        phase=status.get("phase", "Pending"),
        node=spec.get("nodeName"),
        node_state=node_state,
        hostname=spec.get("hostname") or meta["name"],
        resources=pod_requests(spec),
        node_selector=dict(spec.get("nodeSelector") or {}),
        ready=_is_ready(pod),
        terminating="deletionTimestamp" in meta,
        scheduled=bool(spec.get("nodeName")),
        reason=_reason(status),
        exit_code=_exit_code(status),
        created=meta.get("creationTimestamp", ""),
    )


def _has_hook(thing: Mapping[str, Any]) -> bool:
    return HOOK_ANNOTATION in (thing["metadata"].get("annotations") or {})


def _owner(pod: Mapping[str, Any]) -> tuple[str, str]:
    """Kind and name of the workload that made a pod.

    A ReplicaSet stands for its Deployment, and the Job of an MPIJob's launcher for the MPIJob.
    """
    meta = pod["metadata"]
    owner = next((each for each in meta.get("ownerReferences", []) if each.get("controller")), None)
    if owner is None:
        return "Pod", meta["name"]
    template = meta.get("labels", {}).get(POD_TEMPLATE_HASH_LABEL)
    if owner["kind"] == "ReplicaSet" and template and owner["name"].endswith(f"-{template}"):
        return "Deployment", owner["name"].removesuffix(f"-{template}")
    mpi_job = meta.get("labels", {}).get(KUBEFLOW_JOB_LABEL)
    if owner["kind"] == "Job" and mpi_job and owner["name"] == f"{mpi_job}{LAUNCHER_SUFFIX}":
        return "MPIJob", mpi_job
    return owner["kind"], owner["name"]


def _slot(pod: Mapping[str, Any], kind: str, workload: str) -> str | None:
    index = pod["metadata"].get("labels", {}).get(JOB_INDEX_LABEL)
    if kind == "Job" and index is not None:
        return f"{workload}-{index}"
    if kind == "MPIJob":
        # The launcher's pod has a made-up name, but mpi-operator says its host name as it does the workers'.
        return str(pod["spec"].get("hostname") or pod["metadata"]["name"])
    return pod["metadata"]["name"] if kind in ("StatefulSet", "Pod") else None


def _observed_job(job: Mapping[str, Any]) -> ObservedWorkload:
    conditions = job.get("status", {}).get("conditions", [])
    # All of them: since Kubernetes 1.31 SuccessCriteriaMet or FailureTarget comes before the end itself.
    ended = {each["type"]: each for each in conditions if each["status"] == "True"}
    name = job["metadata"]["name"]
    if "Complete" in ended:
        return ObservedWorkload("Job", name, "Complete")
    if "Failed" in ended:
        return ObservedWorkload("Job", name, "Failed", ended["Failed"].get("message", ""))
    return ObservedWorkload("Job", name, "")


def _observed_mpi_job(job: Mapping[str, Any]) -> ObservedWorkload:
    conditions = job.get("status", {}).get("conditions", [])
    true = {each["type"]: each for each in conditions if each["status"] == "True"}
    name = job["metadata"]["name"]
    if "Failed" in true:
        return ObservedWorkload("MPIJob", name, "Failed", true["Failed"].get("message", ""))
    return ObservedWorkload("MPIJob", name, "Complete" if "Succeeded" in true else "")


def _replicated(kind: str, thing: Mapping[str, Any]) -> ObservedWorkload:
    meta, status = thing["metadata"], thing.get("status", {})
    has_seen_it = status.get("observedGeneration", 0) >= meta["generation"]
    is_new = status.get("updatedReplicas", 0) >= status.get("replicas", 0)
    # A StatefulSet that leaves the replacing to others says OnDelete; its old pods are meant to stay.
    waits = thing["spec"].get("updateStrategy", {}).get("type") == "OnDelete"
    return ObservedWorkload(kind, meta["name"], "" if has_seen_it and (is_new or waits) else "Updating")


def _observed_daemon_set(thing: Mapping[str, Any]) -> ObservedWorkload:
    meta, status = thing["metadata"], thing.get("status", {})
    wanted, has = status.get("desiredNumberScheduled", 0), status.get("updatedNumberScheduled", 0)
    if status.get("observedGeneration", 0) < meta["generation"]:
        return ObservedWorkload("DaemonSet", meta["name"], "Updating", "its controller has not counted them")
    if has < wanted:
        message = f"{has} of {wanted} have its newest pods"
        return ObservedWorkload("DaemonSet", meta["name"], "Updating", message)
    return ObservedWorkload("DaemonSet", meta["name"], "")


def _node_state(node: Mapping[str, Any]) -> NodeState:
    taints = {taint["key"] for taint in node["spec"].get("taints", [])}
    if OUT_OF_SERVICE_TAINT in taints:
        return "out-of-service"
    return "unreachable" if UNREACHABLE_TAINT in taints else ""


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _statuses(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def _exit_code(status: Mapping[str, Any]) -> int | None:
    ended = (each.get("state", {}).get("terminated") for each in _statuses(status))
    codes = [int(each["exitCode"]) for each in ended if each]
    return next((code for code in codes if code), codes[0] if codes else None)


def _reason(status: Mapping[str, Any]) -> str:
    """Why a pod is not ready, in a phrase; "" when nobody says."""
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return shorten(condition.get("message") or condition.get("reason") or "")
    for each in _statuses(status):
        state = each.get("state", {})
        waiting, terminated = state.get("waiting"), state.get("terminated")
        if waiting:
            return _phrase(f"container {each['name']} waits", waiting) + _restarts(each)
        if terminated and terminated["exitCode"]:
            return _phrase(f"container {each['name']} ended", terminated)
    not_ready = [each["name"] for each in status.get("containerStatuses") or [] if not each.get("ready")]
    return f"container {not_ready[0]} runs and its readiness probe fails" if not_ready else ""


def _phrase(start: str, state: Mapping[str, Any]) -> str:
    parts = [part for part in (state.get("reason"), shorten(state.get("message") or "")) if part]
    return f"{start}: {', '.join(parts)}" if parts else start


def _restarts(status: Mapping[str, Any]) -> str:
    last = status.get("lastState", {}).get("terminated")
    return f" (exit code {last['exitCode']}, {status['restartCount']} restarts)" if last else ""


_NOISE = re.compile(r"\s*(preemption:.*|no new claims to deallocate,?)", re.DOTALL)


def shorten(message: str, limit: int = 240) -> str:
    """A message of Kubernetes without what nobody needs, in one line of at most ``limit`` characters."""
    text = " ".join(_NOISE.sub("", message).split()).rstrip(".,; ")
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


# --- live progress ---------------------------------------------------------------------------------------


class _Progress:
    """One line per workload that fills up as its pods get ready."""

    def __init__(self, plan: Plan, console: Console | None) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            disable=console is None,
        )
        self._tasks = {
            (workload.kind, workload.name): self._progress.add_task(
                f"{workload.role} {workload.kind}/{workload.name}", total=len(workload.pods), note=""
            )
            for workload in plan.workloads
            if workload.pods and not workload.suspended
        }

    def __enter__(self) -> _Progress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, pods: Iterable[ObservedPod]) -> None:
        """Show where the pods are now."""
        counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        for pod in pods:
            is_done = (pod.ready and not pod.terminating) or pod.phase == "Succeeded"
            counts[pod.kind, pod.workload][0] += is_done
            counts[pod.kind, pod.workload][1] += pod.is_live and not pod.ready
        for key, task in self._tasks.items():
            done, waiting = counts[key]
            self._progress.update(task, completed=done, note=f"{waiting} waiting" if waiting else "")
