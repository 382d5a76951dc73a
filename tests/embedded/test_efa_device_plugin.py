"""The real DaemonSet controller runs the EFA device plugin on exactly the nodes with EFA."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bireme.clusters.embedded import EmbeddedCluster
from bireme.testing.pytest_plugin import ReleaseFactory
from tests.embedded.fleet import Fleet
from tests.support import faults

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


@pytest.mark.whole
def test_an_instance_type_added_by_value_gets_a_pod(release: ReleaseFactory, fleet: Fleet) -> None:
    fleet.add("p9", "p9.48xlarge")
    plugin = release("efa-device-plugin", sets=OREGON)
    plugin.until(lambda: {"p4d", "g5-efa", "trn1"} <= fleet.words(plugin))
    assert "p9" not in fleet.words(plugin)
    plugin.upgrade(sets=[*OREGON, "instanceTypes={p9.48xlarge}"])
    plugin.until(lambda: fleet.words(plugin) == {"p4d", "g5-efa", "trn1", "p9"})


@pytest.mark.whole
def test_a_new_node_gets_a_pod_and_uninstalling_removes_all(
    release: ReleaseFactory, fleet: Fleet, cluster: EmbeddedCluster
) -> None:
    plugin = release("efa-device-plugin", sets=OREGON)
    (late,) = cluster.add_nodes("p4d.24xlarge", 1)
    plugin.until(lambda: late in {pod.node for pod in plugin.pods() if pod.ready})
    plugin.uninstall()
    assert plugin.objects("daemonsets") == plugin.objects("pods") == []
    faults.remove_node(cluster, late)
