"""Bireme: plan, install and check distributed training jobs rendered from Helm charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bireme.workbench import Cluster

__all__ = ["Cluster", "__version__"]
__version__ = "0.3.0"


def __getattr__(name: str) -> type[Cluster]:
    """Import `bireme.Cluster` on first use, because it needs most of the package."""
    if name != "Cluster":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bireme.workbench import Cluster

    return Cluster
