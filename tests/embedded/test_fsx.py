"""A claim on FSx for Lustre: it binds to its volume, its pods run in its zone, and it stays if it is to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bireme.clusters.embedded import EmbeddedCluster
from bireme.core.errors import BiremeError
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.support import faults
from tests.support.fsx import DYNAMIC, STATIC
from tests.support.waiting import until

DRIVERS = "/apis/storage.k8s.io/v1/csidrivers"
VOLUMES = "/api/v1/persistentvolumes"


@pytest.fixture
def driver(cluster: EmbeddedCluster) -> Iterator[None]:
    """The driver's registration. Nothing is mounted here, so the driver itself is not needed."""
    cluster.api.create(DRIVERS, {"metadata": {"name": "fsx.csi.aws.com"}, "spec": {"attachRequired": False}})
    yield
    cluster.api.delete(f"{DRIVERS}/fsx.csi.aws.com")


@pytest.fixture
def far_node(cluster: EmbeddedCluster) -> Iterator[str]:
    """A node in another zone than all the others."""
    (name,) = cluster.add_nodes("cpu", 1)
    labels = {"topology.kubernetes.io/zone": "us-west-2b"}
    cluster.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})
    yield name
    faults.remove_node(cluster, name)


def claim_of(release: InstalledRelease, name: str) -> dict[str, Any] | None:
    path = f"/api/v1/namespaces/{release.namespace}/persistentvolumeclaims/{name}"
    found: dict[str, Any] | None = release.cluster.api.find(path)
    return found


def is_bound(release: InstalledRelease, name: str) -> bool:
    claim = claim_of(release, name)
    return claim is not None and claim["status"].get("phase") == "Bound"


def reader(name: str, claim: str) -> dict[str, Any]:
    """A pod that mounts the claim and chooses no nodes."""
    mount = {"name": "lustre", "mountPath": "/fsx"}
    return {
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "reader", "image": "none", "volumeMounts": [mount]}],
            "volumes": [{"name": "lustre", "persistentVolumeClaim": {"claimName": claim}}],
        },
    }


@pytest.mark.usefixtures("driver")
def test_pods_that_mount_the_claim_run_in_its_zone(
    release: ReleaseFactory, cluster: EmbeddedCluster, far_node: str
) -> None:
    fsx = release("fsx", values=STATIC | {"claimName": "zonal", "zone": "us-west-2b"})
    pods = f"/api/v1/namespaces/{fsx.namespace}/pods"
    names = [f"reader-{number}" for number in range(3)]
    for name in names:
        cluster.api.create(pods, reader(name, "zonal"))
    until(lambda: all("nodeName" in cluster.api.get(f"{pods}/{name}")["spec"] for name in names))
    assert {cluster.api.get(f"{pods}/{name}")["spec"]["nodeName"] for name in names} == {far_node}
    for name in names:
        cluster.api.delete(f"{pods}/{name}")


@pytest.mark.whole
@pytest.mark.usefixtures("driver")
def test_uninstalling_keeps_only_the_claim_that_is_to_stay(
    release: ReleaseFactory, cluster: EmbeddedCluster
) -> None:
    values = STATIC | {"claimName": "kept"}
    fsx = release("fsx", values=values | {"keep": True})
    volume = f"{VOLUMES}/{fsx.namespace}.{fsx.name}.kept"
    until(lambda: is_bound(fsx, "kept"))
    fsx.uninstall()
    assert is_bound(fsx, "kept")
    assert cluster.api.find(volume) is not None
    fsx.install("fsx", fsx.name, fsx.namespace, values=values)
    fsx.uninstall()
    until(lambda: claim_of(fsx, "kept") is None and cluster.api.find(volume) is None)


@pytest.mark.usefixtures("driver")
def test_the_claim_of_a_new_file_system_binds_to_no_other_volume(
    release: ReleaseFactory, cluster: EmbeddedCluster
) -> None:
    """The other volumes are those of the fake class, which bind at once."""
    values = DYNAMIC | {"claimName": "made"}
    fsx = release("fsx", values=values)
    cluster.add_claim("stranger", fsx.namespace)
    stranger = f"/api/v1/namespaces/{fsx.namespace}/persistentvolumeclaims/stranger"
    until(lambda: cluster.api.get(stranger)["status"].get("phase") == "Bound")
    claim = claim_of(fsx, "made")
    assert claim is not None
    assert claim["status"]["phase"] == "Pending"
    assert claim["spec"]["storageClassName"] == f"{fsx.namespace}.{fsx.name}.made"
    with pytest.raises(BiremeError, match="this upgrade changes dynamic of the PersistentVolumeClaim made"):
        fsx.upgrade(values=values | {"dynamic": DYNAMIC["dynamic"] | {"dataCompressionType": "LZ4"}})


def test_without_the_driver_the_chart_is_refused(release: ReleaseFactory) -> None:
    with pytest.raises(BiremeError, match=r"this cluster has no CSI driver fsx\.csi\.aws\.com"):
        release("fsx", values=STATIC)
