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

    The session fails below ``least`` percent of the branches.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self._runs = Runs()
        self._lock = threading.Lock()
        self._charts: set[str] = set()

    def note(self, chart: Path, arms: tuple[Arm, ...]) -> None:
        """Count what one render of ``chart`` ran."""
        with self._lock:
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
            files = self._runs.files.items()
            arms = [astuple(replace(arm, file=str(file))) for file, them in files for arm in them]
            session.config.workeroutput[_SENT] = (sorted(self._charts), arms)
        elif self._coverage.branches * 100 < self._least and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """What ran, and the lines and branches that did not."""
        advice = "nothing is known of it: render a chart, with what this gets: bireme tools --get helm-render"
        terminalreporter.section("coverage of charts")
        terminalreporter.write_line(str(self._coverage) if self._charts else advice)


class NotingRenderer(Renderer):
    """Tells a ChartCoverage what each render runs, also one that the chart refuses."""

    def __init__(self, toolbox: Toolbox, paths: Paths, coverage: ChartCoverage) -> None:
        super().__init__(toolbox, paths)
        self._coverage = coverage

    def _result(self, request: RenderRequest) -> tuple[Manifest, ...] | RenderError:
        if covered := self.covered(request):
            self._coverage.note(request.chart, covered.arms)
        return super()._result(request)
