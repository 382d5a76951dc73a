"""The objects of an fsx release, and the values that the chart refuses."""

from __future__ import annotations

from typing import Any

import yaml

from bireme.core.paths import Paths
from tests.support.fsx import DYNAMIC, STATIC
from tests.support.rendered import RenderChart, the


def static(**more: Any) -> dict[str, Any]:
    return STATIC | {"static": STATIC["static"] | more}


def dynamic(size: str = "1200Gi", **more: Any) -> dict[str, Any]:
    return DYNAMIC | {"size": size, "dynamic": DYNAMIC["dynamic"] | more}


def test_the_imagenet_workloads_mount_its_claim(render: RenderChart) -> None:
    claim = the(render("fsx", values=DYNAMIC), "PersistentVolumeClaim")
    job = the(render("torch-elastic", instance="p4d.24xlarge", workload="imagenet-efa"), "Job")
    volumes = [dict(volume) for volume in job["spec"]["template"]["spec"]["volumes"]]
    assert claim.name in {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in volumes}


def test_a_dynamic_claim_has_its_own_storage_class(render: RenderChart) -> None:
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


def test_the_owner_of_a_new_file_system_is_of_the_release_and_takes_its_registries(
    render: RenderChart,
) -> None:
    extra = yaml.safe_load((Paths.discover().values / "fsx-owner.yaml").read_text())
    values = STATIC | extra | {"claimName": "photos", "global": {"imageRegistry": "registry.example"}}
    jobs = {release: the(render("fsx", release=release, values=values), "Job") for release in ("a", "b")}
    assert {release: job.name for release, job in jobs.items()} == {"a": "a-owner", "b": "b-owner"}
    pod = jobs["a"].thaw()["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.example/library/python:3.13.5-slim-bookworm"
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "photos"}
