"""One pod of a release as the API server has it: where it is, whether it is ready, and if not, why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bireme.core.labels import COMPONENT_LABEL, OUT_OF_SERVICE_TAINT, UNREACHABLE_TAINT
from bireme.core.plain import Plain
from bireme.core.quantities import pod_requests
from bireme.plan.node_health import illness
from bireme.plan.workloads import trace
from bireme.plan.workloads.model import true_conditions

# The container of charts/training (_instance.tpl).
_DEVICES = "devices"

_OUSTED = ("Evicted", "Preempting", "NodeLost", "Terminated", "NodeShutdown")

NodeState = str
"""That of a node: unreachable, out-of-service, gone, why it is ill, or nothing."""


@dataclass(frozen=True)
class ObservedPod(Plain):
    """One pod as the API server has it.

    ``workload`` and ``kind`` name what made it. ``slot`` is the planned pod that it stands for (job index or
    ordinal), None where its name is generated. ``reason`` is a phrase about why it is not ready.
    ``lack`` is what it does without. ``exit_code`` and ``last_words``, the termination message, are those of
    its first failed container, and ``ended`` when that was. ``ousted``: who took the pod from its node.
    ``created`` and ``ended`` are the API server's timestamps.
    """

    hidden = ("kind", "slot", "node_state", "node_selector", "scheduled", "created", "ended", "ousted")

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
    lack: str = ""
    last_words: str = ""
    ended: str = ""
    ousted: str = ""

    @property
    def is_live(self) -> bool:
        """Whether it is neither finished nor being deleted."""
        return self.phase in ("Pending", "Running", "Unknown") and not self.terminating


def observed_pod(pod: Mapping[str, Any], node_state: NodeState = "") -> ObservedPod:
    """An ObservedPod from the API server's JSON and the state of its node."""
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    kind, workload, slot = trace(pod)
    states = (each.get("state", {}).get("terminated") for each in container_statuses(status))
    ended = [each for each in states if each]
    failed = [each for each in ended if each["exitCode"]]
    taken = _disruption(status)
    return ObservedPod(
        name=meta["name"],
        role=meta.get("labels", {}).get(COMPONENT_LABEL, ""),
        workload=workload,
        kind=kind,
        slot=slot,
        phase=status.get("phase", "Pending"),
        node=spec.get("nodeName"),
        node_state=node_state,
        hostname=spec.get("hostname") or meta["name"],
        resources=pod_requests(spec),
        node_selector=dict(spec.get("nodeSelector") or {}),
        ready=is_ready(pod),
        terminating="deletionTimestamp" in meta,
        scheduled=bool(spec.get("nodeName")),
        reason=_reason(status),
        exit_code=next((int(each["exitCode"]) for each in [*failed, *ended]), None),
        created=meta.get("creationTimestamp", ""),
        lack=_lack(status),
        last_words=(failed[0].get("message") or "").strip() if failed else "",
        ended=(failed[0].get("finishedAt") or "") if failed else taken.get("lastTransitionTime", ""),
        ousted=": ".join(filter(None, (taken.get("reason"), shorten(taken.get("message") or "")))),
    )


def node_state(node: Mapping[str, Any]) -> NodeState:
    """What a node says of itself."""
    taints = {taint["key"] for taint in node["spec"].get("taints", [])}
    if OUT_OF_SERVICE_TAINT in taints:
        return "out-of-service"
    return "unreachable" if UNREACHABLE_TAINT in taints else illness(node)


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether the API server says that the pod is ready."""
    return "Ready" in true_conditions(pod)


def container_statuses(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The states of a pod's containers, those of init containers first."""
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def _disruption(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """What took a pod from its node: its own status or the condition DisruptionTarget, else nothing."""
    if status.get("reason") in _OUSTED:
        return status
    marks = (status.get("conditions") or []) if status.get("phase") == "Failed" else []
    true = (each for each in marks if (each["type"], each["status"]) == ("DisruptionTarget", "True"))
    return next(true, {})


def _lack(status: Mapping[str, Any]) -> str:
    """What the init container that looks for devices said, if the pod runs nevertheless."""
    for each in status.get("initContainerStatuses") or []:
        ended = each.get("state", {}).get("terminated")
        if each["name"] == _DEVICES and ended and not ended["exitCode"]:
            return " ".join((ended.get("message") or "").split())
    return ""


def _reason(status: Mapping[str, Any]) -> str:
    """Why a pod is not ready, in a phrase; "" when its status does not tell."""
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return shorten(condition.get("message") or condition.get("reason") or "")
    for each in container_statuses(status):
        state = each.get("state", {})
        waiting, terminated = state.get("waiting"), state.get("terminated")
        if waiting:
            return _phrase(f"container {each['name']} waits", waiting) + _restarts(each)
        if terminated and terminated["exitCode"]:
            # The lines before the last one, such as a traceback, are in its last words.
            last = (terminated.get("message") or "").strip().rpartition("\n")[2]
            return _phrase(f"container {each['name']} ended", {**terminated, "message": last})
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
    """A message of Kubernetes without its noise, in one line of at most ``limit`` characters."""
    text = " ".join(_NOISE.sub("", message).split()).rstrip(".,; ")
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"
