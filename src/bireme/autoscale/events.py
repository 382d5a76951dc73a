"""Events about jobs, which `kubectl describe` shows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from bireme.clusters.api import Api

MANAGER = "bireme-autoscaler"
"""The field manager of what the controller writes, and the source of its events."""


def record(
    api: Api,
    namespace: str,
    job: Mapping[str, Any],
    reason: Literal["Resized", "LeavesIllNode"],
    message: str,
) -> None:
    """Make an event about a job, named as an ownerReference does. Raises ApiError."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    event = {
        "metadata": {"generateName": f"{job['name']}.", "namespace": namespace},
        "involvedObject": {"namespace": namespace}
        | {key: job[key] for key in ("apiVersion", "kind", "name", "uid")},
        "type": "Normal" if reason == "Resized" else "Warning",
        "reason": reason,
        "message": message,
        "source": {"component": MANAGER},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    api.create(f"/api/v1/namespaces/{namespace}/events", event)
