"""Pods as they are in a cluster, for tests that compare them with a plan."""

from __future__ import annotations

from collections.abc import Mapping

from bireme.live.pods import ObservedPod, observed_pod


def live_pod(
    name: str,
    kind: str,
    owner: str,
    phase: str = "Running",
    ready: bool | None = None,
    hostname: str = "",
    labels: Mapping[str, str] | None = None,
) -> ObservedPod:
    """A pod on the node cpu-0 that an object of this kind and name controls; it is ready if it runs."""
    is_ready = phase == "Running" if ready is None else ready
    owners = [{"kind": kind, "name": owner, "controller": True}]
    return observed_pod(
        {
            "metadata": {"name": name, "labels": dict(labels or {}), "ownerReferences": owners},
            "spec": {"nodeName": "cpu-0", "containers": [], **({"hostname": hostname} if hostname else {})},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": str(is_ready)}]},
        }
    )
