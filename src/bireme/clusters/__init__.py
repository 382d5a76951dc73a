"""Clusters by provider: what every cluster offers, and how one is made, found and removed."""

from bireme.clusters.base import DEFAULT_NAME, Cluster, ClusterInfo, Provider
from bireme.clusters.registry import ADDONS, PROVIDERS, provider, start_addon
from bireme.clusters.state import check_name, cluster_dir, find, list_clusters, write_info

__all__ = [
    "ADDONS",
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
    "start_addon",
    "write_info",
]
