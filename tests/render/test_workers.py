"""What a worker gets on each instance type. After an intended change run `make golden`."""

from __future__ import annotations

import pytest

from bireme.helm import Renderer
from bireme.testing.charts import RequestFor
from tests.render.workers import NONE, ROWS, kept, rendered
from tests.support.instance_types import EACH_TYPE, TWELVE

OWN = {"processes", "preflight"}
"""Columns that the entry point of torch-elastic needs."""


@EACH_TYPE
def test_a_worker_gets_what_the_table_says(
    renderer: Renderer, request_for: RequestFor, types: tuple[str, ...]
) -> None:
    found = rendered(renderer, request_for, "torch-elastic", types)
    assert found == {name: kept()[name] for name in types}, "make golden, and read the diff of workers.csv"


def test_a_worker_without_a_type_and_one_of_hyperpod_get_what_the_table_says(
    renderer: Renderer, request_for: RequestFor
) -> None:
    types = (NONE, "ml.p5.48xlarge")
    assert rendered(renderer, request_for, "torch-elastic", types) == {name: kept()[name] for name in types}


def test_the_table_has_a_row_for_each_type() -> None:
    assert list(kept()) == ROWS


@pytest.mark.parametrize("chart", ["mpi-training", "paddle"])
def test_workers_of_the_other_job_charts_get_the_same(
    renderer: Renderer, request_for: RequestFor, chart: str
) -> None:
    def shared(row: dict[str, str]) -> dict[str, str]:
        return {key: value for key, value in row.items() if key not in OWN}

    found = rendered(renderer, request_for, chart, TWELVE)
    assert {name: shared(row) for name, row in found.items()} == {
        name: shared(kept()[name]) for name in TWELVE
    }
