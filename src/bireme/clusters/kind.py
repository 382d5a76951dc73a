"""Real nodes in containers, by kind: containers run and train, only the devices are a stand-in.

Every node that is asked for is one container with a kubelet, labelled and tainted as its instance type; the
control plane is one more. CPU and memory are those of this machine. Accelerators and EFA interfaces are
advertised without being there: the one stand-in, see ``_advertise``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bireme.clusters import DEFAULT_NAME, ClusterInfo, cluster_dir, find, list_clusters, write_info
from bireme.clusters.embedded import KUBERNETES
from bireme.clusters.engine import Engine
from bireme.clusters.fakes import MANAGED_NODES, FakeNodes, kwok_config
from bireme.clusters.node_image import LOCAL, NodeImages
from bireme.clusters.nodes import CPU_TYPE, FAKE_LABEL, NODE_TYPE_LABEL, NodeShape, node_manifest, shape_of
from bireme.clusters.patience import no_interrupts, until
from bireme.errors import BiremeError
from bireme.instances import HUGE_PAGES, load_instances
from bireme.paths import Paths

if TYPE_CHECKING:
    from rich.console import Console

    from bireme.tools import Toolbox

SHARED = "/bireme/shared"
"""Where every node has the one host directory that claims live in."""
STANDARD_CLASS = "standard"
"""kind's default storage class."""

_IMAGES = "/bireme/images"
_CLUSTER_LABEL = "io.x-k8s.kind.cluster"
_POD_NETWORK = "10.244.0.0/16"
_VOLUMES = 12
_VOLUME_SIZE = "100Gi"
# Resources that the kubelet reports itself.
_KUBELETS_OWN = frozenset({"cpu", "memory", "pods", "ephemeral-storage", HUGE_PAGES})
_UP_SECONDS = 300
_READY_SECONDS = 180
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
            with self._status(f"Starting Kubernetes {kubernetes} in {max(1, len(shapes))} containers"):
                self._create(folder, name, self._config(folder, image, shapes))
            with self._status("Waiting for the nodes"):
                cluster.prepare_nodes()
            for kind, count in fakes.items():
                with self._status(f"Creating {count} fake nodes"):
                    cluster.add_nodes(kind, count)
            write_info(self._paths, info)
        except BaseException:
            with no_interrupts():
                self._destroy(name)
            raise
        return cluster

    def down(self, name: str = DEFAULT_NAME) -> bool:
        """Remove the cluster's containers, network and files; False when there was nothing to do.

        Also clears what a crashed ``up`` left. Raises BiremeError when the engine does not answer.
        """
        if not cluster_dir(self._paths, name).exists() and shutil.which("docker") is None:
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
        if not _containers(self._engine, name, running=True):
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
            if not _containers(self._engine, name):
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
            {"hostPath": str(images), "containerPath": _IMAGES, "readOnly": True},
        ]
        control_plane, workers = shapes[:1], shapes[1:]
        return {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            # The plain plugins do, on any node image; see connect().
            "networking": {"disableDefaultCNI": True, "podSubnet": _POD_NETWORK},
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
        command = [str(self._toolbox.path("kind")), "create", "cluster", "--name", _kind_name(name)]
        command += ["--config", str(file), "--kubeconfig", str(folder / "kubeconfig"), "--retain"]
        # A network of its own, so that it can go with the cluster.
        environment = {**os.environ, "KIND_EXPERIMENTAL_DOCKER_NETWORK": _kind_name(name)}
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
        containers = _containers(self._engine, name)
        if containers:
            self._empty(containers)
            with ThreadPoolExecutor() as pool:
                list(pool.map(partial(self._engine, "rm", "--force", "--volumes"), containers))
        self._engine.succeeds("network", "rm", _kind_name(name))
        if folder.exists():
            shutil.rmtree(folder)
        return found or bool(containers)

    def _empty(self, containers: Sequence[str]) -> None:
        """Remove what pods left in the shared folder, in their own names: who runs this may not be root."""
        for container in containers:
            command = ("exec", container, "find", SHARED, "-mindepth", "1", "-delete")
            if self._engine.succeeds(*command):
                return

    @contextlib.contextmanager
    def _status(self, text: str) -> Iterator[None]:
        if self._console is None:
            yield
            return
        with self._console.status(text):
            yield


@dataclass(frozen=True)
class KindCluster(FakeNodes):
    """A running kind cluster. Its fake nodes, when it has some, obey the methods of FakeNodes."""

    engine: Engine
    toolbox: Toolbox

    @property
    def shared(self) -> Path:
        """The host directory that all nodes have at ``SHARED``."""
        return cluster_dir(self.paths, self.name) / "shared"

    def containers(self) -> tuple[str, ...]:
        """The node containers, which are called like their Nodes."""
        return _containers(self.engine, self.name)

    def prepare_nodes(self) -> None:
        """Connect the nodes of a fresh cluster and give them their devices; returns when all are Ready."""
        names = self.containers()
        until(
            lambda: len(self._real_nodes()) == len(names), _READY_SECONDS, f"{len(names)} nodes to register"
        )
        self._connect()
        self._advertise()
        self._keep_pods_away()
        self._make_volumes()
        until(lambda: set(names) <= self._ready_nodes(), _READY_SECONDS, f"{len(names)} nodes to be Ready")
        until(self._services_answer, _READY_SECONDS, "the cluster's DNS and services")

    def add_nodes(self, kind: str, count: int) -> tuple[str, ...]:
        """Add ``count`` fake nodes of an instance type (or ``cpu``); their names, once they are Ready."""
        self._start_kwok()
        return super().add_nodes(kind, count)

    def load_image(self, *images: str) -> None:
        """Put images of the engine onto every node. Raises BiremeError for one that is not there.

        Each is written once into a host directory that all nodes have, and imported by all at the same time.
        """
        for image in images:
            identity = self.engine.image_id(image)
            if identity is None:
                raise BiremeError(f"the engine has no image {image}: build or pull it first")
            nodes = [node for node in self.containers() if not self._has_image(node, image, identity)]
            if nodes:
                archive = self._archive(image, identity)
                self.api.each(partial(self._import, archive), nodes)

    def add_claim(self, claim: str, namespace: str = "default", size: str = "1Ti") -> None:
        """Create a claim that all nodes share, on a directory of the host; see ``claim_folder``.

        Stands in for the FSx and EFS claims that workloads name; one that is there stays as it is.
        """
        self._create_missing("/api/v1/namespaces", {"metadata": {"name": namespace}})
        volume = f"{namespace}-{claim}"
        self._create_volume(volume, "", size, {"namespace": namespace, "name": claim})
        self._create_missing(
            f"/api/v1/namespaces/{namespace}/persistentvolumeclaims",
            {
                "metadata": {"name": claim},
                "spec": {
                    "accessModes": ["ReadWriteMany"],
                    "storageClassName": "",
                    "volumeName": volume,
                    "resources": {"requests": {"storage": size}},
                },
            },
        )

    def claim_folder(self, claim: str, namespace: str = "default") -> Path:
        """The directory of this machine that a claim of ``add_claim`` keeps its files in."""
        return self.shared / f"{namespace}-{claim}"

    def stop_node(self, node: str) -> None:
        """Stop a node's container, as if the machine had lost its power."""
        self.engine("kill", self._container(node))

    def start_node(self, node: str) -> None:
        """Start a stopped node's container again, with its routes and devices."""
        self.engine("start", self._container(node))
        self._connect()
        self._advertise()

    def on_node(self, node: str, *command: str) -> str:
        """What ``command`` prints when it runs on a node, as root. Raises BiremeError when it fails."""
        return self.engine("exec", self._container(node), *command)

    def _container(self, node: str) -> str:
        if node not in self.containers():
            raise BiremeError(
                f"the cluster {self.name} has no node {node} in a container: see kubectl get nodes"
            )
        return node

    def _real_nodes(self) -> list[dict[str, Any]]:
        """The nodes with a kubelet that have their pod network."""
        nodes = self.api.get("/api/v1/nodes", labelSelector=f"!{FAKE_LABEL}")["items"]
        return [node for node in nodes if node["spec"].get("podCIDR")]

    def _connect(self) -> None:
        """Give every node its pod network, and the routes to the others'."""
        running = set(_containers(self.engine, self.name, running=True))
        nodes = [node for node in self._real_nodes() if node["metadata"]["name"] in running]
        self.api.each(
            lambda node: self.on_node(node["metadata"]["name"], "bash", "-euc", _network_script(node, nodes)),
            nodes,
        )

    def _advertise(self) -> None:
        """Let the nodes offer the accelerators and EFA interfaces of their instance type.

        A stand-in for the device plugins: the scheduler counts them, but no device is behind them.
        """
        instances = load_instances(self.paths)
        for node in self._real_nodes():
            kind = node["metadata"]["labels"].get(NODE_TYPE_LABEL)
            shape = shape_of(kind, instances) if kind else None
            devices = (
                {key: n for key, n in shape.capacity.items() if key not in _KUBELETS_OWN} if shape else {}
            )
            if devices:
                path = f"/api/v1/nodes/{node['metadata']['name']}/status"
                self.api.patch(path, {"status": {"capacity": devices, "allocatable": devices}})

    def _keep_pods_away(self) -> None:
        """Taint a control plane that is no node of any type; kind opens one that is alone to all pods."""
        taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
        for node in self._real_nodes():
            if NODE_TYPE_LABEL not in node["metadata"]["labels"]:
                self.api.patch(f"/api/v1/nodes/{node['metadata']['name']}", {"spec": {"taints": [taint]}})

    def _make_volumes(self) -> None:
        """Where nothing provisions volumes of the default class, have some that claims can bind to."""
        standard = self.api.find(f"/apis/storage.k8s.io/v1/storageclasses/{STANDARD_CLASS}")
        if standard and standard["provisioner"] == "kubernetes.io/no-provisioner":
            for index in range(_VOLUMES):
                self._create_volume(f"{STANDARD_CLASS}-{index}", STANDARD_CLASS, _VOLUME_SIZE, None)

    def _create_volume(
        self, name: str, storage_class: str, size: str, claim: Mapping[str, str] | None
    ) -> None:
        folder = self.shared / name
        folder.mkdir(exist_ok=True)
        # Pods write under user ids of their own, and a host directory knows no fsGroup.
        folder.chmod(0o777)
        spec: dict[str, Any] = {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": storage_class,
            "hostPath": {"path": f"{SHARED}/{name}", "type": "Directory"},
        }
        if claim:
            spec["claimRef"] = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", **claim}
        self._create_missing("/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": spec})

    def _services_answer(self) -> bool:
        system = "/apis/apps/v1/namespaces/kube-system"
        dns = self.api.get(f"{system}/deployments/coredns")["status"]
        proxies = self.api.get(f"{system}/daemonsets/kube-proxy")["status"]
        return (
            bool(dns.get("availableReplicas")) and proxies["numberReady"] == proxies["desiredNumberScheduled"]
        )

    def _has_image(self, node: str, image: str, identity: str) -> bool:
        listed = json.loads(self.on_node(node, "crictl", "images", "--output", "json", _full_name(image)))
        return identity in {each["id"] for each in listed["images"]}

    def _archive(self, image: str, identity: str) -> Path:
        folder = self.paths.cache / "kind" / "images"
        stem = image.replace("/", "-").replace(":", "-")
        archive = folder / f"{stem}@{identity.removeprefix('sha256:')[:12]}.tar"
        if not archive.exists():
            for outdated in folder.glob(f"{stem}@*.tar"):
                outdated.unlink()
            unfinished = archive.with_suffix(f".{os.getpid()}")
            self.engine("save", "--output", str(unfinished), image)
            unfinished.rename(archive)
        return archive

    def _import(self, archive: Path, node: str) -> None:
        command = ["ctr", "--namespace", "k8s.io", "images", "import", "--local", "--digests"]
        self.on_node(node, *command, "--snapshotter", "overlayfs", f"{_IMAGES}/{archive.name}")

    def _start_kwok(self) -> None:
        """Run kwok on the control plane as a service, so that it lives and goes with that container."""
        (node,) = [name for name in self.containers() if name.endswith("-control-plane")]
        if self.engine.succeeds("exec", node, "systemctl", "is-active", "--quiet", "kwok"):
            return
        folder = cluster_dir(self.paths, self.name)
        files = {"kwok.yaml": kwok_config(), "kwok.service": _KWOK_SERVICE}
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        self.engine("cp", "--follow-link", str(self.toolbox.path("kwok")), f"{node}:/usr/local/bin/kwok")
        self.engine("cp", str(folder / "kwok.yaml"), f"{node}:/etc/kwok.yaml")
        self.engine("cp", str(folder / "kwok.service"), f"{node}:/etc/systemd/system/kwok.service")
        self.on_node(node, "systemctl", "enable", "--now", "kwok")
        self.add_storage_class(default=False)


_KWOK_SERVICE = f"""\
[Unit]
Description=kwok plays the kubelets of the fake nodes
After=kubelet.service

[Service]
ExecStart=/usr/local/bin/kwok --kubeconfig=/etc/kubernetes/admin.conf --config=/etc/kwok.yaml \\
    --manage-all-nodes=false --manage-nodes-with-label-selector={MANAGED_NODES} \\
    --node-lease-duration-seconds=40
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
"""


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


def _network_script(node: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> str:
    """Plain CNI plugins with the node's own addresses, a route to each other node's, and a way out."""
    subnet = node["spec"]["podCIDR"]
    network = {
        "cniVersion": "1.0.0",
        "name": "bireme",
        "plugins": [
            {
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni-ipam-state",
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "ranges": [[{"subnet": subnet}]],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
    lines = [
        f"echo '{json.dumps(network)}' > /etc/cni/net.d/.new",
        "mv /etc/cni/net.d/.new /etc/cni/net.d/10-bireme.conflist",
    ]
    lines += [
        f"ip route replace {other['spec']['podCIDR']} via {_address(other)}"
        for other in nodes
        if other["metadata"]["name"] != node["metadata"]["name"]
    ]
    outside = f"POSTROUTING -s {_POD_NETWORK} ! -d {_POD_NETWORK} -j MASQUERADE"
    lines.append(f"iptables -t nat -C {outside} 2>/dev/null || iptables -t nat -A {outside}")
    return "\n".join(["mkdir -p /etc/cni/net.d", *lines])


def _address(node: Mapping[str, Any]) -> str:
    addresses = node["status"]["addresses"]
    return next(str(each["address"]) for each in addresses if each["type"] == "InternalIP")


def _containers(engine: Engine, name: str, *, running: bool = False) -> tuple[str, ...]:
    scope = [] if running else ["--all"]
    listed = engine(
        "ps", *scope, "--filter", f"label={_CLUSTER_LABEL}={_kind_name(name)}", "--format", "{{.Names}}"
    )
    return tuple(sorted(listed.split()))


def _kind_name(name: str) -> str:
    """What kind calls the cluster, and its network: beside clusters that others made with kind."""
    return f"bireme-{name}"


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


def _full_name(image: str) -> str:
    """The name under which containerd knows an image of the engine."""
    first, slash, _ = image.partition("/")
    if not slash:
        return f"docker.io/library/{image}"
    return image if "." in first or ":" in first or first == "localhost" else f"docker.io/{image}"


def _end_of(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return "\n  ".join(["its last lines are", *lines[-8:]])
