"""The real DaemonSet controller runs the EFA device plugin on exactly the nodes with EFA."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bireme.clusters.embedded import EmbeddedCluster
from bireme.testing.pytest_plugin import ReleaseFactory
from tests.embedded.fleet import Fleet

OREGON = ["region=us-west-2"]


@pytest.fixture(scope="module")
def fleet(cluster: EmbeddedCluster) -> Iterator[Fleet]:
    fleet = Fleet(cluster)
    yield fleet
    fleet.remove()


def test_it_runs_on_every_node_with_efa_and_no_other(release: ReleaseFactory, fleet: Fleet) -> None:
    plugin = release("efa-device-plugin", sets=OREGON)
    plugin.until(lambda: {"p4d", "g5-efa", "trn1"} <= fleet.words(plugin))
    assert fleet.words(plugin) == {"p4d", "g5-efa", "trn1"}
    assert plugin.differences() == ()
    tolerant = [*OREGON, "tolerations[0].key=team", "tolerations[0].operator=Exists"]
    plugin.upgrade(sets=tolerant)
    plugin.until(lambda: fleet.words(plugin) == {"p4d", "g5-efa", "trn1", "tainted"})
