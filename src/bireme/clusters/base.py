"""What every cluster and every provider of clusters offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bireme.clusters.api import Api

DEFAULT_NAME = "bireme"


class Cluster(Protocol):
    """What the rest of the harness needs to know about a cluster."""

    @property
    def name(self) -> str:
        """Its name, unique among the clusters of one state directory."""

    @property
    def provider(self) -> str:
        """The name of the provider that made it."""

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig file that reaches it."""

    @property
    def context(self) -> str | None:
        """The context in that file; None stands for the current one."""

    @property
    def nodes(self) -> Mapping[str, int]:
        """Number of nodes by instance type."""

    @property
    def api(self) -> Api:
        """Its API server."""

    def add_claim(self, name: str, namespace: str = "default") -> None:
        """Make a claim that all nodes can mount, in place of shared storage. Raises BiremeError."""


@dataclass(frozen=True)
class ClusterInfo:
    """The facts of one cluster, as meta.json keeps them.

    ``nodes`` are those it was made with, by type; ``kubernetes`` is its version, e.g. ``1.36.3``.
    """

    provider: str
    name: str
    kubeconfig: Path
    context: str | None
    nodes: Mapping[str, int]
    kubernetes: str

    def to_json(self) -> dict[str, object]:
        """Plain JSON, for ``-o json`` and meta.json."""
        return asdict(self) | {"kubeconfig": str(self.kubeconfig), "nodes": dict(self.nodes)}


class Provider(Protocol):
    """Makes, finds and removes clusters of one sort."""

    @property
    def name(self) -> str:
        """What ``--provider`` calls it."""

    def up(self, name: str, nodes: Mapping[str, int]) -> Cluster:
        """Make the cluster ``name`` with these nodes by type, ready to use. Raises BiremeError."""

    def down(self, name: str) -> bool:
        """Remove the cluster and all its files; False, not an error, when there is none."""

    def get(self, name: str) -> Cluster:
        """The cluster ``name`` as ``up`` made it. Raises BiremeError when there is none."""
