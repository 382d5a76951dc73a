"""Which Kubernetes the charts accept, and what their metadata claims."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bireme.tools import Toolbox
from tests.render.cases import ROOT
from tests.render.golden import FOLDER

# EKS supports 1.32 until March 2027: https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html
OLDEST = "1.32"


@pytest.mark.parametrize(
    "chart", sorted((ROOT / "charts").glob("*/Chart.yaml")), ids=lambda it: it.parent.name
)
def test_every_chart_accepts_the_oldest_kubernetes_that_eks_supports(chart: Path) -> None:
    about = yaml.safe_load(chart.read_text())
    assert about["kubeVersion"] == f">={OLDEST}.0-0"
    assert "home" not in about


def test_the_matrix_runs_on_the_oldest_kubernetes_that_charts_accept(toolbox: Toolbox) -> None:
    oldest = min(toolbox.versions("kube-apiserver"), key=lambda each: [int(n) for n in each.split(".")])
    assert oldest.startswith(f"{OLDEST}.")
    assert f"Kubernetes {OLDEST} or newer" in (ROOT / "README.md").read_text()


def test_nothing_claims_a_domain_that_nobody_owns() -> None:
    folders = ("charts", "docs", "runtime", "src")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.*") if file.is_file()]
    files += FOLDER.rglob("*.yaml")
    assert [str(file) for file in files if b"bireme.dev" in file.read_bytes()] == []
