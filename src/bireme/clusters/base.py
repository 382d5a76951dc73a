"""What every cluster and every provider of clusters offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from bireme.clusters.api import Api
from bireme.core.errors import BiremeError


@dataclass(frozen=True)
class Cluster:
    """A cluster that a kubeconfig reaches.

    ``name`` is unique in a state directory. ``provider`` made it, ``existing`` stands for anybody else.
    ``context`` is one of the file's, or None for the current one.
    """

    name: str
    provider: str
    kubeconfig: Path
    context: str | None

    @cached_property
    def api(self) -> Api:
        """Its API server."""
        return Api(self.kubeconfig, self.context)

    def add_claim(self, name: str, namespace: str = "default") -> None:
        """Make a claim that all nodes can mount, in place of shared storage. Raises BiremeError."""
        raise BiremeError(
            f"the claim {name} cannot be made here: make it from the storage that {self.name} has"
        )


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

    def up(self, name: str, nodes: Mapping[str, int]) -> Cluster:
        """Make the cluster ``name`` with these nodes by type, ready to use. Raises BiremeError."""

    def down(self, name: str) -> bool:
        """Remove the cluster and all its files; False, not an error, when there is none."""

    def get(self, name: str) -> Cluster:
        """The cluster ``name`` as ``up`` made it. Raises BiremeError when there is none."""
