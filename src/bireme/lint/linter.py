"""Whole charts checked: their files, and the objects that they render to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bireme.core.errors import BiremeError
from bireme.core.findings import Finding
from bireme.core.manifests import Manifest
from bireme.helm import Render, Renderer, RenderError, RenderRequest, load
from bireme.helm.values import read_file
from bireme.lint.duplicates import duplicates
from bireme.lint.files import file_findings
from bireme.lint.kubeconform import kubeconform
from bireme.lint.names import name_problems
from bireme.tools import Toolbox

# What Helm's error holds when a template called `fail` or `required`, or when a schema refused the values.
_REFUSALS = ("execution error at (", "values don't meet the specifications of the schema(s)")
_UNSUPPORTED = "chart requires kubeVersion"


def find_charts(paths: Sequence[Path]) -> list[Path]:
    """The charts that ``paths`` name: charts, or folders of charts. Raises BiremeError for anything else."""
    return list(dict.fromkeys(chart for path in paths for chart in _charts(path)))


def _charts(path: Path) -> list[Path]:
    if (path / "Chart.yaml").is_file():
        return [path]
    charts = [file.parent for file in sorted(path.glob("*/Chart.yaml"))]
    if not path.exists():
        raise BiremeError(f"{path} does not exist: check the path")
    if not charts:
        raise BiremeError(f"{path} is neither a chart nor a folder of charts: it has no Chart.yaml")
    return charts


def object_findings(manifests: Sequence[Manifest]) -> list[Finding]:
    """What is wrong with the objects of one render; the files are templates of the chart."""
    found: list[Finding] = []
    seen: set[tuple[str, str, str | None]] = set()
    for item in manifests:
        own = [*duplicates(item), *name_problems(item)]
        key = (item.api_version, item.identity, item.namespace)
        if key in seen:
            sentence = "two objects have this name"
            own.append(Finding("duplicates", sentence, "rename one", path=item.identity))
        seen.add(key)
        found += [replace(each, file=_source(item)) for each in own]
    return found


@dataclass(frozen=True)
class _Case:
    """One render of a chart: ``values`` is a file of it, "" for the defaults."""

    chart: Path
    values: str
    kubernetes: str

    def request(self) -> RenderRequest:
        files = [self.chart / self.values] if self.values else []
        return RenderRequest(self.chart, load(files), kube_version=self.kubernetes)


_Results = Mapping[_Case, Render | RenderError]


class Linter:
    """Checks the files of charts, and what their defaults and each ci/*-values.yaml render to.

    They are rendered for the oldest and the newest Kubernetes that is pinned, if the chart supports it.
    """

    def __init__(self, renderer: Renderer, toolbox: Toolbox) -> None:
        self._renderer = renderer
        self._toolbox = toolbox
        versions = sorted(toolbox.versions("kubectl"), key=lambda each: [int(n) for n in each.split(".")])
        self._kubernetes = tuple(dict.fromkeys((versions[0], versions[-1])))

    def lint(
        self, charts: Sequence[Path], progress: Callable[[int, int], None] = lambda done, total: None
    ) -> list[Finding]:
        """The findings in ``charts``, chart by chart.

        ``progress`` is called with the number of renders done and of all. Raises BiremeError for a folder
        that is not a chart, and for a file that cannot be read.
        """
        found = {chart: file_findings(chart, self._toolbox.paths) for chart in charts}
        cases = [case for chart in charts for case in self._cases(chart)]
        results = self._renderer.render_many([case.request() for case in cases], progress)
        rendered = dict(zip(cases, results, strict=True))
        refused = self._refused(rendered)
        for chart in charts:
            own = {case: result for case, result in rendered.items() if case.chart == chart}
            found[chart] += self._render_findings(own, refused)
        return [finding for chart in charts for finding in found[chart]]

    def _cases(self, chart: Path) -> Iterator[_Case]:
        if read_file(chart / "Chart.yaml").get("type") == "library":
            return  # Helm refuses to render a library chart
        files = sorted(file.relative_to(chart).as_posix() for file in chart.glob("ci/*-values.yaml"))
        for values in ("", *files):
            for version in self._kubernetes:
                yield _Case(chart, values, version)

    def _refused(self, results: _Results) -> Mapping[_Case, Sequence[Finding]]:
        """What the schemas of Kubernetes refuse, by case."""
        refused: dict[_Case, list[Finding]] = {}
        for version in self._kubernetes:
            renders = {
                case: result.manifests
                for case, result in results.items()
                if isinstance(result, Render) and case.kubernetes == version
            }
            refused |= kubeconform(renders, version, self._toolbox)
        return refused

    def _render_findings(
        self, results: _Results, refused: Mapping[_Case, Sequence[Finding]]
    ) -> Iterator[Finding]:
        """The findings in the renders of one chart; what several of them show is one finding."""
        supported = [
            case
            for case, result in results.items()
            if not (isinstance(result, RenderError) and _UNSUPPORTED in str(result))
        ]
        if not supported:
            # No version is supported: the error for the newest one stands for all.
            for case, error in list(results.items())[-1:]:
                yield Finding("render", str(error), file=f"{case.chart}/Chart.yaml")
        has_values = any(case.values and isinstance(results[case], Render) for case in supported)
        shown_by: dict[Finding, list[_Case]] = defaultdict(list)
        for case in supported:
            for finding in _case_findings(case, results[case], refused.get(case, ()), has_values):
                shown_by[finding].append(case)
        versions = {case.kubernetes for case in supported}
        for finding, cases in shown_by.items():
            case = cases[0]
            shown = [case.values] if case.values and case.values != finding.file else []
            if {each.kubernetes for each in cases} != versions:
                shown.append(f"Kubernetes {case.kubernetes}")
            sentence = f"{finding.sentence} (with {', '.join(shown)})" if shown else finding.sentence
            yield replace(finding, sentence=sentence, file=f"{case.chart}/{finding.file}")


def _case_findings(
    case: _Case, result: Render | RenderError, refused: Sequence[Finding], has_values: bool
) -> Iterator[Finding]:
    if isinstance(result, RenderError):
        if not any(mark in result.raw for mark in _REFUSALS):
            yield Finding("render", str(result), file="templates")
        elif case.values:
            yield Finding("render", str(result), file=case.values)
        elif not has_values:  # a chart may need values of the user, such as a region
            advice = "add a ci/*-values.yaml that gives what the chart needs"
            yield Finding("render", str(result), advice, file="values.yaml")
        return
    sources = {item.identity: _source(item) for item in result.manifests}
    yield from object_findings(result.manifests)
    yield from (replace(each, file=sources.get(each.path, "templates")) for each in refused)


def _source(item: Manifest) -> str:
    """The template as a path in the chart; Helm puts the chart's name before it."""
    return item.source.partition("/")[2] or "templates"
