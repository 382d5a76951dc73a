"""Tests of any chart, none of which must be written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bireme.cli.options import App, cli, fail_on_option, output_option, pass_app, report, target_options
from bireme.core.errors import BiremeError
from bireme.core.findings import WRITERS, Finding
from bireme.core.progress import note, step
from bireme.core.quantities import counted
from bireme.workbench import Target

if TYPE_CHECKING:
    from bireme.clusters.base import Cluster

_CHARTS = ("Chart.yaml", "*/Chart.yaml")


@cli.command()
@click.argument("charts", metavar="[CHART]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "-f",
    "--values",
    "more",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also check with these values",
)
@click.option(
    "--from",
    "earlier",
    multiple=True,
    metavar="VERSION",
    help="Also upgrade from a folder, an archive, oci://… or git:REVISION",
)
@click.option(
    "--install", "installs", is_flag=True, help="Also install on an API server, with each values file"
)
@click.option("--import-unittest", "suites", is_flag=True, help="Also run their suites of helm-unittest")
@click.option(
    "--coverage",
    "trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write what ran: FILE.html in colours, else LCOV's tracefile",
)
@click.option(
    "--branches",
    type=click.FloatRange(0, 100),
    help="Exit with 1 where less of a chart's branches ran, in percent",
)
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Leave out the findings of FILE, which -o json wrote",
)
@fail_on_option
@target_options
@output_option(*WRITERS)
@pass_app
def check(
    app: App,
    /,
    charts: tuple[Path, ...],
    more: tuple[Path, ...],
    earlier: tuple[str, ...],
    installs: bool,
    suites: bool,
    trace: Path | None,
    branches: float | None,
    baseline: Path | None,
    fail_on: str,
    target: Target,
    output: str,
) -> None:
    """Check charts: values, schema, templates, objects and upgrades.

    The objects are those of the defaults, of every ci/*-values.yaml, and of -f FILE. The lines and branches
    of templates that these values run are told too. With --install an API server says what it refuses of
    objects, hooks and pods. With --from it says what an upgrade does to each object. It is one of its own, or
    that of --kubeconfig.
    CHART is a chart or a folder of charts. Without any, it is the chart here, ./charts, or the charts in
    folders here. Exits with 1 when there is something to change.

    \b
    Example: bireme check charts/torch-elastic
             bireme check charts/torch-elastic --from git:v0.3.0
    """
    from bireme.check.checker import Checker, find_charts

    here = [each for each in (Path(), Path("charts")) if any(map(list, map(each.glob, _CHARTS)))]
    if not charts and not here:
        raise BiremeError("there is no chart in this folder: name one, as in bireme check charts/web")
    chosen = find_charts(charts or here[:1])
    with step(app.err, f"Checking {counted(len(chosen), 'chart')}"):
        checked = Checker(app.renderer, app.toolbox, more).check(chosen)
    findings, covered = [*checked.findings], checked.coverage
    if covered is None:
        advice = "to see what of the templates ran: bireme tools --get helm-render"
        if trace or branches:
            raise BiremeError(advice)
        note(app.err, advice)
    if covered and trace:
        covered.write(trace)
    if covered and branches:
        advice = "add ci/*-values.yaml files for what did not run"
        for folder, one in covered.charts.items():
            if 100 * one.branches < branches:
                few = f"{one.branches:.1%} of the branches ran, and --branches asks for {branches:g} %"
                findings.append(Finding("coverage", few, advice, file=folder))
    if suites:
        from bireme.check.helm_unittest import unittests

        ran, failed = unittests(chosen, app.toolbox)
        findings += failed
        note(app.err, f"{ran} tests of helm-unittest ran, {len(failed)} failed")
    upgrades = []
    if earlier or installs:
        from bireme.check.upgrades import Upgrades

        with _cluster(app, target) as cluster, step(app.err, f"Installing {counted(len(chosen), 'chart')}"):
            is_own = target == Target(None, None, None)
            tried = Upgrades(cluster, app.toolbox, app.renderer, app.charts, is_own, more)
            for chart in chosen if installs else ():
                findings += tried.installs(chart)
            upgrades = [each for chart in chosen for each in tried.verdicts(chart, earlier)]
        findings += [finding for each in upgrades for finding in each.findings()]
    accepted = _accepted(baseline) if baseline else set()
    left = [each for each in findings if _known(each) not in accepted]
    report(output, left, fail_on, upgrades=upgrades, coverage=[covered] if covered else [])


def _accepted(baseline: Path) -> set[tuple[str, ...]]:
    try:
        return {_known(Finding(**each)) for each in json.loads(baseline.read_text("utf-8"))["findings"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        advice = f"write it with: bireme check CHART -o json > {baseline}"
        raise BiremeError(f"{baseline} has no findings: {advice}") from error


def _known(finding: Finding) -> tuple[str, ...]:
    """What a finding is known by, wherever its line moves."""
    return finding.rule, finding.file, finding.path, finding.sentence


@contextmanager
def _cluster(app: App, target: Target) -> Iterator[Cluster]:
    """The cluster that is named, else one that is there for this alone and ends with this process."""
    if target != Target(None, None, None):
        yield app.cluster(target)
        return
    from bireme.clusters.owner import owned

    clusters, name = app.provider("embedded"), f"check-{os.getpid()}"
    with owned(app.paths, "embedded", name):
        try:
            yield clusters.up(name, {})
        finally:
            clusters.down(name)
