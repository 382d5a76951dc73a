"""A real control plane with fake nodes; the releases of a test are gone when it ends."""

from __future__ import annotations

import pytest

from bireme.clusters.embedded import EmbeddedCluster

pytestmark = pytest.mark.embedded


@pytest.fixture(autouse=True)
def fsx_claim(request: pytest.FixtureRequest) -> None:
    """The stand-in for FSx for Lustre: a claim that every fake node can mount."""
    if "release" in request.fixturenames:
        cluster: EmbeddedCluster = request.getfixturevalue("cluster")
        cluster.add_claim("fsx-pvc", request.getfixturevalue("test_namespace"))
