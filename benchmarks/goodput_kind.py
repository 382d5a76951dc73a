"""Where benchmarks/goodput.py trains: pods on the nodes of a kind cluster."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from figures import CONSOLE
from goodput_systems import CLAIM, WORKERS, Pods, System

from bireme.clusters.kind import KindCluster, KindProvider
from bireme.core.paths import Paths
from bireme.helm import Renderer
from bireme.plan.instances import load_instances
from bireme.testing import charts
from bireme.testing.pytest_plugin import InstalledRelease
from bireme.tools import Toolbox
from tests.kind.shell import NODE_TYPE, Shell
from tests.kind.test_torch_nodes import start
from tests.kind.training import KIND

NAMESPACE = "default"
_POWER_SECONDS = 60


class OnKind:
    """One cluster of three nodes for workers, with the controllers of the systems beside it."""

    def __init__(self, paths: Paths, toolbox: Toolbox) -> None:
        self._paths, self._toolbox = paths, toolbox
        self._cluster: KindCluster
        self._away: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()

    @property
    def runs(self) -> Path:
        """The folder on this machine of the claim that all jobs mount."""
        return self._cluster.claim_folder(CLAIM, NAMESPACE)

    def prepare(self, stack: ExitStack, systems: Sequence[System]) -> None:
        """Start the cluster, its images, its claim, and the controllers, until the stack ends."""
        provider = KindProvider(self._paths, self._toolbox, CONSOLE)
        name = f"goodput-{uuid.uuid4().hex[:4]}"
        stack.callback(provider.down, name)
        self._cluster = provider.up(name, {NODE_TYPE: WORKERS})
        build = [sys.executable, str(self._paths.hack / "images" / "build.py"), "image"]
        build += ["etcd", "python", "torch"]
        built = subprocess.run(build, stdout=subprocess.PIPE, text=True, check=True)
        self._cluster.load_image(*built.stdout.split())
        self._cluster.add_claim(CLAIM, NAMESPACE)
        wanted = [system.rival for system in systems if system.rival]
        helpers = [rival.helper.name for rival in wanted if rival.helper]
        for rival in wanted:
            if rival.name not in helpers:
                stack.enter_context(rival.running(self._cluster, self._toolbox, self._paths.state))

    @contextmanager
    def job(self, system: System, name: str) -> Iterator[Pods]:
        """A job on the cluster: a release of charts/torch-elastic, or other objects."""
        pods = _Pods(self, self._cluster, Shell(self._cluster, self._toolbox), system, name)
        if system.manifests:
            text = yaml.safe_dump_all(system.manifests(name, system.arguments(name)))
            pods.shell.kubectl("apply", "-n", NAMESPACE, "-f", "-", given=text)
            try:
                yield pods
            finally:
                pods.shell.kubectl("delete", "-n", NAMESPACE, "-f", "-", given=text)
            return
        release = InstalledRelease(
            partial(charts.request_for, self._paths, self._paths.root),
            self._toolbox,
            Renderer(self._toolbox, self._paths),
            load_instances(self._paths),
            self._cluster,
        )
        given: dict[str, Any] = {"instance": NODE_TYPE, "files": [KIND], "values": system.chart_values(name)}
        try:
            release.install("torch-elastic", name, NAMESPACE, timeout=300, **given)
            yield pods
        finally:
            if release.exists():
                release.uninstall()

    def power_off(self, worker: int) -> None:
        """Stop the node of this number, once for all jobs, and start it again after a minute."""
        node = [name for name in self._cluster.containers() if not name.endswith("-control-plane")][worker]
        with self._lock:
            if node in self._away and self._away[node].is_alive():
                return
            self._cluster.engine("kill", node)
            self._away[node] = threading.Timer(_POWER_SECONDS, start, [self._cluster, node])
            self._away[node].start()


@dataclass(frozen=True)
class _Pods:
    stage: OnKind
    cluster: KindCluster
    shell: Shell
    system: System
    name: str

    def address(self, worker: int) -> str:
        pod = self._pod(worker)
        return str(pod["status"]["podIP"]) if pod else ""

    def send(self, signal: str, worker: int, pid: int) -> None:
        if pod := self._pod(worker):
            kill = ("--", "sh", "-c", f"kill -{signal} {pid}")
            self.shell.attempt("exec", "-n", NAMESPACE, pod["metadata"]["name"], *kill)

    def delete(self, worker: int) -> None:
        if pod := self._pod(worker):
            self._delete(pod)

    def power_off(self, worker: int) -> None:
        self.stage.power_off(worker)

    def etcd_away(self) -> None:
        for pod in self._pods(f"app.kubernetes.io/component=member,app.kubernetes.io/instance={self.name}"):
            self._delete(pod)

    def words(self) -> str:
        return self.shell.logs(self.system.label.format(name=self.name), NAMESPACE)

    def _delete(self, pod: dict[str, Any]) -> None:
        self.cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}")

    def _pod(self, worker: int) -> dict[str, Any] | None:
        for pod in self._pods(self.system.label.format(name=self.name)):
            meta = pod["metadata"]
            running = pod["status"]["phase"] == "Running" and "deletionTimestamp" not in meta
            if running and meta["labels"].get(self.system.index) == str(worker):
                return pod
        return None

    def _pods(self, selector: str) -> list[dict[str, Any]]:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        found: list[dict[str, Any]] = self.cluster.api.get(path, labelSelector=selector)["items"]
        return found
