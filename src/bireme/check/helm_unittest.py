"""Suites of helm-unittest, tests/*_test.yaml of a chart, run by helm-unittest as they are."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from bireme.core.errors import BiremeError
from bireme.core.findings import Finding
from bireme.tools import Toolbox

# A suite that helm-unittest cannot read is in none of its reports.
_UNREAD = re.compile(r"^ FAIL .*?(\S+)\n\t- Execution Error: *\n((?:\t\t.*\n)+)", re.MULTILINE)


def unittests(charts: Sequence[Path], toolbox: Toolbox) -> tuple[int, list[Finding]]:
    """How many tests the suites of ``charts`` have, and those that fail, in the words of helm-unittest.

    A snapshot that is not there yet is written. Raises BiremeError where there is no suite.
    """
    if not any(list(chart.glob("tests/*_test.yaml")) for chart in charts):
        raise BiremeError("no chart has a suite of helm-unittest: --import-unittest runs tests/*_test.yaml")
    binary = toolbox.path("helm-unittest")
    with tempfile.TemporaryDirectory(prefix="bireme-unittest-") as folder:
        report = Path(folder) / "report.xml"
        options = ["--output-type", "Sonar", "--output-file", str(report), "--", *map(str, charts)]
        done = subprocess.run([binary, *options], capture_output=True, text=True, check=False)
        if not report.is_file():
            raise BiremeError(f"helm-unittest failed: {done.stderr.strip() or done.stdout.strip()}")
        cases = [(file, case) for file in ElementTree.parse(report).getroot() for case in file]
    told = [
        (suite, "", text + "so no suite of the chart ran") for suite, text in _UNREAD.findall(done.stdout)
    ]
    told += [
        (file.get("path", ""), case.get("name", ""), problem.text or "")
        for file, case in cases
        for problem in case
        if problem.tag != "skipped"
    ]
    return len(cases), [
        Finding("unittest", "\n".join(map(str.strip, text.strip().splitlines())), file=suite, path=name)
        for suite, name, text in told
    ]
