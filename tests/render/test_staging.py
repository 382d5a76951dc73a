"""Init containers that verify datasets on claims, or copy them to the NVMe of the nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.rendered import RenderChart, container_of, job_of, pod_of

STAGING = {"claimName": "fsx-pvc", "subPath": "datasets/imagenet", "size": "200Gi"}
ALSO_MOUNTED = [{"claimName": "runs", "mountPath": "/runs"}, {"claimName": "fsx-pvc", "mountPath": "/fsx"}]


# The charts whose workers can verify and stage data, with the values for each form of job.
TRAININGS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch-elastic": ("torch-elastic", {}),
    "mpi": ("mpi-training", {"image": {"tag": "1"}}),
    "paddle": ("paddle", {}),
    "paddle-collocated": ("paddle", {"paddle": {"topology": "collocated"}}),
    "paddle-collective": ("paddle", {"paddle": {"mode": "collective"}}),
}
EACH_TRAINING = pytest.mark.parametrize(("chart", "own"), TRAININGS.values(), ids=TRAININGS)


def mounts(container: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {each["mountPath"]: each for each in container["volumeMounts"]}


@EACH_TRAINING
def test_a_worker_copies_data_to_its_node_before_training(
    render: RenderChart, chart: str, own: dict[str, Any]
) -> None:
    spec = pod_of(render(chart, instance="p4d.24xlarge", values={**own, "data": {"staging": STAGING}}))
    copier, trainer = container_of(spec, "staging"), container_of(spec, "trainer")
    (settings,) = [json.loads(each["value"]) for each in copier["env"] if each["name"] == "BIREME_DATASET"]
    assert settings == {"target": "/staging/data", "sources": [{"url": "file:///source"}]}
    assert mounts(copier)["/source"]["subPath"] == "datasets/imagenet"
    assert mounts(copier)["/source"]["readOnly"] is True
    copy = mounts(trainer)["/staged"]
    assert (copy["name"], copy["subPath"], copy["readOnly"]) == ("staging", "data", True)
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert dict(volumes["staging"]["emptyDir"]) == {"sizeLimit": "200Gi"}
    assert volumes["staging-source"]["persistentVolumeClaim"]["claimName"] == "fsx-pvc"
    assert trainer["resources"]["requests"]["ephemeral-storage"] == "200Gi"
    if chart == "torch-elastic":
        assert trainer["resources"]["requests"]["cpu"] == "94000m"


@EACH_TRAINING
def test_a_staged_claim_that_is_also_mounted_has_one_volume(
    render: RenderChart, chart: str, own: dict[str, Any]
) -> None:
    values = {**own, "data": {"staging": STAGING}, "claims": ALSO_MOUNTED}
    spec = pod_of(render(chart, instance="p4d.24xlarge", values=values))
    claim = mounts(container_of(spec, "staging"))["/source"]["name"]
    assert mounts(container_of(spec, "trainer"))["/fsx"]["name"] == claim != "staging-source"
    assert "staging-source" not in {volume["name"] for volume in spec["volumes"]}


@EACH_TRAINING
def test_a_worker_verifies_datasets_before_training(
    render: RenderChart, chart: str, own: dict[str, Any]
) -> None:
    values = {**own, "data": {"verify": {"paths": ["/runs/coco", "/fsx"]}}, "claims": ALSO_MOUNTED}
    rendered = render(chart, values=values)
    verifier = container_of(pod_of(rendered), "verify")
    assert list(verifier["command"])[1:] == [
        "-m", "bireme_runtime.dataset", "verify", "/runs/coco", "/fsx", "--quick",
    ]  # fmt: skip
    assert all(mounts(verifier)[path]["readOnly"] for path in ("/runs", "/fsx"))
    whole = render(chart, values={**values, "data": {"verify": {**values["data"]["verify"], "sha256": True}}})
    assert "--quick" not in container_of(pod_of(whole), "verify")["command"]


@EACH_TRAINING
def test_wrong_data_fails_the_job_without_retries(
    render: RenderChart, chart: str, own: dict[str, Any]
) -> None:
    values = {**own, "data": {"staging": STAGING, "verify": {"paths": ["/fsx"]}}, "claims": ALSO_MOUNTED}
    rules = job_of(render(chart, instance="p4d.24xlarge", values=values))["spec"]["podFailurePolicy"]["rules"]
    ending = {
        rule["onExitCodes"]["containerName"]: set(rule["onExitCodes"]["values"])
        for rule in rules
        if rule["action"] == "FailJob"
    }
    assert ending["verify"] == ending["staging"] == {64, 77, 78}


def test_the_launcher_of_an_mpijob_verifies_and_its_workers_stage(render: RenderChart) -> None:
    values = {"data": {"staging": STAGING, "verify": {"paths": ["/fsx"]}}, "claims": ALSO_MOUNTED}
    own = {"mpi": {"orchestrator": "MPIJob"}, "image": {"tag": "1"}}
    rendered = render("mpi-training", instance="p4d.24xlarge", values={**own, **values})
    (mpi_job,) = [item for item in rendered.manifests if item.kind == "MPIJob"]
    replicas = mpi_job["spec"]["mpiReplicaSpecs"]
    launcher, worker = (replicas[role]["template"]["spec"] for role in ("Launcher", "Worker"))
    assert [each["name"] for each in launcher["initContainers"]] == ["verify"]
    assert [each["name"] for each in worker["initContainers"]] == ["devices", "staging"]
    assert "/staged" in mounts(worker["containers"][0])
    assert "staging" not in {volume["name"] for volume in launcher["volumes"]}


def test_a_collocated_pserver_starts_before_its_trainer_stages(render: RenderChart) -> None:
    values = {"paddle": {"topology": "collocated"}, "data": {"staging": STAGING}}
    spec = pod_of(render("paddle", instance="p4d.24xlarge", values=values))
    assert [each["name"] for each in spec["initContainers"]] == ["pserver", "staging"]
    assert "/staged" not in mounts(container_of(spec, "pserver"))


@pytest.mark.parametrize("topology", ["separate", "collocated"])
def test_data_that_the_release_itself_writes_is_staged_when_it_is_written(
    render: RenderChart, topology: str
) -> None:
    values = {
        "paddle": {"topology": topology},
        "data": {
            "jobClaim": {"existingClaim": "fsx-pvc"},
            "jobName": "words",
            "prep": {"enabled": True, "args": ["/opt/bireme/word2vec.py"]},
            "staging": {"claimName": "fsx-pvc", "subPath": "words/data", "size": "1Gi"},
        },
        "launch": {"waitSeconds": 7},
    }
    spec = pod_of(render("paddle", instance="p4d.24xlarge", values=values))
    names = [each["name"] for each in spec["initContainers"]]
    assert names[-2:] == ["data", "staging"]
    waits = container_of(spec, "data")
    assert list(waits["command"])[-2:] == ["/home/jobpath/words/data/train.list", "7"]
    assert mounts(waits)["/home/jobpath"]["name"] == mounts(container_of(spec, "staging"))["/source"]["name"]
