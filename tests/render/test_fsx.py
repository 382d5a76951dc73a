"""The objects of an fsx release, and the values that the chart refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bireme.helm import Render, RenderError
from tests.support.fsx import DYNAMIC, STATIC
from tests.support.rendered import the


def static(**more: Any) -> dict[str, Any]:
    return STATIC | {"static": STATIC["static"] | more}


def dynamic(size: str = "1200Gi", **more: Any) -> dict[str, Any]:
    return DYNAMIC | {"size": size, "dynamic": DYNAMIC["dynamic"] | more}


def test_the_imagenet_workloads_mount_its_claim(render: Callable[..., Render]) -> None:
    claim = the(render("fsx", values=DYNAMIC), "PersistentVolumeClaim")
    job = the(render("torch-elastic", instance="p4d.24xlarge", workload="imagenet-efa"), "Job")
    volumes = [dict(volume) for volume in job["spec"]["template"]["spec"]["volumes"]]
    assert claim.name in {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in volumes}


def test_a_static_volume_has_the_names_of_its_file_system(render: Callable[..., Render]) -> None:
    rendered = render("fsx", values=STATIC, release="fsx", namespace="team")
    spec = the(rendered, "PersistentVolume")["spec"]
    assert spec["csi"]["volumeHandle"] == "fs-0123456789abcdef0"
    assert dict(spec["csi"]["volumeAttributes"]) == {
        "dnsname": "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
        "mountname": "fsx",
    }
    assert (spec["claimRef"]["namespace"], spec["claimRef"]["name"]) == ("team", "fsx-pvc")
    assert the(rendered, "PersistentVolumeClaim")["spec"]["volumeName"] == "team.fsx.fsx-pvc"
    assert spec["persistentVolumeReclaimPolicy"] == "Retain"


def test_a_dynamic_claim_has_its_own_storage_class(render: Callable[..., Render]) -> None:
    rendered = render("fsx", values=dynamic(), release="fsx", namespace="team")
    storage_class = the(rendered, "StorageClass")
    assert the(rendered, "PersistentVolumeClaim")["spec"]["storageClassName"] == storage_class.name
    assert storage_class["provisioner"] == "fsx.csi.aws.com"
    assert storage_class["reclaimPolicy"] == "Retain"
    assert dict(storage_class["parameters"]) == {
        "subnetId": "subnet-0123456789abcdef0",
        "securityGroupIds": "sg-0123456789abcdef0",
        "storageType": "SSD",
        "deploymentType": "PERSISTENT_2",
        "perUnitStorageThroughput": "250",
        "fileSystemTypeVersion": "2.15",
        "dataCompressionType": "NONE",
        "automaticBackupRetentionDays": "0",
    }


def test_volume_and_class_have_the_names_that_the_values_give(render: Callable[..., Render]) -> None:
    made = render("fsx", values=static() | {"persistentVolume": {"name": "fsx-pv"}})
    assert the(made, "PersistentVolume").name == "fsx-pv"
    assert the(made, "PersistentVolumeClaim")["spec"]["volumeName"] == "fsx-pv"
    made = render("fsx", values=dynamic() | {"storageClass": {"name": "fsx-sc"}})
    assert the(made, "StorageClass").name == "fsx-sc"
    assert the(made, "PersistentVolumeClaim")["spec"]["storageClassName"] == "fsx-sc"


def test_backups_and_maintenance_start_when_the_values_say(render: Callable[..., Render]) -> None:
    asked: dict[str, Any] = {
        "automaticBackupRetentionDays": 7,
        "dailyAutomaticBackupStartTime": "02:30",
        "copyTagsToBackups": True,
        "weeklyMaintenanceStartTime": "7:04:00",
    }
    parameters = the(render("fsx", values=dynamic(**asked)), "StorageClass")["parameters"]
    assert {key: parameters[key] for key in asked} == asked | {
        "automaticBackupRetentionDays": "7",
        "copyTagsToBackups": "true",
    }


@pytest.mark.parametrize("asked", [{"dailyAutomaticBackupStartTime": "02:30"}, {"copyTagsToBackups": True}])
def test_settings_of_backups_that_are_off_are_refused(
    render: Callable[..., Render], asked: dict[str, Any]
) -> None:
    with pytest.raises(RenderError, match="backups, which are off; set automaticBackupRetentionDays"):
        render("fsx", values=dynamic(**asked))


@pytest.mark.parametrize("time", ["0:04:00", "8:04:00", "04:00", "7:24:00"])
def test_a_maintenance_time_that_fsx_would_refuse_is_refused(
    render: Callable[..., Render], time: str
) -> None:
    with pytest.raises(RenderError, match="weeklyMaintenanceStartTime"):
        render("fsx", values=dynamic(weeklyMaintenanceStartTime=time))


def test_a_bucket_is_imported_and_exported(render: Callable[..., Render]) -> None:
    parameters = the(render("fsx", files=["charts/fsx/ci/s3-values.yaml"]), "StorageClass")["parameters"]
    assert (parameters["s3ImportPath"], parameters["s3ExportPath"]) == (
        "s3://imagenet/ILSVRC",
        "s3://imagenet/export",
    )
    assert parameters["autoImportPolicy"] == "NEW_CHANGED"
    assert not {"perUnitStorageThroughput", "automaticBackupRetentionDays"} & set(parameters)


def test_a_file_system_over_efa_has_the_parameters_for_it(render: Callable[..., Render]) -> None:
    parameters = the(render("fsx", files=["charts/fsx/ci/efa-values.yaml"]), "StorageClass")["parameters"]
    assert (
        parameters["efaEnabled"],
        parameters["metadataConfigurationMode"],
        parameters["metadataIops"],
    ) == (
        "true",
        "USER_PROVISIONED",
        "6000",
    )


def test_the_first_pod_of_a_claim_that_waits_for_it_runs_in_its_zone(render: Callable[..., Render]) -> None:
    (term,) = the(render("fsx", files=["charts/fsx/ci/efa-values.yaml"]), "StorageClass")["allowedTopologies"]
    (expression,) = term["matchLabelExpressions"]
    assert (expression["key"], list(expression["values"])) == ("topology.kubernetes.io/zone", ["us-west-2b"])


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no choice", {}, "provisioning: choose where the file system comes from"),
    (
        "an access mode that the driver refuses",
        static() | {"accessMode": "ReadOnlyMany"},
        "accessMode: the FSx CSI driver refuses ReadOnlyMany",
    ),
    ("no subnet", dynamic(subnetId=""), "dynamic.subnetId: the file system needs a subnet"),
    ("no security group", dynamic(securityGroupIds=[]), "dynamic.securityGroupIds: the file system needs"),
    ("no file system", static(fileSystemId=""), "static.fileSystemId: the file system is not given"),
    ("no DNS name", static(dnsName=""), "static.dnsName: the file system is not given"),
    ("no mount name", static(mountName=""), "static.mountName: the file system is not given"),
    ("a placeholder", static(mountName="???"), "mountName"),
    ("another's DNS name", static(fileSystemId="fs-99999999"), "static.dnsName: fs-0123456789abcdef0.fsx"),
    ("both", dynamic() | {"static": STATIC["static"]}, "static.fileSystemId: with provisioning dynamic"),
    ("a size FSx has not", dynamic("2000Gi"), "size: FSx has no file systems of 2000Gi; set 1200Gi or a"),
    (
        "too small for EFA",
        dynamic("2400Gi", efaEnabled=True, metadata={"mode": "AUTOMATIC"}),
        "size: FSx has no file systems of 2400Gi; set a multiple of 19200Gi",
    ),
    (
        "EFA without metadata servers",
        dynamic("4800Gi", efaEnabled=True, perUnitStorageThroughput=1000),
        "dynamic.metadata.mode: EFA needs a metadata configuration",
    ),
    (
        "EFA on PERSISTENT_1",
        dynamic("48000Gi", efaEnabled=True, deploymentType="PERSISTENT_1", perUnitStorageThroughput=100),
        "dynamic.efaEnabled: PERSISTENT_1 has no EFA",
    ),
    (
        "a throughput of another type",
        dynamic(perUnitStorageThroughput=200),
        "dynamic.perUnitStorageThroughput: PERSISTENT_2 has 125, 250, 500, 1000, not 200",
    ),
    (
        "a throughput of scratch",
        dynamic(deploymentType="SCRATCH_2"),
        "dynamic.perUnitStorageThroughput: SCRATCH_2 has a fixed throughput",
    ),
    (
        "metadata IOPS by FSx's choice",
        dynamic(metadata={"mode": "AUTOMATIC", "iops": 6000}),
        "dynamic.metadata.iops: dynamic.metadata.mode=USER_PROVISIONED needs it",
    ),
    (
        "S3 with PERSISTENT_2",
        dynamic(s3ImportPath="s3://imagenet"),
        "dynamic.s3ImportPath: the driver links S3 to SCRATCH_2 and PERSISTENT_1 only",
    ),
    (
        "an export to another bucket",
        dynamic(
            deploymentType="PERSISTENT_1",
            perUnitStorageThroughput=100,
            s3ImportPath="s3://imagenet/a",
            s3ExportPath="s3://other/a",
        ),
        "dynamic.s3ExportPath: FSx exports to the bucket that it imports from",
    ),
    ("nothing to follow", dynamic(autoImportPolicy="NEW"), "dynamic.autoImportPolicy: there is no S3 folder"),
    ("Recycle", dynamic(reclaimPolicy="Recycle"), "reclaimPolicy"),
    (
        "a name for a class of a static volume",
        static() | {"storageClass": {"name": "fsx-sc"}},
        "storageClass.name: a static volume has no StorageClass",
    ),
    (
        "a name for a volume that the driver makes",
        dynamic() | {"persistentVolume": {"name": "fsx-pv"}},
        "persistentVolume.name: the driver names the volumes that it makes",
    ),
]


@pytest.mark.parametrize(("values", "sentence"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED])
def test_is_refused(render: Callable[..., Render], values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RenderError) as refused:
        render("fsx", values=values)
    assert sentence in str(refused.value)
