"""A real API server, scheduler and controllers as plain processes, with fake nodes; no containers, no root.

kwokctl starts the processes and kwok plays the kubelets, by the rules in stages.yaml. The nodes and
whatever runs on them are stand-ins for hardware that is not here; all else is Kubernetes itself.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bireme.clusters import (
    DEFAULT_NAME,
    ClusterInfo,
    cluster_dir,
    find,
    list_clusters,
    write_info,
)
from bireme.clusters.api import Api, ApiError
from bireme.clusters.nodes import CPU_TYPE, FAKE_LABEL, NODE_TYPE_LABEL, NodeShape, node_manifest, shape_of
from bireme.errors import BiremeError
from bireme.instances import load_instances
from bireme.paths import Paths

if TYPE_CHECKING:
    from rich.console import Console

    from bireme.tools import Toolbox

KUBERNETES = "1.36.3"
STORAGE_CLASS = "fake"
EXIT_CODE_ANNOTATION = "bireme.dev/exit-code"
OUT_OF_SERVICE_TAINT = {
    "key": "node.kubernetes.io/out-of-service",
    "value": "nodeshutdown",
    "effect": "NoExecute",
}
# The label that takes a node out of kwok's hands: from then on nobody answers for it.
CUT_LABEL = "bireme.dev/cut"

_COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
_PORT_OPTIONS = (
    "etcdPort",
    "etcdPeerPort",
    "kubeApiserverPort",
    "kubeControllerManagerPort",
    "kubeSchedulerPort",
    "kwokControllerPort",
)
# Below the range from which the kernel takes the ports of outgoing connections.
_PORT_RANGE = range(10_000, 32_000)
# With more nodes than this every heartbeat, and what waits for one, gets slower in proportion: a thousand
# leases renewed every ten seconds would keep a small machine busy by themselves.
_NODES_AT_FULL_PULSE = 200
_UP_SECONDS = 120
_NODES_SECONDS = 180
_END_SECONDS = 15


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
        name: str = DEFAULT_NAME,
        nodes: Mapping[str, int] | None = None,
        kubernetes: str = KUBERNETES,
    ) -> EmbeddedCluster:
        """Start a control plane and create the fake nodes; returns when all of them are Ready.

        ``nodes``: number by type, to which one CPU node is added when none is asked for, so that pods
        without accelerators have a place; ``kubernetes``: version of the control plane. Whatever ends
        this early, an error or Ctrl-C, leaves neither processes nor files. Raises BiremeError.
        """
        folder = cluster_dir(self._paths, name)
        wanted = {CPU_TYPE: 1} | dict(nodes or {})
        instances = load_instances(self._paths)
        shapes = {kind: shape_of(kind, instances) for kind in wanted}
        binaries = self._binaries(kubernetes)
        self._claim(folder, name)
        try:
            with self._status(f"Starting Kubernetes {kubernetes}"):
                _start(folder, name, kubernetes, sum(wanted.values()), binaries)
            info = ClusterInfo(self.name, name, folder / "kubeconfig", None, wanted, kubernetes)
            cluster = EmbeddedCluster(info, self._paths)
            with self._status(f"Creating {sum(wanted.values())} nodes"):
                cluster.prepare([(shapes[kind], count) for kind, count in wanted.items()])
            write_info(self._paths, info)
        except BaseException:
            with _no_interrupts():
                _destroy(folder)
            raise
        return cluster

    def down(self, name: str = DEFAULT_NAME) -> bool:
        """Stop the cluster's processes and remove its directory; False when there was nothing to do.

        Also clears what a crashed ``up`` left. Raises BiremeError when a process is another user's.
        """
        return _destroy(cluster_dir(self._paths, name))

    def get(self, name: str = DEFAULT_NAME) -> EmbeddedCluster:
        """The running cluster ``name``. Raises BiremeError when there is none."""
        info = find(self._paths, name)
        if info is None or info.provider != self.name:
            raise BiremeError(f"there is no embedded cluster {name}: start it with: bireme up --name {name}")
        if not _processes(cluster_dir(self._paths, name)):
            raise BiremeError(
                f"the cluster {name} is not running any more (was the machine restarted?): "
                f"run bireme down --name {name}, then bireme up"
            )
        return EmbeddedCluster(info, self._paths)

    def list(self) -> tuple[ClusterInfo, ...]:
        """The embedded clusters of this state directory, running or not."""
        return tuple(info for info in list_clusters(self._paths) if info.provider == self.name)

    def _claim(self, folder: Path, name: str) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            state = "is up already" if _processes(folder) else "was left half made"
            raise BiremeError(
                f"the cluster {name} {state}: take another --name, "
                f"or remove it with: bireme down --name {name}"
            ) from None

    def _binaries(self, kubernetes: str) -> Mapping[str, Path]:
        control_plane = [name for name in _COMPONENTS if name.startswith("kube-")]
        found = {name: self._toolbox.path(name, version=kubernetes) for name in control_plane}
        return found | {name: self._toolbox.path(name) for name in ("etcd", "kwok", "kwokctl", "kubectl")}

    @contextlib.contextmanager
    def _status(self, text: str) -> Iterator[None]:
        if self._console is None:
            yield
            return
        with self._console.status(text):
            yield


@dataclass(frozen=True)
class EmbeddedCluster:
    """A running embedded cluster, and the things that happen to real ones, on demand."""

    info: ClusterInfo
    paths: Paths

    @property
    def name(self) -> str:
        """Its name, unique among the clusters of one state directory."""
        return self.info.name

    @property
    def provider(self) -> str:
        """``embedded``."""
        return self.info.provider

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig of its own, with one context."""
        return self.info.kubeconfig

    @property
    def context(self) -> str | None:
        """None: the current context of that file."""
        return self.info.context

    @property
    def nodes(self) -> Mapping[str, int]:
        """Number of nodes by type that are there now. Raises BiremeError."""
        nodes = self.api.get("/api/v1/nodes")["items"]
        return dict(Counter(node["metadata"]["labels"][NODE_TYPE_LABEL] for node in nodes))

    @cached_property
    def api(self) -> Api:
        """Its API server."""
        return Api(self.kubeconfig, self.context)

    def prepare(self, nodes: Sequence[tuple[NodeShape, int]]) -> None:
        """Create the stand-in storage class and the nodes of a fresh cluster; returns when all are Ready."""
        self.api.create("/apis/storage.k8s.io/v1/storageclasses", _storage_class())
        self._create([(shape, index) for shape, count in nodes for index in range(count)])

    def add_nodes(self, kind: str, count: int) -> tuple[str, ...]:
        """Add ``count`` nodes of an instance type (or ``cpu``); their names, once they are Ready."""
        shape = shape_of(kind, load_instances(self.paths))
        taken = {node["metadata"]["name"] for node in self.api.get("/api/v1/nodes")["items"]}
        free = [index for index in range(len(taken) + count) if shape.node_name(index) not in taken][:count]
        self._create([(shape, index) for index in free])
        return tuple(shape.node_name(index) for index in free)

    def remove_node(self, node: str) -> None:
        """Delete a Node, as the cloud controller does when the instance behind it is gone."""
        self._node(node)
        self.api.delete(f"/api/v1/nodes/{node}")

    def cut_node(self, node: str) -> None:
        """Make a node unreachable: its heartbeat stops, and nothing on it starts or ends any more.

        The node lifecycle controller taints it after its grace period; its pods stay Terminating until
        ``taint_out_of_service``.
        """
        self._node(node)
        self.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {CUT_LABEL: "true"}}})

    def taint_out_of_service(self, node: str) -> None:
        """Declare a node lost for good, so that its pods are removed and replaced.

        What an operator does by ``kubectl taint node NODE node.kubernetes.io/out-of-service=…:NoExecute``.
        """
        taints = self._node(node)["spec"].get("taints", [])
        others = [taint for taint in taints if taint["key"] != OUT_OF_SERVICE_TAINT["key"]]
        self.api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [*others, OUT_OF_SERVICE_TAINT]}})

    def complete(self, pod: str, namespace: str = "default") -> None:
        """Let every container of a running pod end with exit code 0; returns when it has."""
        self._end(pod, namespace, 0)

    def fail(self, pod: str, exit_code: int = 1, namespace: str = "default") -> None:
        """Let every container of a running pod end with ``exit_code`` (1 to 255); returns when it has."""
        if not 1 <= exit_code <= 255:
            raise BiremeError(f"exit code {exit_code} of {pod}: a failed container has one of 1 to 255")
        self._end(pod, namespace, exit_code)

    def add_claim(self, claim: str, namespace: str = "default", size: str = "1Ti") -> None:
        """Create a PersistentVolumeClaim that many nodes can share, on storage that does not exist.

        A stand-in for the FSx and EFS claims that workloads name; one that is there stays as it is.
        """
        self._create_missing("/api/v1/namespaces", {"metadata": {"name": namespace}})
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        self._create_missing(path, _claim(claim, size))

    def _create_missing(self, path: str, body: Mapping[str, Any]) -> None:
        try:
            self.api.create(path, body)
        except ApiError as error:
            if error.status != 409:
                raise

    def _node(self, node: str) -> dict[str, Any]:
        found = self.api.find(f"/api/v1/nodes/{node}")
        if found is None:
            raise BiremeError(f"the cluster {self.name} has no node {node}: see kubectl get nodes")
        return found

    def _create(self, wanted: Sequence[tuple[NodeShape, int]]) -> None:
        bodies = [node_manifest(shape, index, self.info.kubernetes) for shape, index in wanted]
        self.api.each(lambda body: self.api.create("/api/v1/nodes", body), bodies)
        names = {body["metadata"]["name"] for body in bodies}
        _until(lambda: names <= self._ready_nodes(), _NODES_SECONDS, f"{len(names)} nodes to be Ready")

    def _ready_nodes(self) -> set[str]:
        nodes = self.api.get("/api/v1/nodes", resourceVersion="0")["items"]
        return {node["metadata"]["name"] for node in nodes if _schedulable(node)}

    def _end(self, pod: str, namespace: str, exit_code: int) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
        found = self.api.find(path)
        if found is None:
            raise BiremeError(f"there is no pod {pod} in namespace {namespace}: see kubectl get pods")
        policy = found["spec"].get("restartPolicy")
        phase = found["status"].get("phase")
        if policy != "Never" or phase != "Running":
            raise BiremeError(
                f"the pod {pod} cannot end on demand: it is {phase} with restartPolicy {policy}, "
                "and only a Running one that is never restarted ends for good"
            )
        self.api.patch(path, {"metadata": {"annotations": {EXIT_CODE_ANNOTATION: str(exit_code)}}})
        _until(lambda: self._has_ended(path), _END_SECONDS, f"the pod {pod} to end")

    def _has_ended(self, path: str) -> bool:
        pod = self.api.find(path)
        return pod is None or pod["status"].get("phase") in ("Succeeded", "Failed")


def _schedulable(node: Mapping[str, Any]) -> bool:
    conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", [])}
    taints = {taint["key"] for taint in node["spec"].get("taints", [])}
    return conditions.get("Ready") == "True" and "node.kubernetes.io/not-ready" not in taints


def _storage_class() -> dict[str, Any]:
    return {
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "bireme.dev/fake",
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    }


def _claim(name: str, size: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": STORAGE_CLASS,
            "resources": {"requests": {"storage": size}},
        },
    }


# --- processes -------------------------------------------------------------------------------------------


def _start(folder: Path, name: str, kubernetes: str, nodes: int, binaries: Mapping[str, Path]) -> None:
    """Run the control plane out of ``folder``; returns when its API server answers."""
    work = folder / "kwok"
    work.mkdir()
    # From here, so that its command line names the cluster and `down` finds it after a crash.
    kwokctl = work / "kwokctl"
    kwokctl.symlink_to(binaries["kwokctl"])
    with _reserved_ports(len(_PORT_OPTIONS)) as ports:
        named_ports = dict(zip(_PORT_OPTIONS, ports, strict=True))
        config = _kwok_config(kubernetes, nodes, binaries, named_ports)
        (work / "kwok.yaml").write_text(config, encoding="utf-8")
        command = [
            str(kwokctl),
            "--name",
            name,
            "create",
            "cluster",
            "--kubeconfig",
            str(folder / "kubeconfig"),
        ]
        environment = _environment(work, binaries)
        _run_kwokctl(command, environment, folder)
    _check_components(work / "clusters" / name)


def _environment(work: Path, binaries: Mapping[str, Path]) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("KWOK_")}
    search = os.pathsep.join([str(binaries["kubectl"].parent), inherited.get("PATH", os.defpath)])
    return inherited | {"KWOK_WORKDIR": str(work), "PATH": search}


def _run_kwokctl(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
    log = folder / "kwokctl.log"
    # In a session of its own: Ctrl-C is for this process, which then stops all the others.
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as process,
    ):
        try:
            code = process.wait(_UP_SECONDS)
        except BaseException as error:
            process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                raise BiremeError(_failure(f"was not up after {_UP_SECONDS} s", folder)) from error
            raise
    if code:
        raise BiremeError(_failure(f"did not start (kwokctl exited with {code})", folder))


def _failure(what: str, folder: Path) -> str:
    logs = [folder / "kwokctl.log", *sorted(folder.glob("kwok/clusters/*/logs/*.log"))]
    ends = [f"{log.stem}: {_last_line(log)}" for log in logs if _last_line(log)]
    return "\n  ".join([f"the embedded control plane {what}; the last lines of its logs:", *ends])


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1][:400] if lines else ""


def _check_components(folder: Path) -> None:
    """Raise BiremeError when a component has ended already, for example for want of its port."""
    running = {Path(program).name for _, program in _processes(folder)}
    missing = [name for name in _COMPONENTS if name not in {_component(name) for name in running}]
    if missing:
        raise BiremeError(_failure(f"lost {', '.join(missing)}", folder.parents[2]))


def _component(program: str) -> str:
    return "kwok" if program == "kwok-controller" else program


def _kwok_config(kubernetes: str, nodes: int, binaries: Mapping[str, Path], ports: Mapping[str, int]) -> str:
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
        # What Kubernetes itself waits for a silent node; kwokctl's own default is shorter.
        "kubeControllerManagerNodeMonitorGracePeriodMilliseconds": 50_000,
        "heartbeatFactor": max(1, nodes // _NODES_AT_FULL_PULSE),
    }
    patches = [
        # The data outlives neither the cluster nor the machine, so it need not reach the disk.
        _extra_args("etcd", {"unsafe-no-fsync": "true"}),
        _extra_args(
            "kwok-controller",
            {
                "manage-all-nodes": "false",
                "manage-nodes-with-label-selector": f"{FAKE_LABEL}=true,!{CUT_LABEL}",
            },
        ),
    ]
    kwokctl = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokctlConfiguration",
        "options": options | dict(ports) | {key: str(binaries[name]) for key, name in tools.items()},
        "componentsPatches": patches,
    }
    kwok = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            "cidr": "10.0.0.0/16",
            "podPlayStageParallelism": 16,
            "nodePlayStageParallelism": 16,
            "nodeLeaseParallelism": 16,
            "podsOnNodeSyncParallelism": 4,
        },
    }
    stages = resources.files("bireme.clusters").joinpath("stages.yaml").read_text(encoding="utf-8")
    return "---\n".join([yaml.safe_dump(kwokctl), yaml.safe_dump(kwok), stages])


def _extra_args(component: str, args: Mapping[str, str]) -> dict[str, Any]:
    return {"name": component, "extraArgs": [{"key": key, "value": value} for key, value in args.items()]}


@contextlib.contextmanager
def _reserved_ports(count: int) -> Iterator[list[int]]:
    """Free TCP ports that no other ``up`` on this machine is given meanwhile.

    The UDP port of the same number is the reservation: it is in nobody's way, and the kernel gives it
    back however this process ends.
    """
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        for port in random.sample(_PORT_RANGE, k=2000):
            if len(ports) == count:
                break
            marker = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            if _binds(marker, port) and _is_free(port):
                ports.append(port)
        if len(ports) < count:
            raise BiremeError(f"no {count} free TCP ports in {_PORT_RANGE.start}-{_PORT_RANGE.stop}")
        yield ports


def _binds(marker: socket.socket, port: int) -> bool:
    try:
        marker.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connection is still winding down is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _binds(probe, port)


def _processes(folder: Path) -> list[tuple[int, str]]:
    """Process number and program of what was started out of ``folder``."""
    own = f"{folder}{os.sep}"
    return [(pid, program) for pid, program in _all_processes() if program.startswith(own)]


def _all_processes() -> Iterator[tuple[int, str]]:
    proc = Path("/proc")
    if (proc / "self" / "cmdline").exists():
        for entry in proc.iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    yield (
                        int(entry.name),
                        (entry / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace"),
                    )
        return
    listing = subprocess.run(["ps", "-axww", "-o", "pid=,args="], capture_output=True, text=True, check=True)
    for line in listing.stdout.splitlines():
        pid, _, program = line.strip().partition(" ")
        yield int(pid), program.strip()


def _destroy(folder: Path) -> bool:
    """End every process of the cluster and remove its directory. Safe to repeat; True when there was any."""
    found = folder.exists()
    # Again and again until none is left: one that was starting another may have done so meanwhile.
    while running := _processes(folder):
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


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back meanwhile: impatience must not leave half of the cluster behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _until(done: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise BiremeError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.1)
