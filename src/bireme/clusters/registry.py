"""The cluster providers and what runs beside their clusters, by name."""

from __future__ import annotations

from importlib import import_module

from rich.console import Console

from bireme.clusters.base import Cluster, Provider
from bireme.clusters.programs import Program
from bireme.core.errors import BiremeError, suggestion
from bireme.core.paths import Paths
from bireme.tools import Toolbox

PROVIDERS = ("embedded", "kind")


def provider(name: str, paths: Paths, toolbox: Toolbox, console: Console | None = None) -> Provider:
    """The provider called ``name``. Raises BiremeError with the names there are."""
    # Imported when it is asked for: a command needs one of them, and most commands need none.
    if name == "embedded":
        from bireme.clusters.embedded import EmbeddedProvider

        return EmbeddedProvider(paths, toolbox, console)
    if name == "kind":
        from bireme.clusters.kind import KindProvider

        return KindProvider(paths, toolbox, console)
    raise BiremeError(f"unknown cluster provider {name!r}: {suggestion(name, PROVIDERS)}")


def start_addon(name: str, cluster: Cluster, toolbox: Toolbox) -> Program:
    """Start one of `ADDONS` for an embedded cluster, with which it ends. Raises BiremeError."""
    if cluster.provider != "embedded":
        raise BiremeError(f"{name} is started for embedded clusters only: install it in {cluster.name}")
    program: Program = import_module(f"bireme.clusters.addons.{name}").start(cluster, toolbox)
    return program
