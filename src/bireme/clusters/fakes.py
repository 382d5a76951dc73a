"""Fake nodes: kwok simulates their kubelets by the rules in kwok.yaml.

The nodes and their pods are simulated; API server, scheduler and controllers are real, in an embedded cluster
or in one of kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Self

from bireme.clusters.api import ApiError
from bireme.clusters.base import Cluster, ClusterInfo
from bireme.clusters.nodes import node_manifest
from bireme.clusters.waiting import until
from bireme.core import labels
from bireme.core.paths import Paths
from bireme.plan.instances import Instance, instance_of, load_instances
from bireme.plan.workloads.model import true_conditions

STORAGE_CLASS = "fake"
CLAIM_SIZE = "1Ti"
# The nodes that kwok simulates: all fake ones but those with this label.
MANAGED_NODES = f"{labels.FAKE_LABEL}={labels.FAKE_VALUE},!{labels.CUT_LABEL}"

_NODES_SECONDS = 180


def kwok_config() -> str:
    """The configuration of kwok and the stages that nodes, pods and claims go through, as YAML documents."""
    return resources.files("bireme.clusters").joinpath("kwok.yaml").read_text(encoding="utf-8")


@dataclass(frozen=True)
class FakeNodes(Cluster):
    """A cluster of one version of Kubernetes with fake nodes, which can be added."""

    kubernetes: str
    paths: Paths

    @classmethod
    def of(cls, info: ClusterInfo, paths: Paths, *parts: Any) -> Self:
        """The cluster of these facts. ``parts`` are what further fields hold."""
        return cls(info.name, info.provider, info.kubeconfig, info.context, info.kubernetes, paths, *parts)

    @property
    def nodes(self) -> Mapping[str, int]:
        """Number of nodes by type that are there now. Raises BiremeError."""
        nodes = self.api.items("/api/v1/nodes")
        types = (node["metadata"]["labels"].get(labels.NODE_TYPE_LABEL) for node in nodes)
        return dict(Counter(each for each in types if each))

    def prepare(self, nodes: Sequence[tuple[Instance, int]]) -> None:
        """Create the storage class and the nodes of a new cluster; returns when all are Ready."""
        self.add_storage_class(default=True)
        self._create([(instance, index) for instance, count in nodes for index in range(count)])

    def add_storage_class(self, *, default: bool) -> None:
        """Create the storage class of claims that fake nodes can mount; there is no storage behind it."""
        body = {
            "metadata": {
                "name": STORAGE_CLASS,
                "annotations": {labels.DEFAULT_CLASS_ANNOTATION: str(default).lower()},
            },
            "provisioner": "bireme/fake",
        }
        self._create_missing("/apis/storage.k8s.io/v1/storageclasses", body)

    def add_nodes(self, node_type: str, count: int) -> tuple[str, ...]:
        """Add ``count`` nodes of an instance type (or ``cpu``); their names, once they are Ready."""
        instance = instance_of(node_type, load_instances(self.paths))
        taken = {node["metadata"]["name"] for node in self.api.items("/api/v1/nodes")}
        names = {index: f"{instance.node_name}-{index}" for index in range(len(taken) + count)}
        free = [index for index, name in names.items() if name not in taken][:count]
        self._create([(instance, index) for index in free])
        return tuple(names[index] for index in free)

    def add_claim(self, name: str, namespace: str = "default", **spec: str) -> None:
        """Create a PersistentVolumeClaim that many nodes can share; there is no storage behind it.

        It replaces the FSx and EFS claims that workloads name. An existing claim stays as it is.
        """
        self._create_missing("/api/v1/namespaces", {"metadata": {"name": namespace}})
        asks = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": CLAIM_SIZE}}}
        body = {"metadata": {"name": name}, "spec": {**asks, "storageClassName": STORAGE_CLASS, **spec}}
        self._create_missing(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims", body)

    def _create_missing(self, path: str, body: Mapping[str, Any]) -> None:
        try:
            self.api.create(path, body)
        except ApiError as error:
            if error.status != 409:
                raise

    def _create(self, wanted: Sequence[tuple[Instance, int]]) -> None:
        bodies = [node_manifest(instance, index, self.kubernetes) for instance, index in wanted]
        self.api.each(lambda body: self.api.create("/api/v1/nodes", body), bodies)
        names = {body["metadata"]["name"] for body in bodies}
        ready = f"{len(names)} nodes to be Ready"
        until(lambda: self._runs() and names <= self._ready_nodes(), _NODES_SECONDS, ready)

    def _runs(self) -> bool:
        """Whether all parts of the control plane run. Raises BiremeError when one has ended for good."""
        return True

    def _ready_nodes(self) -> set[str]:
        nodes = self.api.items("/api/v1/nodes", resourceVersion="0")
        return {node["metadata"]["name"] for node in nodes if _schedulable(node)}


def _schedulable(node: Mapping[str, Any]) -> bool:
    taints = {taint["key"] for taint in node["spec"].get("taints", [])}
    return "Ready" in true_conditions(node) and labels.NOT_READY_TAINT not in taints
