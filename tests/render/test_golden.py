"""Charts render what their golden files contain. After an intended change run `make golden`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bireme.helm import Renderer
from bireme.testing.charts import RequestFor
from tests.render.cases import Case
from tests.render.golden import FOLDER, golden_cases, golden_file, objects


@pytest.mark.parametrize("case", golden_cases(), ids=str)
def test_a_case_renders_the_objects_of_its_golden_file(
    renderer: Renderer, request_for: RequestFor, case: Case
) -> None:
    kept = yaml.load(golden_file(case).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    found = objects(renderer, request_for, case)
    assert found == kept, "make golden, and read the diff of tests/render/golden"


def test_every_golden_file_belongs_to_a_case() -> None:
    assert set(FOLDER.glob("*/*.yaml")) == {golden_file(case) for case in golden_cases()}


def test_every_chart_has_golden_files(charts: list[Path]) -> None:
    assert {chart.name for chart in charts} == {case.chart for case in golden_cases()}
