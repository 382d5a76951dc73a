"""`bireme check` finds each planted fault, and nothing in the chart without."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.check.checker import Checker
from bireme.core.findings import Finding
from bireme.core.paths import Paths
from bireme.helm import Renderer
from bireme.tools import Toolbox
from tests.support.planted import SHOP, Fault, faults


@pytest.fixture(scope="module")
def checker(paths: Paths, toolbox: Toolbox) -> Checker:
    toolbox.ensure(["helm-render"])
    return Checker(Renderer(toolbox, paths), toolbox)


def test_the_chart_without_a_fault_has_no_finding(checker: Checker) -> None:
    assert list(map(str, checker.check([SHOP]).findings)) == []


def test_each_planted_fault_is_found(checker: Checker, tmp_path: Path) -> None:
    planted = {fault.plant(tmp_path): fault for fault in faults("check")}
    findings = checker.check([*planted]).findings
    told = {chart: [each for each in findings if Path(each.file).is_relative_to(chart)] for chart in planted}

    def is_told(fault: Fault, each: Finding) -> bool:
        named = each.rule == fault.rule and fault.path in ("", each.path)
        return named and fault.says in each.sentence

    missed = {
        fault.fault: list(map(str, told[chart]))
        for chart, fault in planted.items()
        if not any(is_told(fault, each) for each in told[chart])
    }
    assert missed == {}
    count = sum(len(faults(each)) for each in ("check", "install", "upgrade"))
    page = (SHOP.parents[2] / "docs/check.md").read_text()
    assert f"tests/support/faults.yaml has {count} faults" in page
