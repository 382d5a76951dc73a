"""Elastic jobs that follow the capacity."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid

import click

from bireme.cli.options import App, a_namespace, cli, pass_app, target_options
from bireme.workbench import Target

_LEASE = "bireme-autoscaler"


@cli.command(name="autoscale")
@click.option(
    "-n",
    "--namespace",
    "namespaces",
    multiple=True,
    callback=a_namespace,
    help="Namespace of the jobs to resize, also several times (default: all)",
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
    "--ill-nodes", is_flag=True, help="Taint nodes that are ill, and let the workers of jobs leave them"
)
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
    namespaces: tuple[str, ...],
    once: bool,
    dry_run: bool,
    every: float,
    prometheus: str,
    ill_nodes: bool,
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
    from bireme.autoscale.controller import Controller
    from bireme.autoscale.lease import SECONDS, Lease
    from bireme.autoscale.sources import WORKER_SECONDS
    from bireme.clusters.api import Api
    from bireme.clusters.waiting import until
    from bireme.live import pod_http

    api = Api(None) if _is_in_a_pod(target) else app.cluster(target).api
    ask = pod_http.directly(WORKER_SECONDS) if direct else pod_http.through_the_api(api, WORKER_SECONDS)
    holder = f"{os.uname().nodename}-{uuid.uuid4().hex[:8]}"
    lease = None if dry_run else Lease(api, lease_namespace, _LEASE, holder)
    controller = Controller(api, ask, _tell, lease, namespaces, dry_run, prometheus, ill_nodes)
    if once or dry_run:
        # One that has died is told by its silence from one that lives.
        until(
            controller.leads,
            SECONDS + 10,
            "another controller, which resizes the jobs of this cluster: leave --once to it, or end it",
        )
        try:
            if not controller.once():
                click.echo("nothing changes", err=True)
        finally:
            if lease:
                lease.release()
        return
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if port:
        controller.serve_health(port)
    controller.run(every, stop)


def _tell(line: str) -> None:
    click.echo(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}", err=True)


def _is_in_a_pod(target: Target) -> bool:
    """Whether this runs in a pod of a cluster, and nothing names another one."""
    named = target.cluster or target.kubeconfig or target.context or os.environ.get("KUBECONFIG")
    return "KUBERNETES_SERVICE_HOST" in os.environ and not named
