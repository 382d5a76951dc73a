"""Data before a training: verified on its claim, or copied to the nodes' own NVMe; and when not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bireme.render import Render, RenderError

STAGING = {"claimName": "fsx-pvc", "subPath": "datasets/imagenet", "size": "200Gi"}
ELSEWHERE = [{"claimName": "runs", "mountPath": "/runs"}]
ALSO_MOUNTED = [*ELSEWHERE, {"claimName": "fsx-pvc", "mountPath": "/fsx"}]


def pod(rendered: Render) -> Mapping[str, Any]:
    (job,) = [item for item in rendered.manifests if item.kind == "Job" and not item.is_hook]
    found: Mapping[str, Any] = job["spec"]["template"]["spec"]
    return found


def mounts(container: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {each["mountPath"]: each for each in container["volumeMounts"]}


def test_a_worker_copies_to_its_node_before_it_trains(render: Callable[..., Render]) -> None:
    rendered = render("torch-elastic", instance="p4d.24xlarge", values={"staging": STAGING})
    spec = pod(rendered)
    (copier,), (trainer,) = spec["initContainers"], spec["containers"]
    (said,) = [json.loads(each["value"]) for each in copier["env"] if each["name"] == "BIREME_DATASET"]
    assert said == {"target": "/staging/data", "sources": [{"url": "file:///source"}]}
    assert mounts(copier)["/source"]["subPath"] == "datasets/imagenet"
    assert mounts(copier)["/source"]["readOnly"] is True
    copy = mounts(trainer)["/staged"]
    assert (copy["name"], copy["subPath"], copy["readOnly"]) == ("staging", "data", True)
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert dict(volumes["staging"]["emptyDir"]) == {"sizeLimit": "200Gi"}
    assert volumes["staging-source"]["persistentVolumeClaim"]["claimName"] == "fsx-pvc"
    assert trainer["resources"]["requests"]["ephemeral-storage"] == "200Gi"
    assert trainer["resources"]["requests"]["cpu"] == "94000m"


def test_a_claim_that_is_mounted_anyway_is_one_volume(render: Callable[..., Render]) -> None:
    values = {"staging": STAGING, "claims": ALSO_MOUNTED}
    spec = pod(render("torch-elastic", instance="p4d.24xlarge", values=values))
    assert mounts(spec["initContainers"][0])["/source"]["name"] == "claim-1"
    assert mounts(spec["containers"][0])["/fsx"]["name"] == "claim-1"
    assert "staging-source" not in {volume["name"] for volume in spec["volumes"]}


def test_a_job_that_stages_nothing_carries_nothing_of_it(render: Callable[..., Render]) -> None:
    spec = pod(render("torch-elastic", instance="p4d.24xlarge", values={"claims": ELSEWHERE}))
    assert "initContainers" not in spec
    assert "ephemeral-storage" not in spec["containers"][0]["resources"]["requests"]
    assert "staging" not in {volume["name"] for volume in spec["volumes"]}


def test_what_copies_is_in_the_config_map_which_stays_small(render: Callable[..., Render]) -> None:
    rendered = render("torch-elastic", instance="p4d.24xlarge", values={"staging": STAGING})
    runtimes = [item["data"] for item in rendered.manifests if "-runtime-" in item.name]
    (data,) = [each for each in runtimes if "bireme_runtime__dataset.py" in each]
    assert sum(map(len, data.values())) < 256 * 1024


def test_a_worker_verifies_datasets_before_it_trains(render: Callable[..., Render]) -> None:
    verify = {"paths": ["/runs/coco", "/fsx"]}
    rendered = render("torch-elastic", values={"verify": verify, "claims": ALSO_MOUNTED})
    (verifier,) = pod(rendered)["initContainers"]
    assert list(verifier["command"])[1:] == [
        "-m", "bireme_runtime.dataset", "verify", "/runs/coco", "/fsx", "--quick",
    ]  # fmt: skip
    assert all(mounts(verifier)[path]["readOnly"] for path in ("/runs", "/fsx"))
    assert any("bireme_runtime__dataset.py" in item["data"] for item in rendered.manifests if "data" in item)
    rendered = render("torch-elastic", values={"verify": {**verify, "sha256": True}, "claims": ALSO_MOUNTED})
    assert "--quick" not in pod(rendered)["initContainers"][0]["command"]
    (rule,) = [
        rule
        for item in rendered.manifests
        if item.kind == "Job"
        for rule in item["spec"]["podFailurePolicy"]["rules"]
        if rule.get("onExitCodes", {}).get("containerName") == "verify"
    ]
    assert rule["action"] == "FailJob"


@pytest.mark.parametrize(
    ("instance", "values", "sentence"),
    [
        ("p3.2xlarge", {}, "staging.claimName: p3.2xlarge has no NVMe of its own"),
        (None, {}, "staging.claimName: without an instance type nobody knows"),
        ("p4d.24xlarge", {"staging": {**STAGING, "size": ""}}, "staging.size: say how much the data takes"),
        (
            "p4d.24xlarge",
            {"staging": {**STAGING, "size": "7Ti"}},
            "staging.size: 7Ti is more than the 6332Gi of NVMe that a worker on p4d.24xlarge can fill",
        ),
        (
            "p4d.24xlarge",
            {"staging": {**STAGING, "size": "4Ti"}, "accelerators": 4},
            "staging.size: 4Ti is more than the 3166Gi",
        ),
        (
            "p4d.24xlarge",
            {"staging": {"size": "1Gi"}},
            "staging.size: without staging.claimName nothing is staged",
        ),
        (
            "p4d.24xlarge",
            {"claims": [{"claimName": "fsx-pvc", "mountPath": "/staged"}]},
            "claims: /staged is mounted already",
        ),
        ("p4d.24xlarge", {"staging": {**STAGING, "from": "x"}}, "from"),
        (
            "p4d.24xlarge",
            {"verify": {"paths": ["/fsx-data"]}, "claims": [{"claimName": "a", "mountPath": "/fsx"}]},
            "verify.paths: /fsx-data is on none of the claims",
        ),
    ],
)
def test_is_refused(
    render: Callable[..., Render], instance: str | None, values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RenderError) as refused:
        render("torch-elastic", instance=instance, values={"staging": STAGING, **values})
    assert sentence in str(refused.value)
