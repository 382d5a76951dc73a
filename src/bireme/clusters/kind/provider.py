"""Makes and removes kind clusters: Kubernetes nodes in containers, on which training really runs.

Each node is a container with a kubelet, with the labels and taints of its instance type; the control plane is
one more. CPU and memory are those of this machine. Only accelerators and EFA interfaces are simulated:
the nodes advertise them, but there are no devices; see KindCluster.
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
from typing import Any

import yaml
from rich.console import Console

from bireme.clusters.base import ClusterInfo
from bireme.clusters.kind.cluster import IMAGES, POD_NETWORKS, SHARED, KindCluster, containers_of, kind_name
from bireme.clusters.kind.engine import Engine
from bireme.clusters.kind.node_image import LOCAL, NodeImages
from bireme.clusters.nodes import node_manifest
from bireme.clusters.programs import last_lines, run_alone
from bireme.clusters.state import claim, cluster_dir, made_by, write_info
from bireme.clusters.waiting import no_interrupts
from bireme.core.errors import BiremeError
from bireme.core.labels import FAKE_LABEL
from bireme.core.paths import Paths
from bireme.core.progress import step
from bireme.plan.instances import CPU_TYPE, Instance, instance_of, load_instances
from bireme.tools import Toolbox

_UP_SECONDS = 300
_REGISTRIES = """\
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "/etc/containerd/certs.d"
"""
_SETTLE_SECONDS = 60


class KindProvider:
    """kind clusters of one state directory, on the container engine that ``docker`` reaches.

    ``toolbox`` provides kind, and the parts of the node image where no registry answers.
    """

    name = "kind"

    def __init__(self, paths: Paths, toolbox: Toolbox, console: Console | None = None) -> None:
        self._paths = paths
        self._toolbox = toolbox
        self._console = console
        self._engine = Engine()

    def up(
        self,
        name: str,
        nodes: Mapping[str, int] | None = None,
        kubernetes: str | None = None,
        fake: Mapping[str, int] | None = None,
        ip_family: str = "ipv4",
    ) -> KindCluster:
        """Start a cluster; returns when all nodes are Ready and names resolve.

        ``nodes``: number of containers by type. The control plane's container is the first ``cpu`` node, for
        pods without accelerators. ``fake``: number of nodes by type that kwok simulates; when all nodes are
        fake, the control plane takes no pods, so that every pod is placed on a fake node. Pods and Services
        have addresses of ``ip_family``, ipv4 or ipv6. When an error or Ctrl-C ends this early, no containers,
        networks or files stay. Raises BiremeError.
        """
        kubernetes = kubernetes or self._toolbox.pin("kube-apiserver").version
        folder = cluster_dir(self._paths, name)
        fakes = dict(fake or {})
        only_fakes = bool(fakes) and not nodes
        wanted = {} if only_fakes else {CPU_TYPE: 1} | dict(nodes or {})
        fakes = {CPU_TYPE: 1} | fakes if only_fakes else fakes
        instances = load_instances(self._paths)
        types = [instance_of(each, instances) for each, count in wanted.items() for _ in range(count)]
        for node_type in fakes:
            instance_of(node_type, instances)  # refuses an unknown type before anything is made
        self._engine.check()
        images = NodeImages(self._paths, self._toolbox, self._engine, self._console)
        image = images.ensure(kubernetes)
        claim(folder, is_there=bool(containers_of(self._engine, name)))
        try:
            info = ClusterInfo(self.name, name, folder / "kubeconfig", None, wanted | fakes, kubernetes)
            cluster = KindCluster.of(info, self._paths, self._engine, self._toolbox)
            with step(self._console, f"Starting Kubernetes {kubernetes} in {max(1, len(types))} containers"):
                self._create(folder, name, self._config(folder, image, types, kubernetes, ip_family))
            with step(self._console, "Waiting for the nodes"):
                cluster.prepare_nodes()
            for node_type, count in fakes.items():
                with step(self._console, f"Creating {count} fake nodes"):
                    cluster.add_nodes(node_type, count)
            write_info(self._paths, info)
        except BaseException:
            with no_interrupts():
                self._destroy(name)
            raise
        return cluster

    def down(self, name: str) -> bool:
        """Remove the cluster's containers, network and files; False when there was nothing to do.

        Also clears what a crashed ``up`` left. Raises BiremeError when there are files of the cluster but no
        engine answers.
        """
        if not cluster_dir(self._paths, name).exists() and not self._engine.answers:
            return False
        return self._destroy(name)

    def get(self, name: str) -> KindCluster:
        """The running cluster ``name``. Raises BiremeError when there is none."""
        info = made_by(self._paths, self.name, name)
        self._engine.check()
        if not containers_of(self._engine, name, running=True):
            raise BiremeError(
                f"the cluster {name} is not running any more (was the engine restarted?): "
                f"run bireme down --cluster {name}, then bireme up"
            )
        return KindCluster.of(info, self._paths, self._engine, self._toolbox)

    def _config(
        self, folder: Path, image: str, types: Sequence[Instance], kubernetes: str, ip_family: str
    ) -> dict[str, Any]:
        images = self._paths.cache / "kind" / "images"
        shared = folder / "shared"
        for path in (images, shared):
            path.mkdir(parents=True, exist_ok=True)
        mounts = [
            {"hostPath": str(shared), "containerPath": SHARED},
            {"hostPath": str(images), "containerPath": IMAGES, "readOnly": True},
        ]
        control_plane, workers = types[:1], types[1:]
        nodes = [
            {"role": role, "image": image, "extraMounts": mounts, **_registration(role, instance, kubernetes)}
            for role, instance in [
                ("control-plane", control_plane[0] if control_plane else None),
                *(("worker", instance) for instance in workers),
            ]
        ]
        if not workers:
            # kind itself then lets pods onto the control plane, and fails if it needs not.
            nodes[0].pop("kubeadmConfigPatches", None)
        return {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            # KindCluster configures the plain CNI plugins instead, which every node image has.
            "networking": {
                "disableDefaultCNI": True,
                "ipFamily": ip_family,
                "podSubnet": POD_NETWORKS[ip_family],
            },
            "kubeadmConfigPatches": self._kubeadm_patches(image),
            # Registries of one's own: files below this folder of a node.
            "containerdConfigPatches": [_REGISTRIES],
            "nodes": nodes,
        }

    def _kubeadm_patches(self, image: str) -> Sequence[str]:
        patches: list[dict[str, Any]] = []
        if self._engine.cgroups == "1":
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
        # One network per cluster, which is removed with it.
        environment = {**os.environ, "KIND_EXPERIMENTAL_DOCKER_NETWORK": kind_name(name)}
        code = run_alone(command, environment, log, _UP_SECONDS, _stop)
        if code != 0:
            what = f"not done after {_UP_SECONDS} s" if code is None else f"exit code {code}"
            said = [f"kind could not create the cluster {name}: {what}, its last lines are"]
            raise BiremeError("\n  ".join([*said, *last_lines(log, 8)]))

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
        """Empty the shared folder from within a container, because its files belong to the users of pods."""
        for container in containers:
            command = ("exec", container, "find", SHARED, "-mindepth", "1", "-delete")
            if self._engine.succeeds(*command):
                return


def _registration(role: str, instance: Instance | None, kubernetes: str) -> dict[str, Any]:
    """The labels and taints of a new node; none for a control plane that takes no pods."""
    if instance is None:
        return {}
    manifest = node_manifest(instance, 0, kubernetes)
    own = ("kubernetes.io/", FAKE_LABEL)
    labels = {key: value for key, value in manifest["metadata"]["labels"].items() if not key.startswith(own)}
    kind = "InitConfiguration" if role == "control-plane" else "JoinConfiguration"
    registration = {"kind": kind, "nodeRegistration": {"taints": manifest["spec"]["taints"]}}
    return {"labels": labels, "kubeadmConfigPatches": [yaml.safe_dump(registration)]}


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Kill kind and its children, but let each `docker run` finish: then its container can be removed."""
    process.kill()
    process.wait()
    deadline = time.monotonic() + _SETTLE_SECONDS
    while _makes_containers(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _makes_containers(group: int) -> bool:
    """Whether a process of this group is a ``docker run``, which makes its container even when killed."""
    listing = subprocess.run(["ps", "-axww", "-o", "pgid=,args="], capture_output=True, text=True, check=True)
    processes = (line.split(maxsplit=3) for line in listing.stdout.splitlines())
    return any(parts[0] == str(group) and parts[2:3] == ["run"] for parts in processes)
