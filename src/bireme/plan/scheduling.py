"""Which nodes take a pod, by what its spec says: labels, affinity to nodes, taints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bireme.plan.instances import admits
from bireme.plan.workloads.model import true_conditions


def tolerated(taint: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    """Whether a pod of this spec tolerates the taint."""
    return any(
        each.get("key") in (None, "", taint["key"])
        and each.get("effect") in (None, "", taint["effect"])
        and (each.get("operator") == "Exists" or each.get("value", "") == taint.get("value", ""))
        for each in spec.get("tolerations") or ()
    )


def takes(node: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    """Whether a node takes new pods of this spec, however full it is.

    Affinity to other pods and topology spread are not looked at.
    """
    name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
    own = node.get("spec") or {}
    return (
        "Ready" in true_conditions(node)
        and not own.get("unschedulable")
        and admits(spec, name, labels)
        and all(
            taint["effect"] == "PreferNoSchedule" or tolerated(taint, spec)
            for taint in own.get("taints") or ()
        )
    )
