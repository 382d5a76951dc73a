"""Who says that a node or a device is ill, in the words of each."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.plan.node_health import device_illness, illness


def node(*conditions: tuple[str, str], **more: Any) -> dict[str, Any]:
    found = [{"type": kind, "status": status, "reason": "Why"} for kind, status in conditions]
    return {
        "metadata": {"name": "n", **more.pop("metadata", {})},
        "spec": more,
        "status": {"conditions": found},
    }


def tainted(key: str, effect: str = "NoSchedule") -> dict[str, Any]:
    return node(taints=[{"key": key, "effect": effect}])


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (node(("AcceleratedHardwareReady", "False")), "AcceleratedHardwareReady is False (Why)"),
        (node(("KernelReady", "True"), ("NetworkingReady", "False")), "NetworkingReady is False (Why)"),
        (node(("GpuMemWatch", "True")), "GpuMemWatch is True (Why)"),
        (node(("SysLogsXIDError", "True")), "SysLogsXIDError is True (Why)"),
        (node(("KernelDeadlock", "True")), "KernelDeadlock is True (Why)"),
        (
            node(
                metadata={
                    "labels": {"sagemaker.amazonaws.com/node-health-status": "UnschedulablePendingReboot"}
                }
            ),
            "HyperPod says UnschedulablePendingReboot",
        ),
        (tainted("nvidia.com/gpu-xid-error"), "it has the taint nvidia.com/gpu-xid-error"),
        (tainted("nvlink.health/link-down", "NoExecute"), "it has the taint nvlink.health/link-down"),
        (
            tainted("sagemaker.amazonaws.com/node-health-status"),
            "it has the taint sagemaker.amazonaws.com/node-health-status",
        ),
        (
            node(unschedulable=True, metadata={"annotations": {"quarantineHealthEvent": "[]"}}),
            "NVSentinel has cordoned it",
        ),
    ],
)
def test_an_ill_node_says_why(seen: dict[str, Any], why: str) -> None:
    assert illness(seen) == why


@pytest.mark.parametrize(
    "seen",
    [
        node(("AcceleratedHardwareReady", "True"), ("GpuMemWatch", "False"), ("MemoryPressure", "True")),
        # Of these Kubernetes itself moves the pods, and nobody knows of that one yet.
        node(("Ready", "False"), ("StorageReady", "Unknown")),
        node(metadata={"labels": {"sagemaker.amazonaws.com/node-health-status": "Schedulable"}}),
        # The plugin's own taint, a warning, a cordon of somebody else, and the controller's mark.
        tainted("nvidia.com/gpu"),
        tainted("nvidia.com/gpu-xid-error", "PreferNoSchedule"),
        node(unschedulable=True),
        tainted("bireme/ill"),
    ],
)
def test_any_other_node_is_well(seen: dict[str, Any]) -> None:
    assert illness(seen) == ""


def claim(**more: Any) -> dict[str, Any]:
    result = {"driver": "gpu.example.com", "pool": "n0", "device": "gpu-1", "request": "gpu", **more}
    return {"status": {"allocation": {"devices": {"results": [result]}}}}


def slices(effect: str, device: str = "gpu-1") -> list[dict[str, Any]]:
    taint = {"key": "gpu.example.com/xid", "effect": effect}
    devices = [{"name": "gpu-0"}, {"name": device, "taints": [taint]}]
    return [{"spec": {"driver": "gpu.example.com", "pool": {"name": "n0"}, "devices": devices}}]


def rule(effect: str = "NoSchedule", **selector: str) -> list[dict[str, Any]]:
    return [{"spec": {"deviceSelector": selector, "taint": {"key": "team/broken", "effect": effect}}}]


def test_a_device_is_ill_by_its_driver_or_by_a_rule() -> None:
    assert (
        device_illness(claim(), slices("NoSchedule"), []) == "device gpu-1 has the taint gpu.example.com/xid"
    )
    assert device_illness(claim(), [], rule(device="gpu-1")) == "device gpu-1 has the taint team/broken"
    assert device_illness(claim(), [], rule(pool="n0")) == "device gpu-1 has the taint team/broken"


def test_other_devices_warnings_and_what_is_tolerated_are_well() -> None:
    assert device_illness(claim(), slices("NoExecute", "gpu-2"), rule(device="gpu-2")) == ""
    assert device_illness(claim(), slices("None"), rule("None", pool="n0")) == ""
    borne = claim(tolerations=[{"key": "gpu.example.com/xid", "operator": "Exists"}])
    assert device_illness(borne, slices("NoSchedule"), []) == ""
    assert device_illness({"status": {}}, slices("NoSchedule"), rule()) == ""
