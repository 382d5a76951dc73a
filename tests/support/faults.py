"""What happens to fake nodes and pods: nodes go or fall silent, pods end. And to an API server."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bireme.clusters.api import ApiError
from bireme.clusters.waiting import until
from bireme.core.labels import CUT_LABEL, EXIT_CODE_ANNOTATION, OUT_OF_SERVICE_TAINT

_OUT_OF_SERVICE = {"key": OUT_OF_SERVICE_TAINT, "value": "nodeshutdown", "effect": "NoExecute"}


def remove_node(cluster: Any, node: str) -> None:
    """Delete a Node, as the cloud controller does when its instance has been terminated."""
    cluster.api.get(f"/api/v1/nodes/{node}")
    cluster.api.delete(f"/api/v1/nodes/{node}")


def cut_node(cluster: Any, node: str) -> None:
    """Make a node unreachable: its heartbeat stops, and nothing on it starts or ends any more.

    The node lifecycle controller taints it after its grace period; its pods stay Terminating until
    ``taint_out_of_service``.
    """
    cluster.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {CUT_LABEL: "true"}}})


def taint_out_of_service(cluster: Any, node: str) -> None:
    """Declare a node lost for good, so that its pods are removed and replaced."""
    taints = cluster.api.get(f"/api/v1/nodes/{node}")["spec"].get("taints", [])
    others = [taint for taint in taints if taint["key"] != OUT_OF_SERVICE_TAINT]
    cluster.api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [*others, _OUT_OF_SERVICE]}})


def complete(cluster: Any, pod: str, namespace: str = "default") -> None:
    """End every container of a running pod with exit code 0; returns once it has ended."""
    fail(cluster, pod, 0, namespace)


def fail(cluster: Any, pod: str, exit_code: int, namespace: str = "default") -> None:
    """End every container of a running pod with ``exit_code``; returns once it has ended."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
    found = cluster.api.get(path)
    assert found["spec"].get("restartPolicy") == "Never", f"{pod} would start again"
    assert found["status"].get("phase") == "Running", f"{pod} does not run"
    cluster.api.patch(path, {"metadata": {"annotations": {EXIT_CODE_ANNOTATION: str(exit_code)}}})

    def has_ended() -> bool:
        now = cluster.api.find(path)
        return now is None or now["status"].get("phase") in ("Succeeded", "Failed")

    until(has_ended, 120, f"the pod {pod} to end")


@contextlib.contextmanager
def without_api_server(cluster: Any) -> Iterator[None]:
    """Kill an embedded cluster's API server; at the end of the block it starts again, and answers."""
    folder = str(cluster.kubeconfig.parent)
    (process,) = [
        each
        for each in Path("/proc").glob("[0-9]*")
        if (command := _command(each)) and command[0].startswith(folder) and "kube-apiserver" in command[0]
    ]
    command, place = _command(process), (process / "cwd").readlink()
    os.kill(int(process.name), signal.SIGKILL)
    yield
    nothing = subprocess.DEVNULL
    subprocess.Popen(
        command, cwd=place, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
    )
    until(lambda: _is_ready(cluster), 120, "the API server to be ready again")


def _command(process: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return (process / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    return []


def _is_ready(cluster: Any) -> bool:
    with contextlib.suppress(ApiError):
        return b"".join(cluster.api.stream("/readyz")) == b"ok"
    return False
