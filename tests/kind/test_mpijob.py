"""mpi-operator in real pods: it passes its helm test, and a second replica takes over from one that dies."""

from __future__ import annotations

import pytest

from bireme.clusters.kind import KindCluster
from bireme.testing.pytest_plugin import InstalledRelease
from tests.kind.shell import Shell, until

pytestmark = pytest.mark.whole

LEASE = "/apis/coordination.k8s.io/v1/namespaces/mpi-operator/leases/mpi-operator"


def leader(cluster: KindCluster) -> str:
    """The pod that holds the lease."""
    lease = cluster.api.find(LEASE)
    return str(lease["spec"]["holderIdentity"]).partition("_")[0] if lease else ""


def test_one_of_two_operators_leads_and_the_other_takes_over(
    mpi_operator: InstalledRelease, cluster: KindCluster, shell: Shell
) -> None:
    helm_test = ("test", mpi_operator.name, "-n", mpi_operator.namespace, "--timeout", "3m")
    shell.helm(*helm_test)
    first = leader(cluster)
    assert first in mpi_operator.names("pods")
    mpi_operator.delete_pod(first)
    until(lambda: leader(cluster) not in ("", first), what="another operator to lead")
    assert mpi_operator.wait() == ()
    shell.helm(*helm_test)
