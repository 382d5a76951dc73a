"""Why a node or a device is ill, in words for people. Agents that watch nodes leave the signs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bireme.core.labels import HYPERPOD_HEALTH_LABEL, QUARANTINE_ANNOTATION
from bireme.plan.scheduling import tolerated

# Of EKS's node monitoring agent: False where a node needs a repair.
# https://docs.aws.amazon.com/eks/latest/userguide/node-health-nma.html
_WELL = "(AcceleratedHardware|ContainerRuntime|Kernel|Networking|Storage)Ready"
# True where it does, of NVSentinel and of the node problem detector.
# https://github.com/NVIDIA/NVSentinel/blob/main/docs/INTEGRATIONS.md
_ILL = (
    r"Gpu\w+(Watch|Error)|SysLogs\w+|NVSwitch(FatalError|Down)|DCGMError|CSPMaintenance|"
    "KernelDeadlock|ReadonlyFilesystem"
)
# Those of NVSentinel are its users' to name; these are the forms in its documents.
_TAINTS = rf"nvidia\.com/[\w.-]+-error|(gpu|nvlink|nvswitch)\.health/.+|{re.escape(HYPERPOD_HEALTH_LABEL)}"
_FIRM = ("NoSchedule", "NoExecute")


def illness(node: Mapping[str, Any]) -> str:
    """Why a node is ill, in a phrase. It is "" when there is no sign."""
    return next(_signs(node), "")


def _signs(node: Mapping[str, Any]) -> Iterator[str]:
    about, spec = node["metadata"], node.get("spec") or {}
    for each in (node.get("status") or {}).get("conditions") or ():
        if re.fullmatch({"False": _WELL, "True": _ILL}.get(each["status"], "-"), each["type"]):
            reason = f" ({each['reason']})" if each.get("reason") else ""
            yield f"{each['type']} is {each['status']}{reason}"
    health = (about.get("labels") or {}).get(HYPERPOD_HEALTH_LABEL, "")
    if health.startswith("Unschedulable"):
        yield f"HyperPod says {health}"
    for taint in spec.get("taints") or ():
        if taint["effect"] in _FIRM and re.fullmatch(_TAINTS, taint["key"]):
            yield f"it has the taint {taint['key']}"
    if spec.get("unschedulable") and (about.get("annotations") or {}).get(QUARANTINE_ANNOTATION):
        yield "NVSentinel has cordoned it"


def device_illness(
    claim: Mapping[str, Any], slices: Iterable[Mapping[str, Any]], rules: Iterable[Mapping[str, Any]]
) -> str:
    """Why a device that a ResourceClaim has is ill, in a phrase; "" if none is.

    ``slices``: the ResourceSlices, whose drivers taint devices. ``rules``: the DeviceTaintRules of people.
    """
    results = ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results") or ()
    for result in results:
        found = [*_slice_taints(result, slices), *_rule_taints(result, rules)]
        for taint in found:
            if taint["effect"] in _FIRM and not tolerated(taint, result):
                return f"device {result['device']} has the taint {taint['key']}"
    return ""


def _slice_taints(
    result: Mapping[str, Any], slices: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    for spec in (each["spec"] for each in slices):
        if (spec["driver"], spec["pool"]["name"]) == (result["driver"], result["pool"]):
            for device in spec.get("devices") or ():
                if device["name"] == result["device"]:
                    yield from device.get("taints") or ()


def _rule_taints(
    result: Mapping[str, Any], rules: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    for spec in (each["spec"] for each in rules):
        selector = spec.get("deviceSelector") or {}
        if all(result[key] == selector[key] for key in ("driver", "pool", "device") if selector.get(key)):
            yield spec["taint"]
