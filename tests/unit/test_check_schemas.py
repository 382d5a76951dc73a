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
def test_valid_manifests_pass(toolbox: Toolbox, tmp_path: Path, version: str) -> None:
    labelled = [label(value) for value in ("", "1.2.3_x", "x" * 63)]
    for manifest in (deployment(), ignores_disruptions(), *labelled):
        assert verdict(toolbox, version, tmp_path, manifest) == ""


def test_the_error_for_a_wrong_or_missing_field_names_it(toolbox: Toolbox, tmp_path: Path) -> None:
    wrong = [("limits/cpu", limits(cpu=None)), ("limits/cpu", limits(cpu="four")), ("selector", deployment())]
    del wrong[-1][1]["spec"]["selector"]
    wrong += [("template/metadata/labels/app", label(value)) for value in ("x" * 64, "-x", True)]
    for named, manifest in wrong:
        assert named in verdict(toolbox, VERSIONS[0], tmp_path, manifest)


def limits(**changed: Any) -> dict[str, Any]:
    manifest = indexed_job()
    manifest["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] |= changed
    return manifest


def label(value: Any) -> dict[str, Any]:
    manifest = indexed_job()
    manifest["spec"]["template"]["metadata"]["labels"]["app"] = value
    return manifest
