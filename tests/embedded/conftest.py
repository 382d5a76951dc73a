"""A real control plane with fake nodes; each test removes its releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bireme.clusters import controllers
from bireme.clusters.embedded import EmbeddedCluster
from bireme.clusters.waiting import until
from bireme.pytest_plugin import InstalledRelease
from bireme.tools import Toolbox

pytestmark = pytest.mark.embedded


@pytest.fixture(autouse=True)
def fsx_claim(request: pytest.FixtureRequest) -> None:
    """The stand-in for FSx for Lustre: a claim that every fake node can mount."""
    if "release" in request.fixturenames:
        cluster: EmbeddedCluster = request.getfixturevalue("cluster")
        cluster.add_claim("fsx-pvc", request.getfixturevalue("test_namespace"))


@pytest.fixture(scope="session")
def mpi_kind() -> str:
    """The API server's path of the kind MPIJob."""
    return "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/mpijobs.kubeflow.org"


@pytest.fixture(scope="module")
def mpi_operator(
    cluster: EmbeddedCluster, new_release: Callable[[], InstalledRelease], toolbox: Toolbox, mpi_kind: str
) -> Iterator[InstalledRelease]:
    """charts/mpijob, and the real operator with the arguments and the rights of the chart."""
    operator = new_release()
    operator.install("mpijob", "mpijob", "mpi-operator")
    with controllers.running(cluster, "mpijob", "mpi-operator", toolbox.path("mpi-operator")):
        yield operator
    operator.uninstall()
    cluster.api.delete(mpi_kind)
    until(lambda: cluster.api.find(mpi_kind) is None, 60, "the kind MPIJob to be gone")
