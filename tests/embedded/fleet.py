"""Fake nodes of many instance types, for charts that put one pod on each node of some types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bireme.clusters.embedded import EmbeddedCluster
from bireme.testing.pytest_plugin import InstalledRelease
from tests.support import faults

TAINT = {"key": "team", "value": "vision", "effect": "NoSchedule"}


class Fleet:
    """The nodes of one test, each with a short name and the taint of its accelerator."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self.nodes: dict[str, str] = {}
        for word, kind in {
            "p3": "p3.8xlarge",
            "p4d": "p4d.24xlarge",
            "g5": "g5.xlarge",
            "g5-efa": "g5.8xlarge",
            "trn1": "trn1.32xlarge",
            "cpu": "cpu",
            "auto": "p4d.24xlarge",
            "tainted": "p4d.24xlarge",
        }.items():
            (self.nodes[word],) = cluster.add_nodes(kind, 1)
        self.label("auto", {"eks.amazonaws.com/compute-type": "auto"})
        taints = cluster.api.get(f"/api/v1/nodes/{self.nodes['tainted']}")["spec"]["taints"]
        self._patch("tainted", {"spec": {"taints": [*taints, TAINT]}})

    def label(self, word: str, labels: Mapping[str, str]) -> None:
        """Give a node further labels."""
        self._patch(word, {"metadata": {"labels": dict(labels)}})

    def add(self, word: str, instance_type: str) -> None:
        """A node of a type that values/instances does not have."""
        (self.nodes[word],) = self._cluster.add_nodes("cpu", 1)
        self.label(word, {"node.kubernetes.io/instance-type": instance_type})

    def words(self, release: InstalledRelease) -> set[str]:
        """The nodes of the fleet that have a pod of the release."""
        there = {pod.node for pod in release.pods() if pod.kind == "DaemonSet" and pod.ready}
        return {word for word, node in self.nodes.items() if node in there}

    def remove(self) -> None:
        """Remove all of them."""
        for node in self.nodes.values():
            faults.remove_node(self._cluster, node)

    def _patch(self, word: str, change: Mapping[str, Any]) -> None:
        self._cluster.api.patch(f"/api/v1/nodes/{self.nodes[word]}", change)
