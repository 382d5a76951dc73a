"""What the tests of a session run of the templates of their charts: pytest's --chart-cov."""

from __future__ import annotations

import os
import threading
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from bireme.check.coverage import Coverage, Runs
from bireme.core.manifests import Manifest
from bireme.core.paths import Paths
from bireme.helm import Arm, Renderer, RenderError, RenderRequest
from bireme.tools import Toolbox

_SENT = "bireme_chart_coverage"


class ChartCoverage:
    """A plugin that adds up what renders run, also those of pytest-xdist's workers, and prints it at the end.

    The session fails where less than ``least`` percent of the branches of a chart ran. ``report`` is a file
    for what ran.
    """

    def __init__(self, least: float, report: Path | None) -> None:
        self._least, self._report = least, report
        self._runs = Runs()
        self._lock = threading.Lock()

    def note(self, chart: Path, arms: tuple[Arm, ...]) -> None:
        """Count what one render of ``chart`` ran."""
        with self._lock:
            self._runs.add(chart, arms)

    @property
    def _coverage(self) -> Coverage:
        names = {os.path.relpath(str(file).rpartition("/templates/")[0]) for file in self._runs.files}
        folders = [*map(Path, sorted(names))]
        # A chart in another one is a part of that. Those elsewhere are of the tests' own making.
        own = [each for each in folders if not any(chart / "charts" in each.parents for chart in folders)]
        return self._runs.of([each for each in own if ".." not in each.parts] or own)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """What a worker sent when it ended."""
        arms = getattr(node, "workeroutput", {}).get(_SENT, ())
        self._runs.add(Path(), [Arm(*each) for each in arms])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send what ran from a worker, or fail the session."""
        if hasattr(session.config, "workeroutput"):
            files = self._runs.files.items()
            arms = [astuple(replace(arm, file=str(file))) for file, them in files for arm in them]
            session.config.workeroutput[_SENT] = arms
        else:
            few = any(each.branches * 100 < self._least for each in self._coverage.charts.values())
            session.exitstatus = session.exitstatus or int(few)
            if self._report:
                self._coverage.write(self._report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """What ran, and the lines and branches that did not."""
        advice = "nothing is known of it: render a chart, with what this gets: bireme tools --get helm-render"
        terminalreporter.section("coverage of charts")
        terminalreporter.write_line(str(self._coverage) if self._runs.files else advice)


class NotingRenderer(Renderer):
    """Tells a ChartCoverage what each render runs, also one that the chart refuses."""

    def __init__(self, toolbox: Toolbox, paths: Paths, coverage: ChartCoverage) -> None:
        super().__init__(toolbox, paths)
        self._coverage = coverage

    def _result(self, request: RenderRequest) -> tuple[Manifest, ...] | RenderError:
        if covered := self.covered(request):
            self._coverage.note(request.chart, covered.arms)
        return super()._result(request)
