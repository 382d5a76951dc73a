"""Clusters of a test's own, as the fixtures `own_cluster` and `with_addon` start them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from bireme.clusters.embedded import EmbeddedCluster
from bireme.live.deploy import Deployer

OwnCluster = Callable[..., AbstractContextManager[EmbeddedCluster]]
"""Takes a word for its name, the nodes, and further options of `up`. The cluster ends with the block."""
WithAddon = Callable[[str, Mapping[str, int]], AbstractContextManager[tuple[EmbeddedCluster, Deployer]]]
"""Takes the add-on and the nodes; gives the cluster, and what installs on it. It ends with the block."""
