"""Releases on a cluster."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bireme.cli import views
from bireme.cli.options import (
    App,
    a_namespace,
    chart_and_release_names,
    chart_and_values,
    chart_argument,
    cli,
    explained,
    names,
    namespace_option,
    on_release,
    output_option,
    pass_app,
    release_argument,
    replace_option,
    report,
    request_of,
    reuse_option,
    tables_option,
    target_options,
    timeout_option,
    values_options,
    where,
)
from bireme.cli.upgrades import Upgrade, begun
from bireme.core.errors import BiremeError, suggestion
from bireme.core.findings import WRITERS, Finding
from bireme.helm import RenderRequest
from bireme.helm import values as value_files
from bireme.workbench import Target

if TYPE_CHECKING:
    from bireme.clusters.base import Cluster
    from bireme.live.release import Release
    from bireme.live.summary import ReleaseStatus


@cli.command()
@chart_and_values
@reuse_option
@target_options
@replace_option
@timeout_option
@tables_option
@pass_app
def install(
    app: App, /, reuses: bool, target: Target, replace: bool, timeout: int, output: str, **options: Any
) -> None:
    """Install CHART as RELEASE, or upgrade that, and watch its pods.

    Without RELEASE, the release is called like the chart. Of a release that is there only the values given
    here stay, unless --reuse-values keeps the others.

    The pods are compared with the plan. Exits with 1 when they differ, and with 3, without waiting longer,
    when a queue holds the job.

    \b
    Example: bireme install torch-elastic imagenet -f p4d.24xlarge -f imagenet-efa
             bireme install torch-elastic imagenet --reuse-values --set workers=5
    """
    request = request_of(app, **options)
    if not reuses:
        with explained(app, request):
            app.renderer.render(request)  # so that values are refused before a cluster is needed
    upgrade = begun(app, app.cluster(target), request, reuses, output, must_exist=False)
    _conclude(app, _installed(app, upgrade, timeout, replace, output), output)


def _installed(app: App, /, upgrade: Upgrade, timeout: int, replace: bool, output: str) -> ReleaseStatus:
    """What became of an install. Raises BiremeError, which also names the values that differ."""
    deployer = app.deployer(upgrade.cluster, quiet=output in ("json", "yaml"))
    try:
        with explained(app, upgrade.request):
            return deployer.install(upgrade.request, timeout, replace)
    except BiremeError as error:
        if not upgrade.differing:
            raise
        raise BiremeError(f"{error}\n{upgrade.differing}") from error


@cli.command()
@click.argument("chart", metavar="CHART|RELEASE", shell_complete=names(chart_and_release_names, "dir"))
@release_argument(required=False)
@values_options
@target_options
@output_option(*WRITERS)
@pass_app
def doctor(app: App, /, chart: str, target: Target, output: str, **options: Any) -> None:
    """Tell what keeps CHART, or an installed RELEASE, from running.

    A word that names both is the release, unless values or a second word follow. Each finding is a sentence
    and the command that helps. Nothing is changed. Exits with 1 when there is one.

    \b
    Example: bireme doctor torch-elastic -f p4d.24xlarge -f imagenet-efa
             bireme doctor imagenet
    """
    from bireme.live.doctor import Doctor
    from bireme.live.doctor import release as of_release
    from bireme.plan.topology import expand

    release, namespace = options["release"], options["namespace"]
    cluster = app.cluster(target)
    left: tuple[Finding, ...] = ()
    given = release or any(value for name, value in options.items() if name != "namespace")
    installed = None if given else _named_release(app, cluster, chart, namespace)
    if installed:
        release, manifests = installed.name, installed.manifests
        left = tuple(of_release(installed.revision, app.paths.charts))
    else:
        request = request_of(app, chart=chart, **options)
        release, manifests = request.release, app.renderer.render(request).manifests
    planned = expand(release, namespace, manifests, app.instances)
    found = Doctor(cluster.api, planned, manifests, app.instances)
    if output == "text":
        topics = ", ".join([*(["release"] if installed else []), *found.topics(bool(installed))])
        what = f"release {release}" if installed else f"chart {chart}"
        app.err.print(f"doctor of {what}: {where(cluster, namespace)}; looks at {topics}", soft_wrap=True)
    report(output, [*left, *found.before(bool(installed)), *(found.after if installed else found.unseen)()])


def _named_release(app: App, /, cluster: Cluster, name: str, namespace: str) -> Release | None:
    """The release of that name; None for what names a chart only. Raises NoRelease for neither."""
    if "/" in name or name.endswith(".tgz"):
        return None
    releases = app.releases(cluster)
    if releases.current(name, namespace):
        return releases.read(name, namespace)
    if name in app.charts.names() or Path(name).exists():
        return None
    raise releases.missing(name, namespace)


@cli.command()
@release_argument()
@chart_argument(required=False)
@values_options
@reuse_option
@target_options
@output_option("text", "json", "yaml")
@pass_app
def diff(
    app: App, /, release: str, chart: str | None, reuses: bool, target: Target, output: str, **options: Any
) -> None:
    """Show what an upgrade of RELEASE changes in each object.

    It shows the lines that go and those that come. Without CHART, the chart here of the same name is used.
    Values count as in `bireme install`. Values of Secrets are hidden. Exits with 1 when something changes;
    `bireme plan --against` tells what that does.

    \b
    Example: bireme diff imagenet --reuse-values
             bireme diff imagenet --reuse-values --image registry.example.com/team/train:1.4
    """
    namespace = options["namespace"]
    cluster = app.cluster(target)
    installed = app.releases(cluster).read(release, namespace)
    request = request_of(app, chart=chart or installed.revision.chart_name, release=release, **options)
    request = begun(app, cluster, request, reuses, output).request
    with explained(app, request):
        found = app.deployer(cluster).diff(request)
    app.show(output, [each.to_json() for each in found], lambda: views.diff_view(found))
    sys.exit(1 if found else 0)


@cli.command()
@on_release
@click.option("-w", "--watch", "watches", is_flag=True, help="Show it again every two seconds, until Ctrl-C")
@tables_option
@pass_app
def status(app: App, /, release: str, watches: bool, namespace: str, target: Target, output: str) -> None:
    """Compare the pods of RELEASE with its plan, now.

    What differs comes first, with its reason. Exits with 1 when something does, with 3 when a queue holds the
    job.

    \b
    Example: bireme status imagenet -n training
             bireme status imagenet --watch
    """
    deployer = app.deployer(app.cluster(target))
    while watches:
        found = deployer.status(release, namespace)
        app.out.clear()
        _show(app, found, output)
        time.sleep(_WATCH_SECONDS)
    _conclude(app, deployer.status(release, namespace), output)


@cli.command()
@on_release
@output_option("table", "json", "yaml")
@pass_app
def history(app: App, /, release: str, namespace: str, target: Target, output: str) -> None:
    """List the revisions of RELEASE. `helm rollback` goes back to one.

    \b
    Example: bireme history imagenet
    """
    releases = app.releases(app.cluster(target))
    found = releases.revisions(release, namespace)
    if not found:
        raise releases.missing(release, namespace)
    app.show(output, [each.to_json() for each in found], lambda: views.history_view(found))


@cli.command()
@release_argument(required=False)
@click.option(
    "--file", type=click.Path(path_type=Path), help="What -o json has printed, instead of a release"
)
@namespace_option
@target_options
@output_option("text", "wide", "svg", "otlp", "json", "yaml")
@pass_app
def timeline(
    app: App, /, release: str | None, file: Path | None, namespace: str, target: Target, output: str
) -> None:
    """Show what happened in the run of RELEASE, and why.

    These are its worlds, workers and steps, and the reasons of restarts. A worker that runs is asked. -o svg
    draws a picture, -o otlp has spans for a collector of OpenTelemetry.

    \b
    Example: bireme timeline imagenet -o svg > run.svg
    """
    if (release is None) == (file is None):
        raise BiremeError("name a release or a file: bireme timeline RELEASE, or bireme timeline --file FILE")
    from bireme.live import otlp, timeline_picture
    from bireme.live.timeline import read as timeline_from

    if file:
        run = timeline_from(value_files.read_text(file, "timeline"), str(file))
    else:
        run = app.deployer(app.cluster(target)).timeline(str(release), namespace)
    if output == "svg":
        click.echo(timeline_picture.svg(run), nl=False)
    elif output == "otlp":
        click.echo(json.dumps(otlp.traces(run)))
    else:
        app.show(output, run.to_json(), lambda: views.timeline_view(run))


@cli.command("why")
@release_argument(required=False)
@click.option(
    "--files", type=click.Path(path_type=Path), help="A folder with what ranks elsewhere have written"
)
@click.option("--world", type=click.IntRange(min=1), help="With --files: the number of ranks")
@namespace_option
@target_options
@output_option("text", "json", "yaml")
@pass_app
def why_command(
    app: App,
    /,
    release: str | None,
    files: Path | None,
    world: int | None,
    namespace: str,
    target: Target,
    output: str,
) -> None:
    """Tell why RELEASE makes no step, and what to do.

    It names the rank, the collective and the line. The workers print the stacks of their ranks, and tell
    what torch's Flight Recorder holds. Of a run that has ended, it names the pod that failed first. --files
    reads such dumps and stacks of a run that Bireme did not start. Each file has the rank last in its name.

    \b
    Example: bireme why --files dumps/
    """
    if (release is None) == (files is None):
        raise BiremeError("name a release or a folder: bireme why RELEASE, or bireme why --files FOLDER")
    from bireme.live import why
    from bireme_runtime.elastic.monitor.why import explain

    silent: list[str] = []
    if files:
        cause = explain(why.read(files), world or 0)
    else:
        cause, silent = app.deployer(app.cluster(target)).why(str(release), namespace)
    app.show(
        output,
        {**asdict(cause), "remedy": cause.remedy, "silent": silent},
        lambda: views.cause_view(cause, silent),
    )


class _Duration(click.ParamType[int]):
    """Seconds, also as 90s, 10m, 2h or 1d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        found = re.fullmatch(r"(\d{1,6})([smhd]?)", str(value))
        if not found or not int(found[1]):
            self.fail(f"{value!r} is no time: write for example 90s, 10m or 2h", param, context)
        return int(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


@cli.command()
@release_argument()
@click.option(
    "--rank", type=click.IntRange(min=0), help="World rank whose pod prints (default: launcher or 0)"
)
@click.option("--all", "every", is_flag=True, help="All ranks and the launcher, each line after its rank")
@click.option("-f", "--follow", is_flag=True, help="Print also what the pod will print, until it ends")
@click.option("--previous", is_flag=True, help="What the pod printed before its last restart")
@click.option("--since", type=_Duration(), help="Only what was printed in this time, such as 90s, 10m or 2h")
@click.option("--tail", type=click.IntRange(min=0), help="Only so many last lines of each pod")
@namespace_option
@target_options
@pass_app
def logs(
    app: App, /, release: str, rank: int | None, every: bool, namespace: str, target: Target, **options: Any
) -> None:
    """Print the log of a pod of RELEASE, or of all ranks.

    Without --all or --rank it is the launcher's, else that of rank 0.

    \b
    Example: bireme logs imagenet --rank 8 -f
             bireme logs imagenet --all --since 10m
    """
    if rank is not None and every:
        raise BiremeError("--rank and --all name pods: give one of them")
    from bireme.live.logs import Wanted, all_logs, log, main_pod

    cluster = app.cluster(target)
    planned = app.deployer(cluster).planned(release, namespace)
    wanted = Wanted(**options)
    if every:
        pieces = all_logs(cluster, planned, wanted)
    else:
        pieces = log(cluster, planned, main_pod(cluster, planned, rank), wanted)
    for piece in pieces:
        click.echo(piece, nl=False)


@cli.command()
@on_release
@click.argument("workers", type=click.IntRange(min=0))
@replace_option
@timeout_option
@tables_option
@pass_app
def scale(
    app: App,
    /,
    release: str,
    workers: int,
    replace: bool,
    namespace: str,
    target: Target,
    timeout: int,
    output: str,
) -> None:
    """Give RELEASE another number of WORKERS and wait for them. Its other values stay.

    \b
    Example: bireme scale imagenet 5
    """
    cluster = app.cluster(target)
    request = app.deployer(cluster).resized(release, namespace, workers, app.paths.charts)
    _change(app, cluster, request, timeout, output, replace)


def _change(
    app: App, /, cluster: Cluster, request: RenderRequest, timeout: int, output: str, replace: bool = False
) -> None:
    """Upgrade a release whose other values stay, unless that is refused, and end."""
    upgrade = begun(app, cluster, request, True, output)
    foreseen = app.deployer(cluster).changes(upgrade.request)
    if foreseen.is_refused and not replace:
        raise BiremeError("\n".join([*foreseen.sentences(), upgrade.differing]))
    _conclude(app, _installed(app, upgrade, timeout, replace, output), output)


@cli.command()
@on_release
@timeout_option
@tables_option
@pass_app
def stop(app: App, /, **options: Any) -> None:
    """Stop the job of RELEASE: its pods save and end, the rest stays.

    `bireme resume` starts them again. A job in a queue is stopped by the queue.

    \b
    Example: bireme stop imagenet
    """
    _suspend(app, True, **options)


@cli.command()
@on_release
@timeout_option
@tables_option
@pass_app
def resume(app: App, /, **options: Any) -> None:
    """Start the job of RELEASE again that `bireme stop` has stopped.

    \b
    Example: bireme resume imagenet
    """
    _suspend(app, False, **options)


def _suspend(
    app: App, /, suspend: bool, release: str, namespace: str, target: Target, timeout: int, output: str
) -> None:
    cluster = app.cluster(target)
    request = app.deployer(cluster).suspended(release, namespace, suspend, app.paths.charts)
    _change(app, cluster, request, timeout, output)


@cli.command("list")
@click.argument(
    "what", type=click.Choice(["releases", "charts", "instances", "workloads"]), default="releases"
)
@click.option(
    "-n", "--namespace", callback=a_namespace, help="Only releases of this namespace (default: all)"
)
@target_options
@output_option("table", "json", "yaml")
@pass_app
def list_(app: App, /, what: str, namespace: str | None, target: Target, output: str) -> None:
    """List releases, charts, instance types or workloads.

    Releases are those on a cluster, with ready and planned workers, place in a queue, and the accelerators
    that they ask for. The others come with Bireme.

    \b
    Example: bireme list workloads
    """
    if what != "releases":
        names = app.charts.names() if what == "charts" else sorted(app.kept_values(what))
        app.show(output, names, lambda: "\n".join(names))
        return
    cluster = app.cluster(target)
    found = app.deployer(cluster).summaries(app.releases(cluster).list(namespace))
    app.show(output, [each.to_json() for each in found], lambda: views.releases_view(found))


@cli.command()
@release_argument(required=False)
@click.option("--file", "log", type=click.Path(path_type=Path), help="A log on disk instead of a release")
@click.option("--instance", metavar="TYPE", help="With --file: the type of its nodes, e.g. p4d.24xlarge")
@click.option(
    "--nodes", type=click.IntRange(min=1), help="With --file: their number (default: the hosts in the log)"
)
@click.option(
    "--efa",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="With --file: EFA interfaces the job asked for, each",
)
@namespace_option
@target_options
@output_option("table", "json", "yaml")
@pass_app
def nccl(
    app: App,
    /,
    release: str | None,
    log: Path | None,
    instance: str | None,
    nodes: int | None,
    efa: int,
    namespace: str,
    target: Target,
    output: str,
) -> None:
    """Tell whether NCCL used EFA in RELEASE, and how fast it was.

    It reads what nccl-tests printed. Exits with 1 when there is no result, when sums are wrong, or when the
    job asked for EFA and NCCL used something else.

    \b
    Example: bireme nccl --file nccl.log --instance p4d.24xlarge --efa 4
    """
    if (release is None) == (log is None):
        raise BiremeError("name a release or a log: bireme nccl RELEASE, or bireme nccl --file LOG")
    if instance and instance not in app.instances:
        raise BiremeError(f"--instance: unknown type {instance!r}: {suggestion(instance, app.instances)}")
    from bireme.live.logs import main_log
    from bireme.live.nccl import JobNetwork, asked_by, judge, load_measured, parse

    if log:
        report = parse(value_files.read_text(log, "log"), str(log))
        asked = JobNetwork(instance, nodes or report.hosts or 0, efa) if instance or efa else None
    else:
        name, cluster = str(release), app.cluster(target)
        planned = app.deployer(cluster).planned(name, namespace)
        asked = asked_by(planned)
        report = parse(main_log(cluster, planned), f"the log of {name}'s launcher")
    verdict = judge(report, asked, load_measured(app.paths), app.instances)
    app.show(output, verdict.to_json(), lambda: views.bandwidth_view(verdict))
    if verdict.problems:
        raise BiremeError("\n".join(verdict.problems))


_HELD = 3
_WATCH_SECONDS = 2


def _conclude(app: App, /, outcome: ReleaseStatus, output: str) -> None:
    _show(app, outcome, output)
    sys.exit(_HELD if outcome.is_held else 1 if outcome.differences else 0)


def _show(app: App, /, outcome: ReleaseStatus, output: str) -> None:
    app.show(output, outcome.to_json(), lambda: views.outcome_view(outcome, output == "wide"))


@cli.command()
@on_release
@timeout_option
@pass_app
def uninstall(app: App, /, release: str, namespace: str, target: Target, timeout: int) -> None:
    """Remove RELEASE and wait until its pods are gone.

    \b
    Example: bireme uninstall imagenet
    """
    cluster = app.cluster(target)
    app.err.print(f"uninstall of {release}: {where(cluster, namespace)}", soft_wrap=True)
    app.deployer(cluster).uninstall(release, namespace, timeout)
    app.out.print(f"{release} is gone")
