"""The command line: reads options, calls the harness, prints what came out."""

from __future__ import annotations

import json
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress

from bireme import __version__, views
from bireme.clusters import DEFAULT_NAME, Cluster, find, list_clusters, provider
from bireme.clusters.nodes import parse_nodes
from bireme.deploy import Deployer, Outcome
from bireme.errors import BiremeError
from bireme.helm import Renderer, RenderRequest, Settings
from bireme.helm import values as value_files
from bireme.instances import Instance, load_instances
from bireme.lint import Linter, find_charts
from bireme.nccl import Asked, asked_by, judge, load_measured, parse
from bireme.observe import launcher_log
from bireme.paths import Paths
from bireme.picture import svg
from bireme.release import Releases
from bireme.schemas import problems
from bireme.tools import Toolbox
from bireme.topology import expand, fit

F = TypeVar("F", bound=Callable[..., Any])


class App:
    """What the commands share, created on first use. Results go to stdout, progress to stderr."""

    def __init__(self) -> None:
        self.out = Console(highlight=False)
        self.err = Console(stderr=True, highlight=False)

    @cached_property
    def paths(self) -> Paths:
        return Paths.discover()

    @cached_property
    def toolbox(self) -> Toolbox:
        return Toolbox(self.paths, self.err)

    @cached_property
    def instances(self) -> Mapping[str, Instance]:
        return load_instances(self.paths)

    @cached_property
    def renderer(self) -> Renderer:
        return Renderer(self.toolbox, self.paths)

    def deployer(self, cluster: Cluster, quiet: bool = False) -> Deployer:
        releases = Releases(cluster, self.toolbox)
        return Deployer(cluster, releases, self.renderer, self.instances, None if quiet else self.err)

    def cluster(self, name: str | None, kubeconfig: Path | None, context: str | None) -> Cluster:
        """The cluster that the options name; without any, the one of `bireme up`, else kubectl's own."""
        if kubeconfig or context:
            from bireme.clusters.existing import ExistingProvider

            return ExistingProvider(kubeconfig).get(context or "")
        made = {info.name: info for info in list_clusters(self.paths)}
        chosen = name or (next(iter(made)) if len(made) == 1 else None)
        if chosen is None and made:
            raise BiremeError(f"there are several clusters ({', '.join(made)}): choose one with --cluster")
        if chosen is None:
            from bireme.clusters.existing import ExistingProvider

            return ExistingProvider().get()
        if chosen not in made:
            raise BiremeError(f"there is no cluster {chosen}: start it with: bireme up --name {chosen}")
        return provider(made[chosen].provider, self.paths, self.toolbox, self.err).get(chosen)

    def show(self, output: str, data: Any, view: Callable[[], RenderableType]) -> None:
        """Print ``data`` as JSON or YAML, or the view of it for people."""
        if output == "json":
            click.echo(json.dumps(data, indent=2))
        elif output == "yaml":
            click.echo(yaml.safe_dump(data, sort_keys=False), nl=False)
        else:
            self.out.print(view())


pass_app = click.make_pass_decorator(App, ensure=True)


def _stacked(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    return lambda command: reduce(lambda inner, decorate: decorate(inner), reversed(decorators), command)


def _output(*formats: str) -> Callable[[F], F]:
    return click.option(
        "-o", "--output", type=click.Choice(formats), default=formats[0], show_default=True, help="Format"
    )


_namespace = click.option(
    "-n", "--namespace", default="default", show_default=True, help="Namespace of the release"
)
_timeout = click.option("--timeout", default=300.0, show_default=True, help="Longest wait, in seconds")
_target = _stacked(
    click.option(
        "--cluster", metavar="NAME", help="A cluster of `bireme up` (default: the only one there is)"
    ),
    click.option("--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig of another cluster"),
    click.option("--context", help="Context in the kubeconfig"),
)
_values = _stacked(
    click.argument("chart", type=click.Path(path_type=Path)),
    click.option(
        "-f",
        "--values",
        "files",
        multiple=True,
        type=click.Path(path_type=Path),
        help="Values file; later ones win",
    ),
    click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="One value, typed as Helm does"),
    click.option(
        "--set-string", "set_strings", multiple=True, metavar="KEY=VALUE", help="One value, as text"
    ),
    click.option("--set-json", "set_jsons", multiple=True, metavar="KEY=JSON", help="One value, as JSON"),
    click.option("--set-file", "set_files", multiple=True, metavar="KEY=FILE", help="One value, from a file"),
    click.option("--release", metavar="NAME", help="Name of the release (default: the chart's name)"),
    _namespace,
)


def _request(
    chart: Path,
    files: tuple[Path, ...],
    sets: tuple[str, ...],
    set_strings: tuple[str, ...],
    set_jsons: tuple[str, ...],
    set_files: tuple[str, ...],
    release: str | None,
    namespace: str,
) -> RenderRequest:
    settings = Settings(sets, set_strings, set_jsons, set_files)
    release = release or chart.resolve().name
    return RenderRequest(chart, value_files.load(files), release, namespace, settings=settings)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Plan, install and check distributed training jobs on Kubernetes."""


@cli.command()
@_values
@click.option("--helm3", is_flag=True, help="Render with Helm 3 instead of 4")
@_output("yaml", "json")
@pass_app
def render(app: App, /, helm3: bool, output: str, **options: Any) -> None:
    """Render CHART and print its objects."""
    request = replace(_request(**options), helm="helm3" if helm3 else "helm")
    if output == "yaml":
        click.echo(app.renderer.text(request), nl=False)
        return
    manifests = app.renderer.render(request).manifests
    click.echo(json.dumps([item.thaw() for item in manifests], indent=2))


@cli.command()
@_values
@_output("table", "json", "yaml")
@pass_app
def validate(app: App, /, output: str, **options: Any) -> None:
    """Check values against CHART's schema and rules, and list everything that is wrong."""
    request = _request(**options)
    found = [str(problem) for problem in problems(app.renderer, request)]
    if not found:
        try:
            app.renderer.render(request)
        except BiremeError as error:
            found = str(error).splitlines()
    app.show(
        output, {"problems": found}, lambda: "\n".join(found) or f"{request.chart}: the values are valid"
    )
    sys.exit(1 if found else 0)


@cli.command()
@click.argument("charts", metavar="[CHART]...", nargs=-1, type=click.Path(path_type=Path))
@_output("text", "json", "yaml")
@pass_app
def lint(app: App, /, charts: tuple[Path, ...], output: str) -> None:
    """Check charts: values.yaml and schema, and the objects that the defaults and ci/*-values.yaml render to.

    CHART is a chart or a folder of charts; without any, all charts of the project are checked. Exits with 1
    when there is something to change.
    """
    chosen = find_charts(charts or [app.paths.charts])
    linter = Linter(app.renderer, app.toolbox)
    columns = ("[progress.description]{task.description}", BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=app.err, transient=True, disable=not app.err.is_terminal) as bar:
        task = bar.add_task("rendering")
        findings = linter.lint(chosen, lambda done, total: bar.update(task, completed=done, total=total))
    app.show(
        output,
        {"charts": [str(chart) for chart in chosen], "findings": [each.to_json() for each in findings]},
        lambda: views.lint_view(len(chosen), findings),
    )
    sys.exit(1 if findings else 0)


@cli.command()
@_values
@click.option("--nodes", help="Tell whether the job fits these nodes, e.g. p4d.24xlarge=2")
@click.option("--against", metavar="RELEASE", help="Tell what an upgrade of that release will do")
@_target
@_output("table", "json", "yaml", "svg")
@pass_app
def plan(
    app: App,
    /,
    nodes: str | None,
    against: str | None,
    cluster: str | None,
    kubeconfig: Path | None,
    context: str | None,
    output: str,
    **options: Any,
) -> None:
    """Show the pods, ranks, resources and nodes that CHART becomes, without touching a cluster."""
    request = _request(**options | ({"release": against} if against else {}))
    manifests = app.renderer.render(request).manifests
    planned = expand(request.release, request.namespace, manifests, app.instances)
    if against:
        foreseen = app.deployer(app.cluster(cluster, kubeconfig, context)).changes(request)
        app.show(output, foreseen.to_json(), lambda: "\n".join(foreseen.sentences()))
        sys.exit(1 if foreseen.is_refused else 0)
    if output == "svg":
        click.echo(svg(planned), nl=False)
    else:
        app.show(output, planned.to_json(), lambda: views.plan_view(planned))
    for sentence in fit(planned, parse_nodes(nodes, app.instances), app.instances) if nodes else []:
        app.err.print(f"warning: {sentence}", style="yellow")


@cli.command()
@click.option(
    "--provider",
    "provider_name",
    default="embedded",
    show_default=True,
    help="embedded (needs no container engine) or kind",
)
@click.option("--nodes", default="p4d.24xlarge=3", show_default=True, help="Nodes by instance type")
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="Name of the cluster")
@click.option(
    "--claim",
    "claims",
    multiple=True,
    metavar="NAME",
    help="Also make a claim that all nodes can mount (a stand-in)",
)
@pass_app
def up(app: App, /, provider_name: str, nodes: str, name: str, claims: tuple[str, ...]) -> None:
    """Start a cluster with nodes shaped like these instance types."""
    wanted = parse_nodes(nodes, app.instances)
    cluster = provider(provider_name, app.paths, app.toolbox, app.err).up(name, wanted)
    for claim in claims:
        cluster.add_claim(claim)
    app.out.print(
        f"{provider_name} cluster {name} is up: export KUBECONFIG={cluster.kubeconfig}", soft_wrap=True
    )


@cli.command()
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="Name of the cluster")
@pass_app
def down(app: App, /, name: str) -> None:
    """Stop a cluster of `bireme up` and remove everything of it."""
    info = find(app.paths, name)
    # An `up` that was killed left no record of its provider: each one looks for its own remains.
    providers = [info.provider] if info else ["embedded", "kind"]
    removed = [each for each in providers if provider(each, app.paths, app.toolbox, app.err).down(name)]
    app.out.print(f"cluster {name} is gone" if removed else f"there was no cluster {name}")


@cli.command()
@_output("table", "json", "yaml")
@pass_app
def clusters(app: App, /, output: str) -> None:
    """List the clusters of `bireme up`."""
    found = list_clusters(app.paths)
    app.show(output, [info.to_json() for info in found], lambda: views.clusters_view(found))


@cli.command()
@_values
@_target
@click.option(
    "--replace", is_flag=True, help="Stop a run that cannot change in place, and train on in the next run"
)
@_timeout
@_output("table", "json", "yaml")
@pass_app
def install(
    app: App,
    /,
    cluster: str | None,
    kubeconfig: Path | None,
    context: str | None,
    replace: bool,
    timeout: float,
    output: str,
    **options: Any,
) -> None:
    """Install CHART or upgrade its release, watch the pods arrive, and compare them with the plan."""
    request = _request(**options)
    app.renderer.render(request)  # so that values are refused before a cluster is needed
    deployer = app.deployer(app.cluster(cluster, kubeconfig, context), quiet=output != "table")
    _conclude(app, deployer.install(request, timeout, replace), output)


@cli.command()
@click.argument("release")
@_namespace
@_target
@_output("table", "json", "yaml")
@pass_app
def status(
    app: App,
    /,
    release: str,
    namespace: str,
    cluster: str | None,
    kubeconfig: Path | None,
    context: str | None,
    output: str,
) -> None:
    """Compare the pods of RELEASE with its plan, now."""
    _conclude(app, app.deployer(app.cluster(cluster, kubeconfig, context)).status(release, namespace), output)


@cli.command()
@click.argument("release", required=False)
@click.option("--file", "log", type=click.Path(path_type=Path), help="A log on disk instead of a release")
@click.option("--instance", metavar="TYPE", help="With --file: the type of its nodes, e.g. p4d.24xlarge")
@click.option("--nodes", type=int, help="With --file: their number (default: the hosts in the log)")
@click.option(
    "--efa", default=0, show_default=True, help="With --file: EFA interfaces the job asked for, each"
)
@_namespace
@_target
@_output("table", "json", "yaml")
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
    cluster: str | None,
    kubeconfig: Path | None,
    context: str | None,
    output: str,
) -> None:
    """Read what nccl-tests printed in RELEASE: does NCCL use EFA, and how fast is it?

    Exits with 1 when there is no result, when sums are wrong, or when the job asked for EFA and NCCL used
    something else.
    """
    if (release is None) == (log is None):
        raise BiremeError("name a release or a log: bireme nccl RELEASE, or bireme nccl --file LOG")
    if instance and instance not in app.instances:
        raise BiremeError(
            f"{instance} is not in values/instances: known types are {', '.join(app.instances)}"
        )
    if log:
        report = parse(value_files.read_text(log, "log"), str(log))
        asked = Asked(instance, nodes or report.hosts or 0, efa) if instance or efa else None
    else:
        name, target = str(release), app.cluster(cluster, kubeconfig, context)
        planned = app.deployer(target).planned(name, namespace)
        asked = asked_by(planned)
        report = parse(launcher_log(target, planned), f"the log of {name}'s launcher")
    verdict = judge(report, asked, load_measured(app.paths), app.instances)
    app.show(output, verdict.to_json(), lambda: views.bandwidth_view(verdict))
    if verdict.problems:
        raise BiremeError("\n".join(verdict.problems))


def _conclude(app: App, /, outcome: Outcome, output: str) -> None:
    app.show(output, outcome.to_json(), lambda: views.outcome_view(outcome))
    sys.exit(1 if outcome.differences else 0)


@cli.command()
@click.argument("release")
@_namespace
@_target
@_timeout
@pass_app
def uninstall(
    app: App,
    /,
    release: str,
    namespace: str,
    cluster: str | None,
    kubeconfig: Path | None,
    context: str | None,
    timeout: float,
) -> None:
    """Remove RELEASE and wait until its pods are gone."""
    app.deployer(app.cluster(cluster, kubeconfig, context)).uninstall(release, namespace, timeout)
    app.out.print(f"{release} is gone")


@cli.command()
@click.option("--get", metavar="NAMES", help="First get these, e.g. helm,kubectl: found, downloaded or built")
@_output("table", "json", "yaml")
@pass_app
def tools(app: App, /, get: str | None, output: str) -> None:
    """List every pinned tool: the pin, where it was found, its version."""
    if get:
        app.toolbox.ensure(get.split(","))
    found = app.toolbox.list()
    app.show(output, [tool.to_json() for tool in found], lambda: views.tools_view(found))


@cli.command()
@pass_app
def demo(app: App, /) -> None:
    """Schedule the training of EfficientNet-B7 on three simulated p4d.24xlarge.

    A real control plane schedules the real job onto fake nodes; the pods are compared with the plan, and
    everything is removed again.
    """
    values = [
        app.paths.values / "instances/p4d.24xlarge.yaml",
        app.paths.values / "workloads/imagenet-efa.yaml",
    ]
    request = RenderRequest(
        app.paths.charts / "torch-elastic", value_files.load(values) | {"workers": 3}, "imagenet"
    )
    with _demo_cluster(app) as cluster:
        deployer = app.deployer(cluster)
        app.out.print(views.plan_view(deployer.plan(request)))
        outcome = deployer.install(request)
        app.out.print(views.outcome_view(outcome))
        deployer.uninstall(request.release, request.namespace)
    sys.exit(1 if outcome.differences else 0)


@contextmanager
def _demo_cluster(app: App, /) -> Iterator[Cluster]:
    embedded = provider("embedded", app.paths, app.toolbox, app.err)
    name = f"demo-{uuid.uuid4().hex[:6]}"
    cluster = embedded.up(name, {"p4d.24xlarge": 3})
    try:
        cluster.add_claim("fsx-pvc")
        yield cluster
    finally:
        embedded.down(name)


def main() -> None:
    """Run the command line. An error that the user can fix is printed as one sentence, with exit code 1."""
    # SIGTERM interrupts a command as Ctrl-C does, so that it cleans up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cli(standalone_mode=True)
    except BiremeError as error:
        Console(stderr=True, highlight=False).print(
            f"error: {error}", style="red", markup=False, soft_wrap=True
        )
        sys.exit(1)
