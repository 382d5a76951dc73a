"""Clusters by provider: what every kind of cluster offers, and where their state lives.

A cluster has one directory, ``<state>/clusters/<name>/``, whose meta.json says what it is. The providers
are in modules of their own; this one only finds them.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bireme.errors import BiremeError
from bireme.paths import Paths

if TYPE_CHECKING:
    from rich.console import Console

    from bireme.clusters.api import Api
    from bireme.tools import Toolbox

DEFAULT_NAME = "bireme"
PROVIDERS = ("embedded", "kind", "existing")

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
_META = "meta.json"


class Cluster(Protocol):
    """What the rest of the harness needs to know about a cluster."""

    @property
    def name(self) -> str:
        """Its name, unique among the clusters of one state directory."""

    @property
    def provider(self) -> str:
        """The name of the provider that it comes from."""

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

    def add_claim(self, claim: str, namespace: str = "default") -> None:
        """Make a claim that all nodes can mount, a stand-in for shared storage. Raises BiremeError."""


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
    """A way to get a cluster and to give it back."""

    @property
    def name(self) -> str:
        """What ``--provider`` calls it."""

    def up(self, name: str, nodes: Mapping[str, int]) -> Cluster:
        """Make the cluster ``name`` with these nodes by type, ready to use. Raises BiremeError."""

    def down(self, name: str) -> bool:
        """Remove the cluster and all it left; False when there was none. Never raises for a missing one."""

    def get(self, name: str) -> Cluster:
        """The cluster ``name`` as ``up`` made it. Raises BiremeError when there is none."""

    def list(self) -> tuple[ClusterInfo, ...]:
        """The clusters of this provider."""


def provider(name: str, paths: Paths, toolbox: Toolbox, console: Console | None = None) -> Provider:
    """The provider called ``name``. Raises BiremeError with the names there are."""
    if name == "embedded":
        from bireme.clusters.embedded import EmbeddedProvider

        return EmbeddedProvider(paths, toolbox, console)
    if name == "kind":
        from bireme.clusters.kind import KindProvider

        return KindProvider(paths, toolbox, console)
    if name == "existing":
        from bireme.clusters.existing import ExistingProvider

        return ExistingProvider(paths)
    close = difflib.get_close_matches(name, PROVIDERS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(PROVIDERS)}"
    raise BiremeError(f"unknown cluster provider {name!r}: {hint}")


def check_name(name: str) -> str:
    """``name`` if it can name a cluster: lower-case letters, digits and dashes, 40 at most.

    Raises BiremeError otherwise.
    """
    if not _NAME.fullmatch(name):
        raise BiremeError(
            f"{name!r} cannot name a cluster: use lower-case letters, digits and dashes, "
            "40 at most, with a letter or digit at both ends"
        )
    return name


def cluster_dir(paths: Paths, name: str) -> Path:
    """The directory that holds everything of the cluster ``name``. Raises BiremeError for a bad name."""
    return paths.state / "clusters" / check_name(name)


def write_info(paths: Paths, info: ClusterInfo) -> None:
    """Keep the facts of a cluster in its directory, which exists; readers see the old or the new ones."""
    file = cluster_dir(paths, info.name) / _META
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(info.to_json(), indent=2) + "\n", encoding="utf-8")
    os.replace(fresh, file)


def find(paths: Paths, name: str) -> ClusterInfo | None:
    """The facts of the cluster ``name``, or None when there is none (or one half made)."""
    file = cluster_dir(paths, name) / _META
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
        return ClusterInfo(**meta | {"kubeconfig": Path(meta["kubeconfig"])})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise BiremeError(
            f"{file} cannot be read ({error}): remove the cluster with: bireme down --name {name}"
        ) from error


def list_clusters(paths: Paths) -> tuple[ClusterInfo, ...]:
    """Every cluster of this state directory, by name."""
    folders = sorted((paths.state / "clusters").glob(f"*/{_META}"))
    found = (find(paths, file.parent.name) for file in folders)
    return tuple(info for info in found if info)
