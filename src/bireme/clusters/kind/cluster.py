"""A running kind cluster: its nodes, their network and devices, images and claims."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bireme.clusters.fakes import CLAIM_SIZE, MANAGED_NODES, FakeNodes, kwok_config
from bireme.clusters.kind.engine import Engine
from bireme.clusters.state import cluster_dir
from bireme.clusters.waiting import until
from bireme.core.errors import BiremeError
from bireme.core.labels import CONTROL_PLANE_TAINT, FAKE_LABEL, NODE_TYPE_LABEL
from bireme.core.quantities import HUGE_PAGES
from bireme.plan.instances import instance_of, load_instances
from bireme.tools import Toolbox

SHARED = "/bireme/shared"
"""The path on every node of the host directory that holds the claims."""
IMAGES = "/bireme/images"
"""The path on every node of the host directory that images are loaded from."""
STANDARD_CLASS = "standard"
"""kind's default storage class."""
POD_NETWORKS = {"ipv4": "10.244.0.0/16", "ipv6": "fd00:10:244::/56"}
NETWORK_FILE = "/etc/cni/net.d/10-bireme.conflist"

_CLUSTER_LABEL = "io.x-k8s.kind.cluster"
_VOLUMES = 24
_VOLUME_SIZE = "100Gi"
# Resources that the kubelet reports by itself.
_KUBELETS_OWN = frozenset({"cpu", "memory", "pods", "ephemeral-storage", HUGE_PAGES})
_READY_SECONDS = 180


@dataclass(frozen=True)
class KindCluster(FakeNodes):
    """A running kind cluster. The methods of FakeNodes apply to its fake nodes, if it has any."""

    engine: Engine
    toolbox: Toolbox

    @property
    def shared(self) -> Path:
        """The host directory that all nodes have at ``SHARED``."""
        return cluster_dir(self.paths, self.name) / "shared"

    def containers(self, *, running: bool = False) -> tuple[str, ...]:
        """The node containers, which have the names of their Nodes; with ``running``, only those that run."""
        return containers_of(self.engine, self.name, running=running)

    def prepare_nodes(self) -> None:
        """Connect new nodes and let them advertise their devices; returns when all are Ready."""
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

    def add_nodes(self, node_type: str, count: int) -> tuple[str, ...]:
        """Add ``count`` fake nodes of an instance type (or ``cpu``); their names, once they are Ready."""
        self._start_kwok()
        return super().add_nodes(node_type, count)

    def load_image(self, *images: str) -> None:
        """Put images of the engine onto every node that takes pods. Raises BiremeError for a missing one.

        Each is written once into a host directory that all nodes have, and imported by all at the same time.
        """
        takers = [each["metadata"]["name"] for each in self._real_nodes() if _takes_pods(each)]
        for image in images:
            identity = self.engine.image_id(image)
            if identity is None:
                raise BiremeError(f"the engine has no image {image}: build or pull it first")
            nodes = [node for node in takers if not self._has_image(node, image, identity)]
            if nodes:
                archive = self._archive(image, identity)
                self.api.each(partial(self._import, archive), nodes)

    def add_claim(self, name: str, namespace: str = "default", **spec: str) -> None:
        """Create a claim that all nodes share, on a directory of the host; see ``claim_folder``."""
        volume = f"{namespace}-{name}"
        self._create_volume(volume, "", CLAIM_SIZE, {"namespace": namespace, "name": name})
        super().add_claim(name, namespace, storageClassName="", volumeName=volume, **spec)

    def claim_folder(self, claim: str, namespace: str = "default") -> Path:
        """The directory of this machine that a claim of ``add_claim`` keeps its files in."""
        return self.shared / f"{namespace}-{claim}"

    def on_node(self, node: str, *command: str) -> str:
        """What ``command`` prints when it runs on a node, as root. Raises BiremeError when it fails."""
        return self.engine("exec", node, *command)

    def _real_nodes(self) -> list[dict[str, Any]]:
        """The nodes with a kubelet that have their pod network."""
        nodes = self.api.items("/api/v1/nodes", labelSelector=f"!{FAKE_LABEL}")
        return [node for node in nodes if node["spec"].get("podCIDR")]

    def _connect(self) -> None:
        """Give every node its pod network, and routes to those of the other nodes."""
        running = set(self.containers(running=True))
        nodes = [node for node in self._real_nodes() if node["metadata"]["name"] in running]
        self.api.each(
            lambda node: self.on_node(node["metadata"]["name"], "bash", "-euc", _network_script(node, nodes)),
            nodes,
        )

    def _advertise(self) -> None:
        """Let the nodes advertise the accelerators and EFA interfaces of their instance type.

        This simulates the device plugins: the scheduler counts the devices, but there are none.
        """
        instances = load_instances(self.paths)
        for node in self._real_nodes():
            node_type = node["metadata"]["labels"].get(NODE_TYPE_LABEL)
            offer = instance_of(node_type, instances).allocatable() if node_type else {}
            devices = {key: n for key, n in offer.items() if key not in _KUBELETS_OWN}
            if devices:
                path = f"/api/v1/nodes/{node['metadata']['name']}/status"
                self.api.patch(path, {"status": {"capacity": devices, "allocatable": devices}})

    def _keep_pods_away(self) -> None:
        """Taint a control plane that takes no pods; kind leaves it untainted when it has no workers."""
        taint = {"key": CONTROL_PLANE_TAINT, "effect": "NoSchedule"}
        for node in self._real_nodes():
            if not _takes_pods(node):
                self.api.patch(f"/api/v1/nodes/{node['metadata']['name']}", {"spec": {"taints": [taint]}})

    def _make_volumes(self) -> None:
        """Make some volumes for claims to bind to, where no provisioner makes them."""
        standard = self.api.find(f"/apis/storage.k8s.io/v1/storageclasses/{STANDARD_CLASS}")
        if standard and standard["provisioner"] == "kubernetes.io/no-provisioner":
            for index in range(_VOLUMES):
                self._create_volume(f"{STANDARD_CLASS}-{index}", STANDARD_CLASS, _VOLUME_SIZE, None)

    def _create_volume(
        self, name: str, storage_class: str, size: str, claim: Mapping[str, str] | None
    ) -> None:
        folder = self.shared / name
        folder.mkdir(exist_ok=True)
        # Pods write with various user ids, and fsGroup has no effect on a host directory.
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
        # The compressed layers would double the disk use on every node, and are not needed after unpacking.
        command = ["ctr", "--namespace", "k8s.io", "images", "import", "--local", "--discard-unpacked-layers"]
        self.on_node(node, *command, "--digests", "--snapshotter", "overlayfs", f"{IMAGES}/{archive.name}")

    def _start_kwok(self) -> None:
        """Run kwok as a service in the control plane's container, so that both end together."""
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
Description=kwok simulates the kubelets of the fake nodes
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


def containers_of(engine: Engine, name: str, *, running: bool = False) -> tuple[str, ...]:
    """The names of the node containers of the cluster ``name``; with ``running``, only of those that run."""
    scope = [] if running else ["--all"]
    listed = engine(
        "ps", *scope, "--filter", f"label={_CLUSTER_LABEL}={kind_name(name)}", "--format", "{{.Names}}"
    )
    return tuple(sorted(listed.split()))


def kind_name(name: str) -> str:
    """The name of the cluster and its network in kind; the prefix sets it apart from other clusters."""
    return f"bireme-{name}"


def _network_script(node: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> str:
    """A script that sets up a node's CNI plugins, its routes to the other nodes, and NAT to the outside."""
    subnet = node["spec"]["podCIDR"]
    is_ipv6 = ":" in subnet
    pods, everywhere = POD_NETWORKS["ipv6" if is_ipv6 else "ipv4"], "::/0" if is_ipv6 else "0.0.0.0/0"
    network = {
        "cniVersion": "1.0.0",
        "name": "bireme",
        "plugins": [
            {
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni-ipam-state",
                    "routes": [{"dst": everywhere}],
                    "ranges": [[{"subnet": subnet}]],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
    lines = [
        f"echo '{json.dumps(network)}' > /etc/cni/net.d/.new",
        f"mv /etc/cni/net.d/.new {NETWORK_FILE}",
    ]
    lines += [
        f"ip route replace {other['spec']['podCIDR']} via {_address(other)}"
        for other in nodes
        if other["metadata"]["name"] != node["metadata"]["name"]
    ]
    outside = f"POSTROUTING -s {pods} ! -d {pods} -j MASQUERADE"
    nat = f"{'ip6tables' if is_ipv6 else 'iptables'} -t nat"
    lines.append(f"{nat} -C {outside} 2>/dev/null || {nat} -A {outside}")
    return "\n".join(["mkdir -p /etc/cni/net.d", *lines])


def _takes_pods(node: Mapping[str, Any]) -> bool:
    return NODE_TYPE_LABEL in node["metadata"]["labels"]


def _address(node: Mapping[str, Any]) -> str:
    addresses = node["status"]["addresses"]
    return next(str(each["address"]) for each in addresses if each["type"] == "InternalIP")


def _full_name(image: str) -> str:
    """The name under which containerd knows an image of the engine."""
    first, slash, _ = image.partition("/")
    if not slash:
        return f"docker.io/library/{image}"
    return image if "." in first or ":" in first or first == "localhost" else f"docker.io/{image}"
