"""Clusters of real nodes in containers, by kind."""

from bireme.clusters.kind.cluster import KindCluster
from bireme.clusters.kind.provider import KindProvider

__all__ = ["KindCluster", "KindProvider"]
