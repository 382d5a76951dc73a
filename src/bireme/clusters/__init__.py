"""Clusters by provider: what every cluster offers, and how one is made, found and removed."""

from bireme.clusters.base import DEFAULT_NAME, Cluster, ClusterInfo, Provider
from bireme.clusters.registry import PROVIDERS, provider
from bireme.clusters.state import check_name, cluster_dir, find, list_clusters, write_info

__all__ = [
    "DEFAULT_NAME",
    "PROVIDERS",
    "Cluster",
    "ClusterInfo",
    "Provider",
    "check_name",
    "cluster_dir",
    "find",
    "list_clusters",
    "provider",
    "write_info",
]
