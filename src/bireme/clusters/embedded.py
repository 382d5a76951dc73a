"""A real API server, scheduler and controllers as plain processes, with fake nodes; no containers, no root.

kwokctl starts the processes, and kwok simulates the kubelets by the rules in kwok.yaml. The nodes and
their pods are simulated; everything else is Kubernetes itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from bireme.clusters.api import ApiError
from bireme.clusters.base import ClusterInfo
from bireme.clusters.fakes import MANAGED_NODES, FakeNodes, kwok_config
from bireme.clusters.ports import reserved
from bireme.clusters.programs import last_lines, run_alone, spawn
from bireme.clusters.state import claim, cluster_dir, made_by, write_info
from bireme.clusters.waiting import no_interrupts
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.core.progress import step
from bireme.plan.instances import CPU_TYPE, instance_of, load_instances
from bireme.tools import Toolbox

# Those after the API server give up at their start when it is slow to answer.
_CLIENTS = ("kube-controller-manager", "kube-scheduler", "kwok-controller")
_COMPONENTS = ("etcd", "kube-apiserver", *_CLIENTS)
_STARTS_AGAIN = 3
_STARTED_AGAIN = "bireme: started again\n"
_PORT_OPTIONS = (
    "etcdPort",
    "etcdPeerPort",
    "kubeApiserverPort",
    "kubeControllerManagerPort",
    "kubeSchedulerPort",
    "kwokControllerPort",
)
# Beyond this number of nodes, heartbeats are slowed down in proportion: renewing a thousand leases every
# ten seconds would take all the CPU of a small machine.
_NODES_AT_FULL_HEARTBEAT = 200
_UP_SECONDS = 120


class EmbeddedProvider:
    """Embedded clusters of one state directory.

    ``toolbox`` provides every binary; nothing is downloaded by kwokctl, and ~/.kube is not touched.
    """

    name = "embedded"

    def __init__(self, paths: Paths, toolbox: Toolbox, console: Console | None = None) -> None:
        self._paths = paths
        self._toolbox = toolbox
        self._console = console

    def up(
        self,
        name: str,
        nodes: Mapping[str, int] | None = None,
        kubernetes: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> EmbeddedCluster:
        """Start a control plane and create the fake nodes; returns when all of them are Ready.

        ``nodes``: number by type; one CPU node is added when none is asked for, for pods without
        accelerators. ``kubernetes``: version of the control plane, by default the first that hack/tools
        pins. ``options``: further ones of kwokctl, such as kubeFeatureGates. When an error or Ctrl-C ends
        this early, neither processes nor files stay. Raises BiremeError.
        """
        kubernetes = kubernetes or self._toolbox.pin("kube-apiserver").version
        folder = cluster_dir(self._paths, name)
        wanted = {CPU_TYPE: 1} | dict(nodes or {})
        instances = load_instances(self._paths)
        nodes_of = [(instance_of(node_type, instances), count) for node_type, count in wanted.items()]
        binaries = self._binaries(kubernetes)
        claim(folder)
        try:
            with step(self._console, f"Starting Kubernetes {kubernetes}"):
                _start(folder, name, kubernetes, sum(wanted.values()), binaries, options or {})
            info = ClusterInfo(self.name, name, folder / "kubeconfig", None, wanted, kubernetes)
            cluster = EmbeddedCluster.of(info, self._paths)
            with step(self._console, f"Creating {sum(wanted.values())} nodes"):
                cluster.prepare(nodes_of)
            write_info(self._paths, info)
        except BaseException:
            with no_interrupts():
                _destroy(folder)
            raise
        return cluster

    def down(self, name: str) -> bool:
        """Stop the cluster's processes and remove its directory; False when there was nothing to do.

        Also clears what a crashed ``up`` left. Raises BiremeError when a process is another user's.
        """
        return _destroy(cluster_dir(self._paths, name))

    def get(self, name: str) -> EmbeddedCluster:
        """The running cluster ``name``. Raises BiremeError when there is none."""
        info = made_by(self._paths, self.name, name)
        lost = _lost_components(cluster_dir(self._paths, name))
        if lost:
            raise BiremeError(
                f"the cluster {name} is not running any more, it has lost {', '.join(lost)} "
                f"(was the machine restarted?): run bireme down --cluster {name}, then bireme up"
            )
        return EmbeddedCluster.of(info, self._paths)

    def _binaries(self, kubernetes: str) -> Mapping[str, Path]:
        control_plane = [name for name in _COMPONENTS if name.startswith("kube-")]
        found = {name: self._toolbox.path(name, version=kubernetes) for name in control_plane}
        return found | {name: self._toolbox.path(name) for name in ("etcd", "kwok", "kwokctl", "kubectl")}


@dataclass(frozen=True)
class EmbeddedCluster(FakeNodes):
    """A running embedded cluster: every node of it is a fake."""

    def _is_ready(self) -> bool:
        try:
            return b"".join(self.api.stream("/readyz")) == b"ok"
        except ApiError:
            return False

    def _runs(self) -> bool:
        folder = cluster_dir(self.paths, self.name)
        lost = _lost_components(folder)
        ends = [end for name in lost if (end := _end_for_good(folder, name))]
        if ends:
            raise BiremeError(f"in the embedded control plane {'; '.join(ends)}")
        if lost and self._is_ready():
            for name in lost:
                _start_again(folder, name)
        return not lost


# --- processes -------------------------------------------------------------------------------------------


def _start(
    folder: Path,
    name: str,
    kubernetes: str,
    nodes: int,
    binaries: Mapping[str, Path],
    further: Mapping[str, str],
) -> None:
    """Run the control plane from ``folder``; returns when its API server answers."""
    work = folder / "kwok"
    work.mkdir()
    # Started through links in this folder, so that their command lines name the cluster and `down` finds
    # them after a crash.
    for tool in ("kwokctl", "kubectl"):
        (work / tool).symlink_to(binaries[tool])
    with reserved(len(_PORT_OPTIONS)) as ports:
        named_ports = dict(zip(_PORT_OPTIONS, ports, strict=True))
        config = _kwok_config(kubernetes, nodes, binaries, {**named_ports, **further})
        (work / "kwok.yaml").write_text(config, encoding="utf-8")
        command = [str(work / "kwokctl"), "--name", name, "create", "cluster"]
        command += ["--kubeconfig", str(folder / "kubeconfig")]
        code = run_alone(command, _environment(work), folder / "kwokctl.log", _UP_SECONDS)
    if code is None:
        raise BiremeError(_failure(f"was not up after {_UP_SECONDS} s", folder))
    if code:
        raise BiremeError(_failure(f"did not start (kwokctl exited with {code})", folder))


def _environment(work: Path) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("KWOK_")}
    search = os.pathsep.join([str(work), inherited.get("PATH", os.defpath)])
    # By Go's defaults, garbage collection takes a quarter of an API server's CPU for large definitions.
    memory = {"GOGC": "400", "GOMEMLIMIT": "1GiB"}
    return memory | inherited | {"KWOK_WORKDIR": str(work), "PATH": search}


def _failure(what: str, folder: Path) -> str:
    logs = [folder / "kwokctl.log", *sorted(folder.glob("kwok/clusters/*/logs/*.log"))]
    ends = [f"{log.stem}: {line[:400]}" for log in logs for line in last_lines(log, 1)]
    return "\n  ".join([f"the embedded control plane {what}; the last lines of its logs:", *ends])


def _lost_components(folder: Path) -> list[str]:
    """The components that do not run (any more), for example for lack of a port."""
    running = {Path(program).name for _, program in _processes(folder)}
    return [name for name in _COMPONENTS if name not in running]


def _end_for_good(folder: Path, name: str) -> str:
    """How a component has ended; empty if it may start again. The log goes with the cluster."""
    log = _log(folder, name)
    if name in _CLIENTS and log.read_text(errors="replace").count(_STARTED_AGAIN) < _STARTS_AGAIN:
        return ""
    return f"{name} has ended; its log ends with: {''.join(last_lines(log, 1))[:400]}"


def _start_again(folder: Path, name: str) -> None:
    """Start a component as kwokctl did."""
    (config,) = folder.glob("kwok/clusters/*/kwok.yaml")
    documents = yaml.safe_load_all(config.read_text(encoding="utf-8"))
    components = [each for document in documents for each in document.get("components", ())]
    (component,) = [each for each in components if each["name"] == name]
    log = _log(folder, name)
    with log.open("a", encoding="utf-8") as output:
        output.write(_STARTED_AGAIN)
    spawn([component["binary"], *component["args"]], os.environ, log, component["workDir"])


def _log(folder: Path, name: str) -> Path:
    (logs,) = folder.glob("kwok/clusters/*/logs")
    return logs / f"{name}.log"


def _kwok_config(
    kubernetes: str, nodes: int, binaries: Mapping[str, Path], further: Mapping[str, int | str]
) -> str:
    """kwokctl's configuration and kwok's stages, as one YAML file."""
    tools = {
        "kubeApiserverBinary": "kube-apiserver",
        "kubeControllerManagerBinary": "kube-controller-manager",
        "kubeSchedulerBinary": "kube-scheduler",
        "etcdBinary": "etcd",
        "kwokControllerBinary": "kwok",
        "kubectlBinary": "kubectl",
    }
    options: dict[str, Any] = {
        "runtime": "binary",
        "kubeVersion": f"v{kubernetes}",
        "bindAddress": "127.0.0.1",
        "disableQPSLimits": True,
        # How long Kubernetes waits by default for a silent node; kwokctl's default is shorter.
        "kubeControllerManagerNodeMonitorGracePeriodMilliseconds": 50_000,
        "heartbeatFactor": max(1, nodes // _NODES_AT_FULL_HEARTBEAT),
    }
    patches = [
        # The data is deleted with the cluster, so it does not have to survive a crash.
        _extra_args("etcd", {"unsafe-no-fsync": "true"}),
        # There is one of each. With leader election, one that cannot renew its lease on a busy machine exits.
        _extra_args("kube-controller-manager", {"leader-elect": "false"}),
        _extra_args("kube-scheduler", {"leader-elect": "false"}),
        _extra_args(
            "kwok-controller",
            {"manage-all-nodes": "false", "manage-nodes-with-label-selector": MANAGED_NODES},
        ),
    ]
    kwokctl = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokctlConfiguration",
        "options": options | dict(further) | {key: str(binaries[name]) for key, name in tools.items()},
        "componentsPatches": patches,
    }
    return "---\n".join([yaml.safe_dump(kwokctl), kwok_config()])


def _extra_args(component: str, args: Mapping[str, str]) -> dict[str, Any]:
    return {"name": component, "extraArgs": [{"key": key, "value": value} for key, value in args.items()]}


def _processes(folder: Path) -> Iterator[tuple[int, str]]:
    """Process number and program of each process that was started from ``folder``."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            program = (entry / "cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
            if program.startswith(f"{folder}{os.sep}"):
                yield int(entry.name), program


def _destroy(folder: Path) -> bool:
    """End every process of the cluster and remove its directory. Safe to repeat; True when there was any."""
    found = folder.exists()
    # Repeated until none is left: a process may start another one before it is killed.
    while running := list(_processes(folder)):
        found = True
        for pid, program in running:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            except PermissionError as error:
                raise BiremeError(
                    f"process {pid} ({program}) belongs to another user: let them run bireme down"
                ) from error
        time.sleep(0.02)
    if folder.exists():
        shutil.rmtree(folder)
    return found
