"""Whole charts checked: their files, and the objects that they render to."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from bireme.check.coverage import Coverage, Runs, value_findings
from bireme.check.files import file_findings, looks_up, values_files
from bireme.check.kubeconform import kubeconform
from bireme.check.objects import object_findings, repeated, sources_of
from bireme.core.errors import BiremeError
from bireme.core.findings import Finding
from bireme.helm import Covered, Render, Renderer, RenderError, RenderRequest, load
from bireme.helm.output import split
from bireme.helm.values import read_file
from bireme.schemas.bundle import BUNDLE
from bireme.tools import Toolbox

# What Helm's error holds when a template called `fail` or `required`, or when a schema refused the values.
_REFUSALS = ("execution error at (", "values don't meet the specifications of the schema(s)")
_NO_SCHEMA = "is not valid against metaschema"
_UNSUPPORTED = "chart requires kubeVersion"
_PLACE = re.compile(r"[\w.-]+/((?:charts/[\w.-]+/)*templates/[^\s:()\"]+)(?::(\d+))?")
_OF_HELM_LINT = re.compile(r"^\[(WARNING|ERROR)\] (\S+): (.*)$", re.MULTILINE)


def find_charts(paths: Sequence[Path]) -> list[Path]:
    """The charts that ``paths`` name: charts, or folders of charts. Raises BiremeError for anything else."""
    found: list[Path] = []
    for path in paths:
        charts = [each for each in (path, *sorted(path.glob("*"))) if (each / "Chart.yaml").is_file()]
        if not path.exists():
            raise BiremeError(f"{path} does not exist: check the path")
        if not charts:
            raise BiremeError(f"{path} is neither a chart nor a folder of charts: it has no Chart.yaml")
        found += charts[:1] if charts[0] == path else charts
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class _Case:
    """One render of a chart: ``values`` is a file of it, "" for the defaults."""

    chart: Path
    values: str
    kubernetes: str

    def request(self) -> RenderRequest:
        files = [self.chart / self.values] if self.values else []
        return RenderRequest(self.chart, load(files), kube_version=self.kubernetes)


@dataclass(frozen=True)
class Checked:
    """What a check found. ``coverage`` is None where there is no helm-render to tell it."""

    findings: Sequence[Finding]
    coverage: Coverage | None


class Checker:
    """Checks the files of charts, and what their defaults and each ci/*-values.yaml render to.

    They are rendered for the oldest and the newest Kubernetes that is pinned, if the chart supports it.
    ``more`` are further values files for each chart.
    """

    def __init__(self, renderer: Renderer, toolbox: Toolbox, more: Sequence[Path] = ()) -> None:
        self._renderer, self._more = renderer, more
        self._toolbox = toolbox
        versions = sorted(toolbox.versions("kubectl"), key=lambda each: [int(n) for n in each.split(".")])
        self._kubernetes = tuple(dict.fromkeys((versions[0], versions[-1])))

    def check(self, charts: Sequence[Path]) -> Checked:
        """The findings in ``charts``, chart by chart, and what ran of their templates.

        Raises BiremeError for a folder that is not a chart, and for a file that cannot be read.
        """
        found = {chart: file_findings(chart, self._toolbox.paths) for chart in charts}
        cases = [case for chart in charts for case in self._cases(chart)]
        results = self._renderer.render_many([case.request() for case in cases])
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            told = list(pool.map(self._renderer.covered, [case.request() for case in cases]))
        again = {case: each for case, each in zip(cases, told, strict=True) if each}
        outcomes = dict(zip(cases, results, strict=True))
        by_tools = self._by_tools({case: each for case, each in outcomes.items() if isinstance(each, Render)})
        for chart in charts:
            own = {case: outcome for case, outcome in outcomes.items() if case.chart == chart}
            found[chart] += _chart_findings(own, by_tools, again)
            renders = [again[case] for case in own if case in again and isinstance(own[case], Render)]
            if renders:
                found[chart] += value_findings(chart, renders)
        findings = [finding for chart in charts for finding in found[chart]]
        runs = Runs()
        for case, each in again.items():
            runs.add(case.chart, each.arms)
        return Checked(findings, runs.of(charts) if again else None)

    def _cases(self, chart: Path) -> Iterator[_Case]:
        if read_file(chart / "Chart.yaml").get("type") == "library":
            return  # Helm refuses to render a library chart
        for values in values_files(chart, self._more):
            for version in self._kubernetes:
                yield _Case(chart, values, version)

    def _by_tools(self, rendered: Mapping[_Case, Render]) -> Mapping[_Case, Sequence[Finding]]:
        """What kubeconform and `helm lint` find in each case. Helm looks at the newest Kubernetes only."""
        refused: dict[_Case, list[Finding]] = {}
        for version in self._kubernetes:
            renders = {case: each.manifests for case, each in rendered.items() if case.kubernetes == version}
            refused |= kubeconform(renders, version, self._toolbox)
        newest = {(case.chart, case.values): case for case in rendered}
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            linted = dict(zip(newest, pool.map(self._helm_lint, newest.values()), strict=True))
        for (chart, values), case in newest.items():
            if not values and read_file(chart / "Chart.yaml").get("dependencies"):
                linted[chart, values] += self._with_helm_3(case.request(), rendered[case])
        return {
            case: [*_advised(refused.get(case, ()), linted[case.chart, case.values])] for case in rendered
        }

    def _with_helm_3(self, request: RenderRequest, render: Render) -> Iterator[Finding]:
        """The objects that Helm 3 makes otherwise, unless they are other ones with each render."""
        try:
            of_helm_3 = self._renderer.render(replace(request, helm="helm3")).manifests
        except RenderError as error:
            yield Finding("helm", f"Helm 3 refuses what Helm 4 renders: {error}", file="values.yaml")
            return
        other = [each.thaw() for each in of_helm_3]
        differing = [item for item in render.manifests if item.thaw() not in other]
        again = [content for _, content in split(self._renderer.text(request))] if differing else []
        advice = "Helm 4 forgets a null below a dependency in values.yaml: set the value instead"
        for item in differing:
            if item.thaw() in again:
                yield Finding("helm", "Helm 3 makes this object otherwise", advice, path=item.identity)

    def _helm_lint(self, case: _Case) -> list[Finding]:
        said = _OF_HELM_LINT.findall(self._renderer.lint(case.request()))
        return [
            Finding("helm", sentence, severity="error" if level == "ERROR" else "warning", file=file)
            for level, file, sentence in said
        ]


def _chart_findings(
    outcomes: Mapping[_Case, Render | RenderError],
    by_tools: Mapping[_Case, Sequence[Finding]],
    again: Mapping[_Case, Covered],
) -> Iterator[Finding]:
    """The findings in the renders of one chart; what several of them show is one finding."""
    supported = [
        case
        for case, outcome in outcomes.items()
        if not (isinstance(outcome, RenderError) and _UNSUPPORTED in str(outcome))
    ]
    if not supported:
        # No version is supported: the error for the newest one stands for all.
        for case, error in list(outcomes.items())[-1:]:
            yield Finding("render", str(error), file=f"{case.chart}/Chart.yaml")
    has_values = any(case.values and isinstance(outcomes[case], Render) for case in supported)
    keeps = any(looks_up(chart) for chart in {case.chart for case in supported})
    shown_by: dict[Finding, list[_Case]] = defaultdict(list)
    for case in supported:
        outcome = outcomes[case]
        if isinstance(outcome, RenderError):
            found = _refusal(case, outcome, has_values)
        else:
            found = [*object_findings(outcome.manifests), *_with_sources(by_tools[case], outcome)]
            if case in again:
                found += repeated(again[case].text, outcome.manifests, keeps)
        for finding in found:
            shown_by[finding].append(case)
    versions = {case.kubernetes for case in supported}
    for finding, cases in shown_by.items():
        case = cases[0]
        shown = [case.values] if case.values and case.values != finding.file else []
        if {each.kubernetes for each in cases} != versions:
            shown.append(f"Kubernetes {case.kubernetes}")
        sentence = f"{finding.sentence} (with {', '.join(shown)})" if shown else finding.sentence
        yield replace(finding, sentence=sentence, file=f"{case.chart}/{finding.file}")


def _advised(refused: Sequence[Finding], linted: Sequence[Finding]) -> Iterator[Finding]:
    """Both, with what Helm advises for a version that is not served beside the finding about it."""
    advice = {each: each.sentence.partition(" is deprecated in ")[0] for each in linted}
    sentences = {kind: each.sentence for each, kind in advice.items()}
    kinds = {each: each.sentence.partition(" is not served")[0] for each in refused}
    yield from (replace(each, remedy=sentences.get(kind, each.remedy)) for each, kind in kinds.items())
    yield from (each for each, kind in advice.items() if kind not in kinds.values())


def _refusal(case: _Case, error: RenderError, has_values: bool) -> list[Finding]:
    found = Finding("render", str(error))
    if _NO_SCHEMA in error.raw:
        return [replace(found, file=BUNDLE)]
    if not any(mark in error.raw for mark in _REFUSALS):
        place = _PLACE.search(error.raw)
        file, line = place.groups() if place else ("templates", None)
        return [replace(found, file=file, line=int(line or 0))]
    if case.values:
        return [replace(found, file=case.values)]
    # A chart may need values of the user, such as a region.
    advice = "add a ci/*-values.yaml that gives what the chart needs"
    return [] if has_values else [replace(found, remedy=advice, file="values.yaml")]


def _with_sources(found: Sequence[Finding], render: Render) -> Iterator[Finding]:
    """``found`` with the templates of the objects, where a finding names only these."""
    sources = sources_of(render.manifests)
    for each in found:
        yield each if each.file else replace(each, file=sources.get(each.path, "templates"))
