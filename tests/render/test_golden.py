"""Every case renders what its golden file contains. After an intended change run `make golden`."""

from __future__ import annotations

import pytest

from bireme.helm import Renderer
from bireme.testing.pytest_plugin import Request
from tests.render.cases import CASES, Case
from tests.render.golden import FOLDER, Golden, differences, files


@pytest.fixture(scope="module")
def golden(renderer: Renderer, request_for: Request) -> Golden:
    return Golden(renderer, request_for)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_case_renders_the_objects_of_its_golden_file(golden: Golden, case: Case) -> None:
    kept, found = golden.kept(case), golden.rendered(case)
    changed = "\n".join(f"{path}: {value}" for path, value in differences(kept, found).items())
    assert found == kept, f"make golden, and read the diff of tests/render/golden. Changed fields:\n{changed}"


def test_every_golden_file_belongs_to_a_case() -> None:
    assert set(FOLDER.glob("*/*.yaml")) == files()
