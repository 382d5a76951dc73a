"""The objects of a dataset release, and the values that the chart refuses."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bireme.helm import Render
from tests.support.rendered import RenderChart, container_of, the

S3: dict[str, Any] = {
    "claim": {"name": "fsx-pvc", "path": "datasets/imagenet"},
    "sources": [{"url": "s3://imagenet/ILSVRC"}],
}


def pod(rendered: Render) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = the(rendered, "Job")["spec"]["template"]["spec"]
    return spec


def env(rendered: Render) -> dict[str, Any]:
    return {
        each["name"]: each.get("value", each.get("valueFrom"))
        for each in container_of(pod(rendered), "stage")["env"]
    }


def test_all_steps_have_the_same_settings(render: RenderChart) -> None:
    rendered = render("dataset", values=S3 | {"replace": True})
    assert container_of(pod(rendered), "stage")["env"] == container_of(pod(rendered), "publish")["env"]
    settings = json.loads(env(rendered)["BIREME_DATASET"])
    assert settings["target"] == "/claim/datasets/imagenet"
    assert settings["sources"] == [{"url": "s3://imagenet/ILSVRC"}]
    assert settings["replace"] is True


def test_each_of_several_pods_copies_a_share(render: RenderChart) -> None:
    rendered = render("dataset", values=S3 | {"workers": 8})
    spec = the(rendered, "Job")["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 8, 8)
    assert json.loads(env(rendered)["BIREME_DATASET"])["workers"] == 8


def test_a_source_has_a_token_and_credentials_of_its_own(render: RenderChart) -> None:
    sources = [
        {"url": "https://huggingface.co/a/b/resolve/main/c.tar", "token": {"secret": "hf"}, "extract": True},
        {"url": "s3://theirs/data", "s3": {"region": "eu-west-1", "existingSecret": "theirs"}},
    ]
    found = env(render("dataset", values=S3 | {"sources": sources}))
    assert json.loads(found["BIREME_DATASET"])["sources"][0]["extract"] is True
    assert found["BIREME_SOURCE_0_BIREME_TOKEN"]["secretKeyRef"] == {"name": "hf", "key": "token"}
    assert found["BIREME_SOURCE_1_AWS_REGION"] == "eu-west-1"
    assert found["BIREME_SOURCE_1_AWS_ACCESS_KEY_ID"]["secretKeyRef"]["name"] == "theirs"
    assert found["AWS_REGION"] == "us-west-2"


def test_a_proxy_and_its_authority_reach_every_step(render: RenderChart) -> None:
    values = {"proxy": {"url": "http://proxy:3128", "except": "data.lan"}, "caBundle": {"configMap": "site"}}
    rendered = render("dataset", values=S3 | values)
    for name in ("stage", "publish"):
        container = container_of(pod(rendered), name)
        found = {each["name"]: each.get("value") for each in container["env"]}
        assert found["HTTPS_PROXY"] == found["http_proxy"] == "http://proxy:3128"
        assert found["NO_PROXY"].endswith(",.svc,.cluster.local,data.lan")
        assert "169.254.170.23" in found["NO_PROXY"]
        assert found["SSL_CERT_FILE"] == "/bireme/ca/ca.crt"
        assert {"name": "ca", "mountPath": "/bireme/ca", "readOnly": True} in container["volumeMounts"]
    assert {"name": "ca", "configMap": {"name": "site"}} in pod(rendered)["volumes"]


def test_exit_codes_that_no_retry_helps_fail_the_job(render: RenderChart) -> None:
    rules = the(render("dataset", values=S3), "Job")["spec"]["podFailurePolicy"]["rules"]
    codes = {rule["onExitCodes"]["containerName"]: list(rule["onExitCodes"]["values"]) for rule in rules[1:]}
    assert codes == {"stage": [64, 77, 78], "publish": [64, 77, 78]}


def test_the_config_map_holds_only_the_code_of_the_dataset_component(render: RenderChart) -> None:
    keys = set(the(render("dataset", values=S3), "ConfigMap")["data"])
    assert {key.split("__")[1] for key in keys} == {"", "process", "sources", "dataset"}
    others = next(item for item in render("torch-elastic").manifests if "-runtime-worker-" in item.name)[
        "data"
    ]
    assert not [key for key in others if "__dataset__" in key or "__sources__" in key]


def test_coco_is_copied_to_a_bucket_if_one_is_named(render: RenderChart) -> None:
    rendered = render("dataset", workload="coco-2017", sets=["upload=s3://mine/coco-2017"])
    assert json.loads(env(rendered)["BIREME_DATASET"])["upload"] == "s3://mine/coco-2017"
    assert "upload" not in json.loads(env(render("dataset", workload="coco-2017"))["BIREME_DATASET"])


def test_a_shell_pod_is_rendered_only_on_request(render: RenderChart) -> None:
    assert "Deployment" not in {item.kind for item in render("dataset", values=S3).manifests}
    shell = the(render("dataset", values=S3 | {"shell": {"enabled": True}}), "Deployment")
    (container,) = shell["spec"]["template"]["spec"]["containers"]
    assert list(container["command"]) == ["sleep", "infinity"]


def test_validation_images_of_imagenet_are_sorted_by_class(render: RenderChart, tmp_path: Path) -> None:
    """The script of the workload, run as in the pod, but in another folder."""
    rendered = render("dataset", workload="imagenet", sets=["sources[0].url=s3://mine/ILSVRC"])
    staging = "/claim/ILSVRC/Data/.CLS-LOC.staging"
    (script,) = container_of(pod(rendered), "prepare")["args"]
    assert staging in script
    (tmp_path / "val").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / f"val/{name}.JPEG").write_text(name)
    rows = ["ImageId,PredictionString", "a,n01 1 2 3 4 n01 5 6 7 8", "b,n02 1 2 3 4", "c,n01 1 2 3 4"]
    (tmp_path / "LOC_val_solution.csv").write_text("\n".join(rows))
    subprocess.run(["sh", "-ec", script.replace(staging, str(tmp_path))], check=True)
    found = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.JPEG"))
    assert found == ["val/n01/a.JPEG", "val/n01/c.JPEG", "val/n02/b.JPEG"]


def test_a_dataset_at_the_root_of_a_claim_is_staged_and_verified_there(render: RenderChart) -> None:
    root = {"claim": {"name": "fsx-pvc", "path": "/"}, "prepare": {"script": "true"}}
    rendered = render("dataset", values=S3 | root)
    settings = json.loads(env(rendered)["BIREME_DATASET"])
    assert (settings["target"], settings["root"]) == ("/claim", True)
    assert "cd '/claim/.bireme.staging'" in container_of(pod(rendered), "prepare")["args"][0]
    (check,) = (each for each in rendered.manifests if each.kind == "Pod")
    assert "/claim" in check["spec"]["containers"][0]["command"]
