"""The objects of an efs release, and the values that the chart refuses."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.core.manifests import Manifest
from bireme.helm import Render
from tests.support.rendered import RenderChart

SERVER = "fs-0123456789abcdef0.efs.us-west-2.amazonaws.com"
NFS: dict[str, Any] = {"type": "nfs", "server": SERVER}
CSI: dict[str, Any] = {"type": "csi", "fileSystemId": "fs-0123456789abcdef0"}
DYNAMIC: dict[str, Any] = {"type": "dynamic", "fileSystemId": "fs-0123456789abcdef0"}


def objects(rendered: Render, kind: str) -> dict[str, Manifest]:
    return {item.name: item for item in rendered.manifests if item.kind == kind and not item.is_hook}


def volume(rendered: Render) -> Manifest:
    (only,) = objects(rendered, "PersistentVolume").values()
    return only


def test_the_efs_workload_claims_50_gi_of_a_100_gi_volume(render: RenderChart) -> None:
    rendered = render("efs", workload="efs-volume", sets=[f"volumes.efsvol.server={SERVER}"])
    spec = volume(rendered)["spec"]
    assert dict(spec["nfs"]) == {"server": SERVER, "path": "/"}
    assert spec["capacity"]["storage"] == "100Gi"
    assert spec["persistentVolumeReclaimPolicy"] == "Retain"
    claim = objects(rendered, "PersistentVolumeClaim")["efsvol"]["spec"]
    assert claim["resources"]["requests"]["storage"] == "50Gi"
    assert list(claim["accessModes"]) == ["ReadWriteMany"]


def test_a_volume_and_its_claim_name_each_other(render: RenderChart) -> None:
    rendered = render("efs", values={"volumes": {"data": NFS}}, release="files", namespace="team")
    spec = volume(rendered)["spec"]
    assert (spec["claimRef"]["namespace"], spec["claimRef"]["name"]) == ("team", "data")
    claim = objects(rendered, "PersistentVolumeClaim")["data"]["spec"]
    assert claim["volumeName"] == volume(rendered).name == "team.files.data"
    assert claim["storageClassName"] == spec["storageClassName"] == ""


def test_nfs_has_the_mount_options_that_efs_recommends_by_default(render: RenderChart) -> None:
    options = volume(render("efs", values={"volumes": {"data": NFS}}))["spec"]["mountOptions"]
    assert {"nfsvers=4.1", "hard", "noresvport", "rsize=1048576", "wsize=1048576"} <= set(options)
    own = NFS | {"mountOptions": ["nfsvers=4.0"]}
    assert list(volume(render("efs", values={"volumes": {"data": own}}))["spec"]["mountOptions"]) == [
        "nfsvers=4.0"
    ]


@pytest.mark.parametrize(
    ("more", "handle"),
    [
        ({}, "fs-0123456789abcdef0"),
        ({"path": "/runs"}, "fs-0123456789abcdef0:/runs"),
        ({"accessPointId": "fsap-0123456789abcdef0"}, "fs-0123456789abcdef0::fsap-0123456789abcdef0"),
    ],
)
def test_the_volume_handle_has_file_system_folder_and_access_point(
    render: RenderChart, more: dict[str, Any], handle: str
) -> None:
    source = volume(render("efs", values={"volumes": {"data": CSI | more}}))["spec"]["csi"]
    assert (source["driver"], source["volumeHandle"]) == ("efs.csi.aws.com", handle)


def test_a_dynamic_volume_has_its_own_storage_class_that_retains(render: RenderChart) -> None:
    given = {"volumes": {"data": DYNAMIC | {"uid": 1000, "gid": 1000}}}
    rendered = render("efs", values=given, release="files", namespace="team")
    storage_class = objects(rendered, "StorageClass")["team.files.data"]
    assert storage_class["reclaimPolicy"] == "Retain"
    assert storage_class["parameters"]["uid"] == "1000"
    claim = objects(rendered, "PersistentVolumeClaim")["data"]["spec"]
    assert claim["storageClassName"] == "team.files.data"
    assert "volumeName" not in claim
    assert not objects(rendered, "PersistentVolume")


@pytest.mark.parametrize("given", [NFS, CSI | {"path": "/runs"}])
def test_a_folder_with_an_owner_is_given_to_it_by_a_job(render: RenderChart, given: dict[str, Any]) -> None:
    """A new file system belongs to root, and neither NFS nor the driver applies fsGroup."""
    owned = given | {"uid": 1000, "gid": 2000, "directoryPerms": "2770"}
    rendered = render("efs", values={"volumes": {"data": owned, "other": NFS | {"path": "/other"}}})
    (job,) = objects(rendered, "Job").values()
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][0].splitlines()[:2] == ["chmod 2770 /volume", "chown 1000:2000 /volume"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "data"
    assert list(container["securityContext"]["capabilities"]["add"]) == ["CHOWN", "FOWNER"]
    another = render("efs", values={"volumes": {"data": owned | {"uid": 1001}}})
    assert set(objects(another, "Job")) != {job.name}, "a Job cannot change"
