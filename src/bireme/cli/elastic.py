"""Elastic jobs that follow the capacity."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import uuid
from pathlib import Path

import click

from bireme import autoscale
from bireme.cli import views
from bireme.cli.options import App, Target, a_namespace, cli, output_option, pass_app, target_options
from bireme.clusters.api import Api
from bireme.core.errors import BiremeError
from bireme.core.progress import step
from bireme.live import pod_http

_LEASE = "bireme-autoscaler"


@cli.command()
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@click.option(
    "--sample",
    type=click.Choice(sorted(autoscale.PUBLISHED)),
    help="Draw a trace with the figures of a published one",
)
@click.option(
    "--jobs", default=5000, show_default=True, type=click.IntRange(1, 1_000_000), help="Jobs of the sample"
)
@click.option(
    "--load",
    default=0.9,
    show_default=True,
    type=click.FloatRange(0.01, 10),
    help="Work of the sample, as a multiple of what the cluster does meanwhile",
)
@click.option(
    "--elastic",
    default=0.5,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Share of the sample's jobs of two workers or more that are elastic",
)
@click.option(
    "--nodes", default=32, show_default=True, type=click.IntRange(1, 100_000), help="Nodes of the cluster"
)
@click.option(
    "--places",
    default=8,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Workers that a node has room for",
)
@click.option(
    "--failures",
    default=6.0,
    show_default=True,
    type=click.FloatRange(0, 1000),
    help="How often a node is lost, in a year",
)
@click.option(
    "--scaling",
    default=0.9,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Exponent: n workers do n^this times the work of one",
)
@click.option(
    "--seed", default=1, show_default=True, type=int, help="Of the sample and of the nodes that are lost"
)
@output_option("text", "svg", "json", "yaml")
@pass_app
def simulate(
    app: App,
    /,
    trace: Path | None,
    sample: str | None,
    jobs: int,
    load: float,
    elastic: float,
    nodes: int,
    places: int,
    failures: float,
    scaling: float,
    seed: int,
    output: str,
) -> None:
    """Compare elastic jobs with static ones, by simulation.

    TRACE is a CSV file of jobs. Columns of the file: submit and duration (seconds), workers, and if wanted
    priority, minimum and maximum (of the workers). The elastic cluster decides as `bireme autoscale` does.

    \b
    Example: bireme simulate --sample helios --jobs 5000 --nodes 32 -o svg > elasticity.svg
    """
    if (trace is None) == (sample is None):
        raise BiremeError(
            "name a trace or a sample: bireme simulate TRACE.csv, or bireme simulate --sample helios"
        )
    if trace is not None:
        name, drawn = trace.name, autoscale.read(trace)
        largest = max(drawn, key=lambda job: job.workers)
        if largest.workers > nodes * places:
            raise BiremeError(
                f"{trace}: {largest.name} has {largest.workers} workers, and {nodes} nodes have room for "
                f"{nodes * places}: raise --nodes or --places"
            )
    else:
        published = autoscale.PUBLISHED[str(sample)]
        name = f"{jobs:,} jobs as in {published.title}"
        drawn = autoscale.sample(published, jobs, nodes * places, load, elastic, seed)
    settings = autoscale.Settings(nodes, places, scaling=scaling, failures=failures, seed=seed)
    with step(app.err, f"simulating {len(drawn):,} jobs twice"):
        found = autoscale.compare(name, drawn, settings)
    if output == "svg":
        click.echo(autoscale.svg(found), nl=False)
    else:
        app.show(output, found.to_json(), lambda: views.simulation_view(found))


@cli.command(name="autoscale")
@click.option(
    "-n",
    "--namespace",
    default="",
    callback=a_namespace,
    help="Namespace of the jobs to resize (default: all)",
)
@click.option("--once", is_flag=True, help="Look and resize once, then end")
@click.option("--dry-run", is_flag=True, help="Say what would change, once; change nothing")
@click.option(
    "--every",
    default=5.0,
    show_default=True,
    type=click.FloatRange(0.1, 3600),
    help="Seconds between two looks at the cluster",
)
@click.option("--prometheus", default="", metavar="URL", help="Where the queries of jobs with a metric go")
@click.option(
    "--lease-namespace",
    default="default",
    callback=a_namespace,
    show_default=True,
    help=f"Namespace of the Lease {_LEASE}, whose holder alone resizes jobs",
)
@click.option(
    "--direct",
    is_flag=True,
    help="Ask workers at the addresses of their pods, from inside the cluster, not through the API server",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Answer at this port whether all is well: /healthz"
)
@target_options
@pass_app
def autoscale_command(
    app: App,
    /,
    namespace: str,
    once: bool,
    dry_run: bool,
    every: float,
    prometheus: str,
    lease_namespace: str,
    direct: bool,
    port: int | None,
    target: Target,
) -> None:
    """Let elastic jobs grow into free places, and give way.

    It resizes jobs with autoscale.enabled, and takes places back for what goes first. It runs until it is
    ended; charts/autoscaler runs it in the cluster, with the account of its pod.

    \b
    Example: bireme autoscale --dry-run
    """
    api = Api(None) if _is_in_a_pod(target) else app.cluster(target).api
    options = autoscale.Options(namespace, dry_run, prometheus)
    limit = autoscale.WORKER_SECONDS
    ask = pod_http.directly(limit) if direct else pod_http.through_the_api(api, limit)
    holder = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    lease = None if dry_run else autoscale.Lease(api, lease_namespace, _LEASE, holder)
    controller = autoscale.Controller(api, options, ask, _tell, lease)
    if once or dry_run:
        if not controller.leads():
            raise BiremeError(
                "another controller resizes the jobs of this cluster: leave --once to it, or end it"
            )
        if not controller.once():
            click.echo("nothing changes", err=True)
        if lease:
            lease.release()
        return
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if port:
        autoscale.serve_health(controller, port)
    controller.run(every, stop)


def _tell(line: str) -> None:
    click.echo(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}", err=True)


def _is_in_a_pod(target: Target) -> bool:
    """Whether this runs in a pod of a cluster, and nothing names another one."""
    named = target.cluster or target.kubeconfig or target.context or os.environ.get("KUBECONFIG")
    return "KUBERNETES_SERVICE_HOST" in os.environ and not named
