"""Clusters with an add-on, as the fixture `with_addon` starts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from bireme.clusters.embedded import EmbeddedCluster
from bireme.live.deploy import Deployer

WithAddon = Callable[[str, Mapping[str, int]], AbstractContextManager[tuple[EmbeddedCluster, Deployer]]]
"""Takes the add-on and the nodes; gives the cluster, and what installs on it. It ends with the block."""
