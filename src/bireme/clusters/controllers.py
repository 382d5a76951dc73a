"""Runs the program of a Deployment as a local process, for a control plane that runs no containers.

It is the real program, with the arguments of the Deployment and the rights of its ServiceAccount: a chart
that has either wrong fails here as on a real cluster.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from bireme.clusters.base import Cluster
from bireme.clusters.ports import is_free, reserve
from bireme.clusters.waiting import until
from bireme.errors import BiremeError

_PORT_SECONDS = 600
_READY_SECONDS = 60
_STOP_SECONDS = 20
_TOKEN_SECONDS = 24 * 3600
_LINES_KEPT = 20


@dataclass(frozen=True)
class Controller:
    """A program that runs; ``log`` has its output."""

    process: subprocess.Popen[bytes]
    log: Path

    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self.process.poll() is not None


@contextlib.contextmanager
def running(cluster: Cluster, deployment: str, namespace: str, program: Path) -> Iterator[Controller]:
    """Run ``program`` in place of the one container of ``deployment``, while the block runs.

    The block starts when the readiness probe answers. The program listens on the container's ports, on this
    machine; a second `running` that needs one of them waits until it is free. When the program has ended by
    itself, this raises BiremeError with its last lines of output, at the end of the block at the latest.
    """
    installed = cluster.api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{deployment}")
    pod = installed["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    folder = cluster.kubeconfig.parent / "controllers" / f"{namespace}.{deployment}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    kubeconfig = folder / "kubeconfig"
    kubeconfig.touch(mode=0o600)
    token = _token(cluster, pod.get("serviceAccountName", "default"), namespace)
    kubeconfig.write_text(yaml.safe_dump(_as_bearer(cluster, token)), encoding="utf-8")
    # Started through a link in this folder, so that its command line names the cluster and `down` ends it
    # after a crash.
    link = folder / program.name
    link.symlink_to(program)
    with _ports({port["containerPort"] for port in container.get("ports", ())}):
        controller = _start(link, container, kubeconfig)
        try:
            until(lambda: _settled(controller, container), _READY_SECONDS, f"{program.name} to be ready")
            _check_alive(controller)
            yield controller
            _check_alive(controller)
        finally:
            _stop(controller.process)


def _start(link: Path, container: Mapping[str, Any], kubeconfig: Path) -> Controller:
    log = link.parent / "log"
    given = {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(link), *container.get("args", ())],
            env={**given, "KUBECONFIG": str(kubeconfig), "HOME": str(link.parent)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return Controller(process, log)


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


def _settled(controller: Controller, container: Mapping[str, Any]) -> bool:
    """Whether the readiness probe answers, or the program has ended."""
    probe = container["readinessProbe"]["httpGet"]
    named = {port.get("name"): port["containerPort"] for port in container.get("ports", ())}
    port = named.get(probe["port"], probe["port"])
    if controller.has_ended():
        return True
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{probe['path']}", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _check_alive(controller: Controller) -> None:
    if not controller.has_ended():
        return
    log, code = controller.log, controller.process.returncode
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-_LINES_KEPT:]
    what = f"the program of {log.parent.name} ended with exit code {code}; its last lines are:"
    raise BiremeError("\n  ".join([what, *lines]))


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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
