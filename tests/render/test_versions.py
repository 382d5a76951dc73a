"""Which Kubernetes the charts accept, and what their metadata claims."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.tools import Toolbox
from tests.render.cases import ROOT, Case
from tests.render.golden import FOLDER, golden_cases
from tests.support.rendered import RenderChart

# EKS supports 1.32 until March 2027: https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html
OLDEST = "1.32"


@pytest.mark.parametrize(
    "chart", sorted((ROOT / "charts").glob("*/Chart.yaml")), ids=lambda it: it.parent.name
)
def test_every_chart_accepts_the_oldest_kubernetes_that_eks_supports(chart: Path) -> None:
    about = yaml.safe_load(chart.read_text())
    assert about["kubeVersion"] == f">={OLDEST}.0-0"
    assert "home" not in about


@pytest.mark.parametrize("chart", ["efa-device-plugin", "etcd", "mpijob", "paddle", "torch-elastic"])
def test_the_version_label_is_that_of_the_image(chart: str) -> None:
    about, values = (
        yaml.safe_load((ROOT / f"charts/{chart}/{name}.yaml").read_text()) for name in ("Chart", "values")
    )
    assert values["image"]["tag"].removeprefix("v").startswith(about["appVersion"])


@pytest.mark.parametrize("case", golden_cases(), ids=str)
def test_labels_are_valid_when_flux_adds_a_digest_to_the_version(
    render: RenderChart, tmp_path: Path, case: Case
) -> None:
    source, chart = ROOT / "charts" / case.chart, tmp_path / case.chart
    shutil.copytree(source, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    about["version"] += f"+{'a1' * 30}"
    (chart / "Chart.yaml").write_text(yaml.safe_dump(about))
    labels = [
        each
        for item in render(chart, files=[source / "ci" / str(case.ci)]).manifests
        for each in labels_of(item)
    ]
    assert labels
    assert [
        each for each in labels if not re.fullmatch(r"([A-Za-z0-9]([\w.-]{,61}[A-Za-z0-9])?)?", each)
    ] == []


def labels_of(item: Any) -> Iterator[str]:
    """The values of all labels in an object."""
    if isinstance(item, Mapping):
        yield from item.get("labels", {}).values() if isinstance(item.get("labels"), Mapping) else ()
    for each in item.values() if isinstance(item, Mapping) else item if isinstance(item, list) else ():
        yield from labels_of(each)


def test_the_matrix_runs_on_the_oldest_kubernetes_that_charts_accept(toolbox: Toolbox) -> None:
    oldest = min(toolbox.versions("kube-apiserver"), key=lambda each: [int(n) for n in each.split(".")])
    assert oldest.startswith(f"{OLDEST}.")
    assert f"Kubernetes {OLDEST} or newer" in (ROOT / "README.md").read_text()


def test_nothing_claims_a_domain_that_nobody_owns() -> None:
    folders = ("charts", "docs", "runtime", "src")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.*") if file.is_file()]
    files += FOLDER.rglob("*.yaml")
    assert [str(file) for file in files if b"bireme.dev" in file.read_bytes()] == []
