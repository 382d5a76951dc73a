"""The part of each chart's branches that the tests of this tier run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.documents import ROOT


def branches(trace: Path) -> Iterator[tuple[str, str, bool]]:
    """Of each branch: its chart, what has the names that unreached.yaml may give it, and whether it ran."""
    for record in trace.read_text().split("end_of_record\n")[:-1]:
        file = record.partition("\n")[0].removeprefix("SF:")
        lines = (ROOT / file).read_text().splitlines()
        for line, runs in re.findall(r"^BRDA:(\d+),\d+,\d+,(.*)$", record, re.MULTILINE):
            above = "\n".join(lines[: int(line)])
            [of] = re.findall(r'\{\{-? define "(.*?)"', above)[-1:] or [""]
            yield Path(file).parts[1], f"{of}\n{lines[int(line) - 1]}", runs != "-"


@pytest.mark.whole
def test_19_of_20_branches_of_each_chart_run_beside_those_that_are_named(tmp_path: Path) -> None:
    trace = tmp_path / "charts.info"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
    command += ["-m", "not whole", "--chart-cov", "--chart-cov-report", str(trace), "tests/render"]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, env=inherited, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    named = [
        each
        for group in yaml.safe_load((ROOT / "tests/render/unreached.yaml").read_text()).values()
        for each in group
    ]
    ran: Counter[tuple[str, bool]] = Counter()
    used, left = set(), []
    for chart, text, is_run in branches(trace):
        names = [] if is_run else [each for each in named if each in text]
        used.update(names)
        ran[chart, is_run] += not names
        left += [] if is_run or names else [f"{chart}: {text.splitlines()[1].strip()}"]
    print(*left, sep="\n")
    assert [each for each in named if each not in used] == []
    parts = {chart: ran[chart, True] / (ran[chart, True] + ran[chart, False]) for chart, _ in ran}
    assert len(parts) == len([*ROOT.glob("charts/*/Chart.yaml")])
    assert {chart: part for chart, part in parts.items() if part < 0.95} == {}, left
