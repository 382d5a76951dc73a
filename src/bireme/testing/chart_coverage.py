"""What the tests of a session run of the templates of their charts: pytest's --chart-cov."""

from __future__ import annotations

import os
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from bireme.check.coverage import Coverage, Runs
from bireme.core.paths import Paths
from bireme.helm import Arm, Render, Renderer, RenderRequest
from bireme.tools import Toolbox

_SENT = "bireme_chart_coverage"


class ChartCoverage:
    """A plugin that adds up what renders run, also those of pytest-xdist's workers, and prints it at the end.

    The session fails below ``least`` percent of the branches.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self._runs = Runs()
        self._charts: set[str] = set()

    def note(self, chart: Path, arms: tuple[Arm, ...]) -> None:
        """Count what one render of ``chart`` ran."""
        self._charts.add(os.path.relpath(chart))
        self._runs.add(chart, arms)

    @property
    def _coverage(self) -> Coverage:
        return self._runs.of(map(Path, sorted(self._charts)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """What a worker sent when it ended."""
        charts, arms = getattr(node, "workeroutput", {}).get(_SENT, ((), ()))
        self._charts.update(charts)
        self._runs.add(Path(), [Arm(*each) for each in arms])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send what ran from a worker, or fail the session."""
        if hasattr(session.config, "workeroutput"):
            arms = [
                astuple(replace(arm, file=str(file)))
                for file, found in self._runs.files.items()
                for arm in found
            ]
            session.config.workeroutput[_SENT] = (sorted(self._charts), arms)
        elif self._coverage.branches * 100 < self._least and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """What ran, and the lines and branches that did not."""
        advice = "nothing is known of it: render a chart, with what this gets: bireme tools --get helm-render"
        terminalreporter.section("coverage of charts")
        terminalreporter.write_line(str(self._coverage) if self._charts else advice)


class NotingRenderer(Renderer):
    """Tells a ChartCoverage what each render runs."""

    def __init__(self, toolbox: Toolbox, paths: Paths, coverage: ChartCoverage) -> None:
        super().__init__(toolbox, paths)
        self._coverage = coverage

    def render(self, request: RenderRequest) -> Render:
        """As of a Renderer, also where the chart refuses it."""
        if covered := self.covered(request):
            self._coverage.note(request.chart, covered.arms)
        return super().render(request)
