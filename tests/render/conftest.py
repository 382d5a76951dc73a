"""Fixtures of the render tier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bireme.adopt.jobs import Adopter
from bireme.core.paths import Paths
from bireme.helm import Renderer
from bireme.plan.instances import Instance
from bireme.testing.charts import RequestFor
from tests.render.cases import Matrix, request

AdopterWith = Callable[[Mapping[str, Any]], Adopter]


@pytest.fixture(scope="session")
def matrix(renderer: Renderer, request_for: RequestFor) -> Matrix:
    """``matrix(case)`` or ``matrix(case, "helm3")``: what a Helm makes of a case that no chart refuses."""
    return lambda case, helm="helm": renderer.render(request(case, request_for, helm))


@pytest.fixture(scope="session")
def adopter_with(renderer: Renderer, bireme_paths: Paths, instances: Mapping[str, Instance]) -> AdopterWith:
    """``adopter_with(given)``: an Adopter of jobs, with the values that its user gives."""
    return lambda given: Adopter(renderer, bireme_paths.charts, instances, given)


@pytest.fixture(scope="session")
def charts(bireme_paths: Paths) -> list[Path]:
    """Every chart that can be installed."""
    folders = [file.parent for file in sorted(bireme_paths.charts.glob("*/Chart.yaml"))]
    return [folder for folder in folders if "type: library" not in (folder / "Chart.yaml").read_text()]
