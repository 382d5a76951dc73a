"""SECURITY.md names every port that a chart opens, and every path that the runtime answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme.core.manifests import Manifest
from bireme_runtime.dispatcher.service import server as dispatcher
from bireme_runtime.elastic.monitor import status
from bireme_runtime.etcd.server import member
from bireme_runtime.paddle import run
from tests.render.cases import CASES, Matrix

ROOT = Path(__file__).parents[2]
# Those of values in ci files that users may set.
OF_VALUES = {"5678", "9090", "9901"}
_ROW = re.compile(r"^\| (\d+) \S+ \|(.*)$", re.MULTILINE)


def test_the_charts_whose_pods_get_a_token_are_those_that_security_names(matrix: Matrix) -> None:
    has_token = re.compile(r'"automountServiceAccountToken": true|"serviceAccountToken":')
    found = {
        case.chart
        for case in CASES
        if case.ci
        for manifest in matrix(case).manifests
        if has_token.search(json.dumps(manifest.thaw()))
    }
    (said,) = re.findall(r"^- Pods get no API token(.*?)^-", (ROOT / "SECURITY.md").read_text(), re.M | re.S)
    assert found == set(re.findall(r"`([a-z-]+)`", said))


@pytest.fixture(scope="module")
def rows() -> dict[str, str]:
    return dict(_ROW.findall((ROOT / "SECURITY.md").read_text()))


def ports_of(manifest: Manifest) -> Iterator[str]:
    """The ports that an object opens: of containers, at any depth, and of a Service."""
    if manifest.kind == "Service":
        yield from (str(each["port"]) for each in manifest["spec"].get("ports", ()))
    yield from re.findall(r'"containerPort": (\d+)', json.dumps(manifest.thaw()))


def test_the_table_has_the_ports_of_all_charts_and_no_others(matrix: Matrix, rows: dict[str, str]) -> None:
    """Of each ci case: default and full values, and what only one of them opens."""
    opened = {
        port: f"{manifest.identity} of {case}"
        for case in CASES
        if case.ci
        for manifest in matrix(case).manifests
        for port in ports_of(manifest)
    }
    unknown = {port: where for port, where in opened.items() if port not in rows.keys() | OF_VALUES}
    assert unknown == {}
    assert rows.keys() - opened.keys() == set(), "rows of ports that no chart opens"


def test_each_row_says_which_pods_who_may_ask_what_it_shows_and_what_it_takes(rows: dict[str, str]) -> None:
    for port, row in rows.items():
        cells = [cell.strip() for cell in row.rstrip("|").split("|")]
        assert len(cells) == 4, port
        assert all(cells), port


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
