"""SECURITY.md names every port that a chart opens, and every path that the runtime answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bireme_runtime.dispatcher.service import server as dispatcher
from bireme_runtime.elastic.monitor import status
from bireme_runtime.etcd.server import member
from bireme_runtime.paddle import run
from tests.render.golden import FOLDER

ROOT = Path(__file__).parents[2]
# Those of values in tests/render/golden that users may set.
OF_VALUES = {"5678", "9090", "9901"}
_ROW = re.compile(r"^\| (\d+) \S+ \|(.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def rows() -> dict[str, str]:
    return dict(_ROW.findall((ROOT / "SECURITY.md").read_text()))


def test_the_table_has_the_ports_of_all_charts_and_no_others(rows: dict[str, str]) -> None:
    files = [file.read_text() for file in sorted(FOLDER.rglob("*.yaml"))]
    opened = {port for text in files for port in re.findall(r"containerPort: (\d+)", text)}
    assert opened - OF_VALUES == set(rows)


@pytest.mark.parametrize(
    ("port", "module"), [("2379", member), ("7163", run), ("7190", dispatcher), ("9464", status)]
)
def test_a_row_has_the_paths_that_the_server_knows_and_no_others(
    rows: dict[str, str], port: str, module: object
) -> None:
    source = Path(str(module.__file__)).read_text()  # type: ignore[attr-defined]
    known = set(re.findall(r'"(/[a-z][a-z0-9/-]*)"', source))
    named = set(re.findall(r"`(/[a-z][a-z0-9/-]*)`", rows[port]))
    # etcd itself answers on the port of the member.
    assert named - {"/health", "/version"} == known | ({"/metrics"} if port == "2379" else set())


def test_the_dispatchers_row_has_all_its_requests(rows: dict[str, str]) -> None:
    named = set(re.findall(r"`([a-z-]+)`", rows["7190"]))
    assert named == dispatcher._VERBS
