"""`bireme check --install` and `--from` find each planted fault on a real API server, and nothing without."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.check.upgrades import Upgrades
from bireme.clusters.base import Cluster
from bireme.core.findings import Finding
from bireme.core.paths import Paths
from bireme.helm import Charts, Renderer
from bireme.tools import Toolbox
from tests.support.planted import SHOP, Fault, faults

pytestmark = [pytest.mark.embedded, pytest.mark.whole]


@pytest.fixture(scope="module")
def upgrades(cluster: Cluster, toolbox: Toolbox, renderer: Renderer, bireme_paths: Paths) -> Upgrades:
    return Upgrades(cluster, toolbox, renderer, Charts(bireme_paths, toolbox), stand_ins=True)


def of_upgrade(upgrades: Upgrades, chart: Path) -> list[Finding]:
    return [found for each in upgrades.verdicts(chart, [str(SHOP)]) for found in each.findings()]


def test_the_chart_without_a_fault_is_installed_and_upgraded_with_its_hook(upgrades: Upgrades) -> None:
    assert upgrades.installs(SHOP) == []
    [plain, full] = upgrades.verdicts(SHOP, [str(SHOP)])
    assert [*plain.findings(), *full.findings()] == []
    told = [str(each) for each in plain.objects if each.verdict != "unchanged"]
    assert told == ["Job/release-migrate: runs (pre-upgrade)"]


@pytest.mark.parametrize("fault", faults("install"), ids=str)
def test_what_no_install_can_do_is_found(fault: Fault, upgrades: Upgrades, tmp_path: Path) -> None:
    sentences = [each.sentence for each in upgrades.installs(fault.plant(tmp_path))]
    assert any(fault.says in each for each in sentences), sentences


@pytest.mark.parametrize("fault", faults("upgrade"), ids=str)
def test_what_no_upgrade_can_do_is_found(fault: Fault, upgrades: Upgrades, tmp_path: Path) -> None:
    found = of_upgrade(upgrades, fault.plant(tmp_path))
    assert any(fault.path == each.path and fault.says in each.sentence for each in found), found
