"""Claims and volumes of EFS on a real volume controller: they bind to each other and to no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bireme.clusters.base import Cluster
from bireme.core.errors import BiremeError
from bireme.testing.pytest_plugin import ReleaseFactory
from tests.support.waiting import until

SERVER = "fs-0123456789abcdef0.efs.us-west-2.amazonaws.com"
VOLUMES = "/api/v1/persistentvolumes"
NFS: dict[str, Any] = {"type": "nfs", "server": SERVER, "size": "50Gi", "capacity": "100Gi"}
# The controller binds within this time: a claim that is unbound after it stays unbound.


def claims_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"


def bound_to(cluster: Cluster, namespace: str, claim: str) -> str | None:
    """The volume a claim is bound to, None while it is not."""
    found = cluster.api.find(f"{claims_path(namespace)}/{claim}")
    if found is None or found["status"].get("phase") != "Bound":
        return None
    return str(found["spec"]["volumeName"])


def volume_names(cluster: Cluster) -> set[str]:
    return {item["metadata"]["name"] for item in cluster.api.get(VOLUMES)["items"]}


@pytest.fixture
def stranger(cluster: Cluster, test_namespace: str) -> Iterator[dict[str, Any]]:
    """A free volume and a waiting claim, each of which matches the chart's in size, mode and class."""
    volume: dict[str, Any] = {
        "metadata": {"name": f"free.{test_namespace}"},
        "spec": {
            "capacity": {"storage": "50Gi"},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "nfs": {"server": "elsewhere", "path": "/"},
        },
    }
    # More than the free volume has: only the chart's volume is large enough.
    claim = {
        "metadata": {"name": "waiting"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "resources": {"requests": {"storage": "60Gi"}},
        },
    }
    cluster.api.create(VOLUMES, volume)
    cluster.api.create(claims_path(test_namespace), claim)
    yield {"volume": volume["metadata"]["name"], "claim": "waiting"}
    cluster.api.delete(f"{claims_path(test_namespace)}/waiting")
    cluster.api.delete(f"{VOLUMES}/{volume['metadata']['name']}")


def test_claims_bind_only_to_the_volumes_of_their_release(
    release: ReleaseFactory, cluster: Cluster, test_namespace: str, stranger: dict[str, Any]
) -> None:
    efs = release("efs", values={"volumes": {"efsvol": NFS, "runs": NFS | {"path": "/runs"}}})
    claims = ("efsvol", "runs")
    until(lambda: all(bound_to(cluster, test_namespace, claim) for claim in claims))
    for claim in claims:
        assert bound_to(cluster, test_namespace, claim) == f"{test_namespace}.{efs.name}.{claim}"
    assert cluster.api.get(f"{VOLUMES}/{stranger['volume']}")["status"]["phase"] == "Available"
    assert bound_to(cluster, test_namespace, stranger["claim"]) is None


def test_kept_claims_and_volumes_are_adopted_by_a_second_install(
    release: ReleaseFactory, cluster: Cluster, test_namespace: str
) -> None:
    values = {"volumes": {"kept": NFS | {"keep": True}, "gone": NFS | {"path": "/gone"}}}
    efs = release("efs", values=values)
    until(lambda: all(bound_to(cluster, test_namespace, claim) for claim in ("kept", "gone")))
    kept, gone = (f"{test_namespace}.{efs.name}.{claim}" for claim in ("kept", "gone"))
    efs.uninstall()
    until(lambda: gone not in volume_names(cluster))
    assert efs.names("persistentvolumeclaims") == ["kept"]
    assert bound_to(cluster, test_namespace, "kept") == kept
    efs.install("efs", efs.name, test_namespace, values=values)
    until(lambda: bound_to(cluster, test_namespace, "gone") == gone)
    assert bound_to(cluster, test_namespace, "kept") == kept
    efs.upgrade(
        values={"volumes": {claim: given | {"keep": False} for claim, given in values["volumes"].items()}}
    )
    efs.uninstall()
    until(lambda: not {kept, gone} & volume_names(cluster))
    assert efs.names("persistentvolumeclaims") == []


def test_an_upgrade_that_moves_a_claim_to_another_volume_is_refused(release: ReleaseFactory) -> None:
    efs = release("efs", values={"volumes": {"data": NFS}})
    with pytest.raises(BiremeError, match="this upgrade changes source of the PersistentVolumeClaim data"):
        efs.upgrade(values={"volumes": {"data": NFS | {"server": "fs-0.efs.us-west-2.amazonaws.com"}}})
    with pytest.raises(BiremeError, match="this upgrade changes size of the PersistentVolumeClaim data"):
        efs.upgrade(values={"volumes": {"data": NFS | {"size": "60Gi"}}})


def test_volumes_of_the_driver_wait_for_the_driver(release: ReleaseFactory, cluster: Cluster) -> None:
    values = {"volumes": {"shared": {"type": "csi", "fileSystemId": "fs-0123456789abcdef0"}}}
    with pytest.raises(
        BiremeError, match=r"volumes\.shared: this cluster has no CSI driver efs\.csi\.aws\.com"
    ):
        release("efs", values=values)
    drivers = "/apis/storage.k8s.io/v1/csidrivers"
    cluster.api.create(drivers, {"metadata": {"name": "efs.csi.aws.com"}, "spec": {"attachRequired": False}})
    try:
        efs = release("efs", values=values)
        until(lambda: bound_to(cluster, efs.namespace, "shared") is not None)
    finally:
        cluster.api.delete(f"{drivers}/efs.csi.aws.com")
