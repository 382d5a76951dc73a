"""Every chart x instance type x workload renders, or is refused with a sentence of rules.yaml."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from bireme.check.kubeconform import kubeconform
from bireme.check.objects import object_findings
from bireme.core.manifests import Manifest
from bireme.helm import Render, Renderer
from bireme.testing.charts import RequestFor
from bireme.tools import Toolbox
from tests.render.cases import CASES, HELMS, KUBERNETES, OTHER_CASES, ROOT, WORKLOADS, Case, Matrix, request
from tests.render.golden import golden_cases

CLUSTER_KINDS = {
    "PersistentVolume",
    "StorageClass",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
}


def by_identity(render: Render) -> dict[str, str]:
    return {item.identity: json.dumps(item.thaw(), sort_keys=True) for item in render.manifests}


def objects(matrix: Matrix, cases: Sequence[Case]) -> dict[str, tuple[Manifest, ...]]:
    return {str(case): matrix(case).manifests for case in cases}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_helms_render_the_same_with_unique_keys_and_valid_names(matrix: Matrix, case: Case) -> None:
    new, old = (matrix(case, helm) for helm in HELMS)
    assert by_identity(new) == by_identity(old)
    assert object_findings(new.manifests, "matrix") == []


@pytest.mark.whole
def test_so_does_each_other_type(matrix: Matrix, toolbox: Toolbox) -> None:
    for case in OTHER_CASES:
        test_both_helms_render_the_same_with_unique_keys_and_valid_names(matrix, case)
    for version in KUBERNETES:
        assert kubeconform(objects(matrix, OTHER_CASES), version, toolbox) == {}


def test_every_workload_file_is_in_the_matrix() -> None:
    assert {file.stem for file in (ROOT / "values/workloads").glob("*.yaml")} == set(WORKLOADS)


@pytest.mark.parametrize("version", KUBERNETES)
def test_everything_rendered_is_valid_kubernetes(matrix: Matrix, toolbox: Toolbox, version: str) -> None:
    assert kubeconform(objects(matrix, CASES), version, toolbox) == {}


def test_a_misspelled_field_is_not_valid_kubernetes(toolbox: Toolbox) -> None:
    service = Manifest(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"prots": []}}
    )
    assert "'prots' not allowed" in str(kubeconform({"bad": [service]}, KUBERNETES[0], toolbox))


@pytest.mark.parametrize("case", golden_cases(), ids=str)
def test_renders_the_same_bytes_twice(renderer: Renderer, request_for: RequestFor, case: Case) -> None:
    asked = request(case, request_for)
    assert renderer.text(asked) == renderer.text(asked)


@pytest.mark.parametrize("case", [case for case in CASES if case.ci], ids=str)
def test_every_object_has_its_namespace_and_the_release_labels(matrix: Matrix, case: Case) -> None:
    for item in matrix(case).manifests:
        if item.name.endswith("-extra"):
            continue  # the user's own object, passed through as it is
        assert item.namespace == (None if item.kind in CLUSTER_KINDS else "default")
        assert item.labels["app.kubernetes.io/instance"] == "matrix"
        assert item.labels["app.kubernetes.io/managed-by"] == "Helm"
