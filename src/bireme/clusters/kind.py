"""Real nodes in containers, by kind: containers run and train, only the devices are a stand-in.

Every node that is asked for is one container with a kubelet, labelled and tainted as its instance type; the
control plane is one more. CPU and memory are those of this machine. Accelerators and EFA interfaces are
advertised without being there: the one stand-in, see KindCluster.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bireme.clusters import DEFAULT_NAME, ClusterInfo, cluster_dir, find, list_clusters, write_info
from bireme.clusters.embedded import KUBERNETES
from bireme.clusters.engine import Engine
from bireme.clusters.kind_cluster import IMAGES, POD_NETWORK, SHARED, KindCluster, containers_of, kind_name
from bireme.clusters.node_image import LOCAL, NodeImages
from bireme.clusters.nodes import CPU_TYPE, NodeShape, node_manifest, shape_of
from bireme.clusters.waiting import no_interrupts, status
from bireme.errors import BiremeError
from bireme.instances import load_instances
from bireme.labels import FAKE_LABEL
from bireme.paths import Paths

if TYPE_CHECKING:
    from rich.console import Console

    from bireme.tools import Toolbox

_UP_SECONDS = 300
_SETTLE_SECONDS = 60


class KindProvider:
    """kind clusters of one state directory, on the container engine that ``docker`` reaches.

    ``toolbox`` provides kind, and what a node image is built of where no registry has one.
    """

    name = "kind"

    def __init__(self, paths: Paths, toolbox: Toolbox, console: Console | None = None) -> None:
        self._paths = paths
        self._toolbox = toolbox
        self._console = console
        self._engine = Engine()

    def up(
        self,
        name: str = DEFAULT_NAME,
        nodes: Mapping[str, int] | None = None,
        kubernetes: str = KUBERNETES,
        fake: Mapping[str, int] | None = None,
    ) -> KindCluster:
        """Start a cluster; returns when all nodes are Ready and names resolve.

        ``nodes``: containers by type. The control plane's container is the first ``cpu`` node, for pods
        without accelerators. ``fake``: nodes without containers by type, which kwok plays; with nothing but
        those, the control plane keeps to itself, so that every pod lands on a fake. Whatever ends this early,
        an error or Ctrl-C, leaves neither containers nor networks nor files. Raises BiremeError.
        """
        folder = cluster_dir(self._paths, name)
        fakes = dict(fake or {})
        only_fakes = bool(fakes) and not nodes
        wanted = {} if only_fakes else {CPU_TYPE: 1} | dict(nodes or {})
        fakes = {CPU_TYPE: 1} | fakes if only_fakes else fakes
        instances = load_instances(self._paths)
        shapes = [shape_of(kind, instances) for kind, count in wanted.items() for _ in range(count)]
        for kind in fakes:
            shape_of(kind, instances)
        self._engine.check()
        images = NodeImages(self._paths, self._toolbox, self._engine, self._console)
        image = images.ensure(kubernetes)
        self._claim(folder, name)
        try:
            info = ClusterInfo(self.name, name, folder / "kubeconfig", None, wanted | fakes, kubernetes)
            cluster = KindCluster(info, self._paths, self._engine, self._toolbox)
            with status(
                self._console, f"Starting Kubernetes {kubernetes} in {max(1, len(shapes))} containers"
            ):
                self._create(folder, name, self._config(folder, image, shapes))
            with status(self._console, "Waiting for the nodes"):
                cluster.prepare_nodes()
            for kind, count in fakes.items():
                with status(self._console, f"Creating {count} fake nodes"):
                    cluster.add_nodes(kind, count)
            write_info(self._paths, info)
        except BaseException:
            with no_interrupts():
                self._destroy(name)
            raise
        return cluster

    def down(self, name: str = DEFAULT_NAME) -> bool:
        """Remove the cluster's containers, network and files; False when there was nothing to do.

        Also clears what a crashed ``up`` left. Raises BiremeError when there are files of the cluster but no
        engine answers.
        """
        if not cluster_dir(self._paths, name).exists() and not self._engine.answers:
            return False
        return self._destroy(name)

    def get(self, name: str = DEFAULT_NAME) -> KindCluster:
        """The running cluster ``name``. Raises BiremeError when there is none."""
        info = find(self._paths, name)
        if info is None or info.provider != self.name:
            raise BiremeError(
                f"there is no kind cluster {name}: start it with: bireme up --provider kind --name {name}"
            )
        self._engine.check()
        if not containers_of(self._engine, name, running=True):
            raise BiremeError(
                f"the cluster {name} is not running any more (was the engine restarted?): "
                f"run bireme down --name {name}, then bireme up"
            )
        return KindCluster(info, self._paths, self._engine, self._toolbox)

    def list(self) -> tuple[ClusterInfo, ...]:
        """The kind clusters of this state directory, running or not."""
        return tuple(info for info in list_clusters(self._paths) if info.provider == self.name)

    def _claim(self, folder: Path, name: str) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            if not containers_of(self._engine, name):
                return
            folder.rmdir()
        raise BiremeError(
            f"the cluster {name} is there already, or was left half made: take another --name, "
            f"or remove it with: bireme down --name {name}"
        )

    def _config(self, folder: Path, image: str, shapes: Sequence[NodeShape]) -> dict[str, Any]:
        images = self._paths.cache / "kind" / "images"
        shared = folder / "shared"
        for path in (images, shared):
            path.mkdir(parents=True, exist_ok=True)
        mounts = [
            {"hostPath": str(shared), "containerPath": SHARED},
            {"hostPath": str(images), "containerPath": IMAGES, "readOnly": True},
        ]
        control_plane, workers = shapes[:1], shapes[1:]
        return {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            # The plain plugins do, on any node image; see connect().
            "networking": {"disableDefaultCNI": True, "podSubnet": POD_NETWORK},
            "kubeadmConfigPatches": self._kubeadm_patches(image),
            "nodes": [
                {"role": role, "image": image, "extraMounts": mounts, **_identity(role, shape)}
                for role, shape in [
                    ("control-plane", control_plane[0] if control_plane else None),
                    *(("worker", shape) for shape in workers),
                ]
            ],
        }

    def _kubeadm_patches(self, image: str) -> Sequence[str]:
        patches: list[dict[str, Any]] = []
        if self._engine.has_cgroup_v1:
            patches.append({"kind": "KubeletConfiguration", "failCgroupV1": False})
        if image.startswith(f"{LOCAL}:"):
            etcd = self._toolbox.pin("etcd").version
            patches.append({"kind": "ClusterConfiguration", "etcd": {"local": {"imageTag": f"{etcd}-0"}}})
        return [yaml.safe_dump(patch) for patch in patches]

    def _create(self, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        file, log = folder / "kind.yaml", folder / "kind.log"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        command = [str(self._toolbox.path("kind")), "create", "cluster", "--name", kind_name(name)]
        command += ["--config", str(file), "--kubeconfig", str(folder / "kubeconfig"), "--retain"]
        # A network of its own, so that it can go with the cluster.
        environment = {**os.environ, "KIND_EXPERIMENTAL_DOCKER_NETWORK": kind_name(name)}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # In a session of its own: Ctrl-C is for this process, which then removes everything.
                start_new_session=True,
            )
            try:
                code = process.wait(_UP_SECONDS)
            except BaseException as error:
                with no_interrupts():
                    _stop(process)
                if isinstance(error, subprocess.TimeoutExpired):
                    raise BiremeError(f"kind was not done after {_UP_SECONDS} s: {_end_of(log)}") from error
                raise
        if code:
            raise BiremeError(f"kind could not create the cluster {name}: {_end_of(log)}")

    def _destroy(self, name: str) -> bool:
        """Remove everything of the cluster. Safe to repeat; True when there was anything."""
        folder = cluster_dir(self._paths, name)
        found = folder.exists()
        containers = containers_of(self._engine, name)
        if containers:
            self._empty(containers)
            with ThreadPoolExecutor() as pool:
                list(pool.map(partial(self._engine, "rm", "--force", "--volumes"), containers))
        self._engine.succeeds("network", "rm", kind_name(name))
        if folder.exists():
            shutil.rmtree(folder)
        return found or bool(containers)

    def _empty(self, containers: Sequence[str]) -> None:
        """Remove what pods left in the shared folder, in their own names: who runs this may not be root."""
        for container in containers:
            command = ("exec", container, "find", SHARED, "-mindepth", "1", "-delete")
            if self._engine.succeeds(*command):
                return


def _identity(role: str, shape: NodeShape | None) -> dict[str, Any]:
    """Labels and taints with which a node registers; a control plane without a shape keeps pods away."""
    if shape is None:
        return {}
    manifest = node_manifest(shape, 0, KUBERNETES)
    own = ("kubernetes.io/", FAKE_LABEL)
    labels = {key: value for key, value in manifest["metadata"]["labels"].items() if not key.startswith(own)}
    kind = "InitConfiguration" if role == "control-plane" else "JoinConfiguration"
    registration = {"kind": kind, "nodeRegistration": {"taints": manifest["spec"]["taints"]}}
    return {"labels": labels, "kubeadmConfigPatches": [yaml.safe_dump(registration)]}


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Kill kind and what it started, once the containers that are being made are there to be removed."""
    process.kill()
    process.wait()
    deadline = time.monotonic() + _SETTLE_SECONDS
    while _makes_containers(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _makes_containers(group: int) -> bool:
    """Whether a process of this group is a ``docker run``, which the engine carries out even when killed."""
    listing = subprocess.run(["ps", "-axww", "-o", "pgid=,args="], capture_output=True, text=True, check=True)
    processes = (line.split(maxsplit=3) for line in listing.stdout.splitlines())
    return any(parts[0] == str(group) and parts[2:3] == ["run"] for parts in processes)


def _end_of(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return "\n  ".join(["its last lines are", *lines[-8:]])
