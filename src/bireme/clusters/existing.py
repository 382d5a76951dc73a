"""A cluster that exists already: Bireme uses it, but neither makes nor removes it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bireme.clusters.api import Api
from bireme.clusters.base import ClusterInfo
from bireme.clusters.kubeconfig import merged
from bireme.core.errors import BiremeError
from bireme.core.labels import INSTANCE_TYPE_LABEL


@dataclass(frozen=True)
class ExistingCluster:
    """A cluster that a kubeconfig names. Its nodes and its version are read from it when asked for."""

    kubeconfig: Path
    context: str | None = None

    @property
    def name(self) -> str:
        """The context, or ``current``."""
        return self.context or "current"

    @property
    def provider(self) -> str:
        """``existing``."""
        return "existing"

    @cached_property
    def api(self) -> Api:
        """Its API server."""
        return Api(self.kubeconfig, self.context)

    @property
    def nodes(self) -> Mapping[str, int]:
        """Number of its nodes by instance type, as their labels say now. Raises BiremeError."""
        nodes = self.api.get("/api/v1/nodes")["items"]
        labels = (node["metadata"].get("labels", {}) for node in nodes)
        return dict(Counter(each.get(INSTANCE_TYPE_LABEL, "unknown") for each in labels))

    def add_claim(self, name: str, namespace: str = "default") -> None:
        """Raises BiremeError: an existing cluster has its own storage."""
        raise BiremeError(f"the claim {name}: make it with the storage of the cluster {self.name}")

    def info(self) -> ClusterInfo:
        """Its facts, asked of the cluster. Raises BiremeError when it does not answer."""
        version = self.api.get("/version")["gitVersion"].removeprefix("v")
        return ClusterInfo(self.provider, self.name, self.kubeconfig, self.context, self.nodes, version)


class ExistingProvider:
    """Clusters by kubeconfig and context.

    ``kubeconfig``: the file; by default those of ``$KUBECONFIG`` together, else ~/.kube/config.
    """

    name = "existing"

    def __init__(self, kubeconfig: Path | None = None) -> None:
        self._kubeconfig = kubeconfig

    def up(self, name: str, nodes: Mapping[str, int]) -> ExistingCluster:
        """The cluster of context ``name``, once it has answered. Raises BiremeError, also for nodes."""
        if nodes:
            raise BiremeError("--nodes: an existing cluster keeps the nodes it has, leave the option out")
        cluster = self.get(name)
        cluster.info()
        return cluster

    def down(self, name: str) -> bool:
        """False: Bireme removes only clusters that it made."""
        return False

    def get(self, name: str = "") -> ExistingCluster:
        """The cluster of context ``name``, or of the current one. Raises BiremeError without a file."""
        file = self._kubeconfig or _default_kubeconfig(os.environ)
        if not file.is_file():
            raise BiremeError(
                f"there is no kubeconfig at {file}: name one with --kubeconfig, "
                "or start a cluster on this machine with: bireme up"
            )
        return ExistingCluster(file, name or None)


def _default_kubeconfig(environ: Mapping[str, str]) -> Path:
    """The files of $KUBECONFIG as one, or else ~/.kube/config. Missing files are skipped, as kubectl does."""
    given = [Path(part) for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    there = [file for file in given if file.is_file()]
    if len(there) > 1:
        return merged(there)
    if given:
        return (there or given)[0]
    return Path(environ.get("HOME", "~")).expanduser() / ".kube" / "config"
