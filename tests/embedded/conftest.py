"""A real control plane with fake nodes; each test removes its releases."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from bireme.clusters.embedded import EmbeddedCluster, EmbeddedProvider
from bireme.clusters.owner import owned
from bireme.clusters.registry import start_addon
from bireme.core.paths import Paths
from bireme.helm import Renderer
from bireme.live.deploy import Deployer
from bireme.live.release import Releases
from bireme.plan.instances import Instance
from bireme.testing.pytest_plugin import InstalledRelease
from bireme.tools import Toolbox
from tests.embedded.addons import OwnCluster, WithAddon
from tests.support import controllers, waiting

pytestmark = pytest.mark.embedded


@pytest.fixture(autouse=True)
def fsx_claim(request: pytest.FixtureRequest) -> None:
    """The stand-in for FSx for Lustre: a claim that every fake node can mount."""
    if "release" in request.fixturenames:
        cluster: EmbeddedCluster = request.getfixturevalue("cluster")
        cluster.add_claim("fsx-pvc", request.getfixturevalue("test_namespace"))


@pytest.fixture(scope="session")
def own_cluster(
    bireme_paths: Paths, toolbox: Toolbox, tmp_path_factory: pytest.TempPathFactory
) -> OwnCluster:
    """``with own_cluster("dra", {"cpu": 3}) as cluster``: one that no other test uses."""

    @contextmanager
    def running(word: str, nodes: Mapping[str, int], **options: Any) -> Iterator[EmbeddedCluster]:
        paths = replace(bireme_paths, state=tmp_path_factory.mktemp(word))
        provider, name = EmbeddedProvider(paths, toolbox), f"{word}-{uuid.uuid4().hex[:6]}"
        with owned(paths, "embedded", name):
            try:
                yield provider.up(name, nodes, **options)
            finally:
                provider.down(name)

    return running


@pytest.fixture(scope="session")
def with_addon(
    own_cluster: OwnCluster, toolbox: Toolbox, renderer: Renderer, instances: Mapping[str, Instance]
) -> WithAddon:
    """Starts a cluster of its own with an add-on: ``with with_addon("kueue", {"cpu": 1}) as …``."""

    @contextmanager
    def running(addon: str, nodes: Mapping[str, int]) -> Iterator[tuple[EmbeddedCluster, Deployer]]:
        with own_cluster(addon, nodes) as cluster:
            controller = start_addon(addon, cluster, toolbox)
            yield cluster, Deployer(cluster, Releases(cluster, toolbox), renderer, instances)
            controller.check_alive()

    return running


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
    waiting.until_gone(cluster.api, mpi_kind)
