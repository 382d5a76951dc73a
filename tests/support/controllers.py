"""Runs the program of a Deployment as a local process, for a control plane that runs no containers.

It is the real program, with the arguments of the Deployment and the rights of its ServiceAccount: a chart
that has either wrong fails here as on a real cluster.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import yaml

from bireme.clusters import programs
from bireme.clusters.base import Cluster
from bireme.clusters.ports import is_free, reserve
from bireme.clusters.waiting import until
from bireme.core.errors import BiremeError

_PORT_SECONDS = 3600
_READY_SECONDS = 60
_TOKEN_SECONDS = 24 * 3600


@contextlib.contextmanager
def running(cluster: Cluster, deployment: str, namespace: str, program: Path) -> Iterator[programs.Program]:
    """Run ``program`` in place of the one container of ``deployment``, while the block runs.

    The block starts when the readiness probe answers. The program listens on the container's ports, on this
    machine; a second `running` that needs one of them waits until it is free. When the program has ended by
    itself, this raises BiremeError with its last lines of output, at the end of the block at the latest.
    """
    installed = cluster.api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{deployment}")
    pod = installed["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    folder = programs.new_folder(cluster, f"{namespace}.{deployment}")
    kubeconfig = folder / "kubeconfig"
    kubeconfig.touch(mode=0o600)
    token = _token(cluster, pod.get("serviceAccountName", "default"), namespace)
    kubeconfig.write_text(yaml.safe_dump(_as_bearer(cluster, token)), encoding="utf-8")
    given = {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}
    environment = {**given, "KUBECONFIG": str(kubeconfig)}
    with _ports({port["containerPort"] for port in container.get("ports", ())}):
        controller = programs.start(folder, program, container.get("args", ()), environment)
        try:
            controller.wait_ready(_probe(container), _READY_SECONDS)
            with _started_again(controller, environment):
                yield controller
            controller.check_alive()
        finally:
            controller.stop()


@contextlib.contextmanager
def _started_again(controller: programs.Program, environment: Mapping[str, str]) -> Iterator[None]:
    """Start a controller again that could not renew its lease in time, as a kubelet does.

    The MPI operator gives up after 5 s, for which a busy machine may stand still.
    """
    over, home = threading.Event(), {**environment, "HOME": str(controller.log.parent)}
    again = cast(Sequence[str], controller.process.args)

    def look() -> None:
        begins = 0
        while not over.wait(0.2):
            said = controller.log.read_bytes()[begins:] if controller.has_ended() else b""
            if b"Leader election stopped" in said:
                begins += len(said)
                controller.process = programs.spawn(again, home, controller.log)

    kubelet = threading.Thread(target=look, daemon=True)
    kubelet.start()
    try:
        yield
    finally:
        over.set()
        kubelet.join()


def _token(cluster: Cluster, account: str, namespace: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    answer = cluster.api.create(path, {"spec": {"expirationSeconds": _TOKEN_SECONDS}})
    return str(answer["status"]["token"])


def _as_bearer(cluster: Cluster, token: str) -> dict[str, Any]:
    """The cluster's kubeconfig with ``token`` as its only user."""
    own = yaml.safe_load(cluster.kubeconfig.read_text(encoding="utf-8"))
    current = cluster.context or own["current-context"]
    context = next(each["context"] for each in own["contexts"] if each["name"] == current)
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [each for each in own["clusters"] if each["name"] == context["cluster"]],
        "users": [{"name": "account", "user": {"token": token}}],
        "contexts": [{"name": "it", "context": {"cluster": context["cluster"], "user": "account"}}],
        "current-context": "it",
    }


def _probe(container: Mapping[str, Any]) -> str:
    """The address of the readiness probe on this machine."""
    probe = container["readinessProbe"]["httpGet"]
    named = {port.get("name"): port["containerPort"] for port in container.get("ports", ())}
    return f"http://127.0.0.1:{named.get(probe['port'], probe['port'])}{probe['path']}"


@contextlib.contextmanager
def _ports(ports: set[int]) -> Iterator[None]:
    """Reserve the TCP ports while the block runs."""
    with contextlib.ExitStack() as held:
        for port in sorted(ports):
            marker = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            until(partial(reserve, marker, port), _PORT_SECONDS, f"port {port}, which another test holds")
            if not is_free(port):
                raise BiremeError(
                    f"port {port} of this machine is in use: end the program that listens on it"
                )
        yield
