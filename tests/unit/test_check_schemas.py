"""Kubernetes' own schemas, as kubeconform reads them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bireme.check.kubernetes import kubernetes_schemas
from bireme.core.paths import Paths
from bireme.tools import Toolbox
from bireme.tools.pins import load_pins

PINS = load_pins(Paths.discover().hack / "tools")
VERSIONS = [tool.version for tool in PINS.tools if tool.name == "kubectl"]


@pytest.fixture(scope="module")
def toolbox() -> Toolbox:
    return Toolbox(Paths.discover())


def pod_template() -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "busybox",
        "ports": [{"containerPort": 8080}],
        "resources": {"limits": {"cpu": 4, "memory": "5120Mi", "nvidia.com/gpu": "8"}},
        "livenessProbe": {"httpGet": {"path": "/", "port": "http"}},
        "readinessProbe": {"httpGet": {"path": "/", "port": 8080}},
    }
    return {
        "metadata": {"labels": {"app": "x"}, "annotations": {"any": "thing"}},
        "spec": {"containers": [container], "restartPolicy": "Always"},
    }


def deployment() -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "x"}}, "template": pod_template()},
    }


def indexed_job() -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "x"},
        "spec": {
            "completionMode": "Indexed",
            "completions": 3,
            "parallelism": 3,
            "backoffLimitPerIndex": 2,
            "template": pod_template(),
        },
    }


def ignores_disruptions() -> dict[str, Any]:
    """As Kubernetes' own page has it: the API server takes status True for a condition without one."""
    manifest = indexed_job()
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    manifest["spec"]["podFailurePolicy"] = {"rules": [rule]}
    return manifest


def verdict(toolbox: Toolbox, version: str, folder: Path, manifest: dict[str, Any]) -> str:
    """What kubeconform says against the manifest: nothing when it is valid."""
    file = folder / "manifest.json"
    file.write_text(json.dumps(manifest))
    location = kubernetes_schemas(toolbox, version)
    command = [str(toolbox.path("kubeconform")), "-schema-location", location, "-output", "json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    resources = json.loads(done.stdout)["resources"]
    return " ".join(resource["msg"] for resource in resources)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "manifest", [deployment(), indexed_job(), ignores_disruptions()], ids=["deployment", "job", "policy"]
)
def test_a_valid_manifest_passes(
    toolbox: Toolbox, tmp_path: Path, version: str, manifest: dict[str, Any]
) -> None:
    assert verdict(toolbox, version, tmp_path, manifest) == ""


@pytest.mark.parametrize("version", VERSIONS)
def test_the_error_for_a_misspelled_field_names_it(toolbox: Toolbox, tmp_path: Path, version: str) -> None:
    manifest = deployment()
    manifest["spec"]["template"]["spec"]["containers"][0]["imagePullpolicy"] = "Always"

    assert "imagePullpolicy" in verdict(toolbox, version, tmp_path, manifest)


@pytest.mark.parametrize(
    ("key", "value"),
    [("memory", "5120MiB"), ("cpu", "four"), ("cpu", None)],
)
def test_an_invalid_quantity_fails(toolbox: Toolbox, tmp_path: Path, key: str, value: str | None) -> None:
    manifest = indexed_job()
    manifest["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"][key] = value

    assert f"limits/{key}" in verdict(toolbox, VERSIONS[0], tmp_path, manifest)


def test_a_missing_required_field_fails(toolbox: Toolbox, tmp_path: Path) -> None:
    manifest = deployment()
    del manifest["spec"]["selector"]

    assert "selector" in verdict(toolbox, VERSIONS[0], tmp_path, manifest)


def label(value: Any) -> dict[str, Any]:
    manifest = indexed_job()
    manifest["spec"]["template"]["metadata"]["labels"]["app"] = value
    return manifest


@pytest.mark.parametrize("value", ["", "1.2.3_x", "x" * 63])
def test_a_label_that_kubernetes_takes_passes(toolbox: Toolbox, tmp_path: Path, value: str) -> None:
    assert verdict(toolbox, VERSIONS[0], tmp_path, label(value)) == ""


@pytest.mark.parametrize("value", ["x" * 64, "-x", "a b", True])
def test_a_label_that_kubernetes_refuses_fails(toolbox: Toolbox, tmp_path: Path, value: Any) -> None:
    assert "template/metadata/labels/app" in verdict(toolbox, VERSIONS[0], tmp_path, label(value))
