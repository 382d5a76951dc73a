"""Clusters and nodes, and what makes them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from bireme import __version__
from bireme.cli import views
from bireme.cli.options import App, cli, output_option, pass_app, stacked
from bireme.clusters import ADDONS, DEFAULT_NAME
from bireme.core.errors import BiremeError, refuse_name
from bireme.core.progress import step
from bireme.helm.yaml import block_text
from bireme.provision import CAPACITIES

if TYPE_CHECKING:
    from bireme.provision.groups import Fleet

_cluster_option = click.option(
    "--cluster", "name", default=DEFAULT_NAME, show_default=True, help="Name of the cluster"
)


@cli.command()
@click.option(
    "--provider",
    "provider_name",
    default="embedded",
    show_default=True,
    help="embedded (needs no container engine) or kind",
)
@click.option("--nodes", default="p4d.24xlarge=3", show_default=True, help="Nodes by instance type")
@_cluster_option
@click.option(
    "--claim",
    "claims",
    multiple=True,
    metavar="NAME",
    help="Also make a claim that all nodes can mount (a stand-in)",
)
@click.option(
    "--with",
    "addons",
    multiple=True,
    type=click.Choice(ADDONS),
    help="Also run Kueue, Karpenter with a NodePool for every type, Flux or Argo CD; embedded clusters only",
)
@pass_app
def up(
    app: App, /, provider_name: str, nodes: str, name: str, claims: tuple[str, ...], addons: tuple[str, ...]
) -> None:
    """Start a cluster with nodes shaped like these instance types.

    \b
    Example: bireme up --nodes p4d.24xlarge=5,p3.8xlarge=4 --claim fsx-pvc
    """
    from bireme.clusters.nodes import parse_nodes
    from bireme.clusters.registry import start_addon
    from bireme.clusters.waiting import no_interrupts

    wanted = parse_nodes(nodes, app.instances)
    for claim in claims:
        refuse_name("--claim", claim, 63)
    clusters = app.provider(provider_name)
    cluster = clusters.up(name, wanted)
    try:
        for addon in addons:
            with step(app.err, f"Starting {addon}"):
                start_addon(addon, cluster, app.toolbox)
        for claim in claims:
            cluster.add_claim(claim)
    except BaseException:
        with no_interrupts():
            clusters.down(name)
        raise
    app.out.print(
        f"{provider_name} cluster {name} is up: export KUBECONFIG={cluster.kubeconfig}", soft_wrap=True
    )
    if os.environ.get("KUBECONFIG", str(cluster.kubeconfig)) != str(cluster.kubeconfig):
        app.err.print(
            f"warning: $KUBECONFIG names another cluster, which commands take without --cluster {name}",
            style="yellow",
            soft_wrap=True,
        )


@cli.command()
@_cluster_option
@pass_app
def down(app: App, /, name: str) -> None:
    """Stop a cluster of `bireme up` and remove everything of it.

    \b
    Example: bireme down --cluster bireme
    """
    from bireme.clusters.state import find

    info = find(app.paths, name)
    # An `up` that was killed left no record of its provider: each one looks for its own remains.
    providers = [info.provider] if info else ["embedded", "kind"]
    removed = [each for each in providers if app.provider(each).down(name)]
    app.out.print(f"cluster {name} is gone" if removed else f"there was no cluster {name}")


@cli.command()
@output_option("table", "json", "yaml")
@pass_app
def clusters(app: App, /, output: str) -> None:
    """List the clusters of `bireme up`.

    \b
    Example: bireme clusters -o json
    """
    from bireme.clusters.state import list_clusters

    found = list_clusters(app.paths)
    app.show(output, [info.to_json() for info in found], lambda: views.clusters_view(found))


@cli.command()
@click.option("--get", metavar="NAMES", help="First get these, e.g. helm,kubectl: found, downloaded or built")
@output_option("table", "wide", "json", "yaml", "path")
@pass_app
def tools(app: App, /, get: str | None, output: str) -> None:
    """List the pinned tools: where each was found, its version.

    -o path prints the folders of those that --get names, for PATH.

    \b
    Example: bireme tools --get helm,kubectl
    """
    if output == "path" and get is None:
        raise BiremeError("-o path needs the tools to put on PATH: add --get, for example --get helm,kubectl")
    names: list[str] = []
    if get is not None:
        names = [name.strip() for name in get.split(",")]
        app.toolbox.ensure(names)
    if output == "path":
        click.echo(os.pathsep.join(dict.fromkeys(str(app.toolbox.path(name).parent) for name in names)))
        return
    found = app.toolbox.list()
    app.show(output, [tool.to_json() for tool in found], lambda: views.tools_view(found))


@cli.command()
@pass_app
def version(app: App, /) -> None:
    """Print the versions of Bireme, Helm and Kubernetes.

    \b
    Example: bireme version
    """
    click.echo(f"bireme {__version__}")
    for name in ("helm", "helm3", "kube-apiserver"):
        click.echo(f"{name} {app.toolbox.pin(name).version}")


_fleet = stacked(
    click.option("--nodes", required=True, help="Nodes by instance type, e.g. p4d.24xlarge=3"),
    click.option("--cluster", "name", default="bireme", show_default=True, help="Name of the EKS cluster"),
    click.option("--region", default="us-west-2", show_default=True, help="Its region"),
    click.option(
        "--zones",
        metavar="ZONE,ZONE",
        help="Its zones; accelerated nodes are in the first (default: a and b of the region)",
    ),
    click.option(
        "--capacity",
        type=click.Choice(CAPACITIES),
        default=CAPACITIES[0],
        show_default=True,
        help="How accelerated nodes are bought; block is a capacity block",
    ),
    click.option("--reservation", metavar="ID", help="The capacity reservation or block, cr-…"),
    click.option("--placement-group", metavar="NAME", help="A placement group that exists"),
)


def _as_fleet(app: App, options: Mapping[str, Any], system_nodes: int = 0) -> Fleet:
    from bireme.clusters.nodes import parse_nodes
    from bireme.plan.instances import CPU_TYPE
    from bireme.provision.groups import Capacity, Fleet

    region, zones = options["region"], options["zones"]
    nodes = parse_nodes(options["nodes"], app.instances)
    return Fleet(
        name=options["name"],
        region=region,
        zones=tuple((f"{region}a,{region}b" if zones is None else zones).split(",")),
        nodes=nodes if CPU_TYPE in nodes or not system_nodes else {CPU_TYPE: system_nodes} | nodes,
        instances=app.instances,
        capacity=Capacity(options["capacity"], options["reservation"]),
        placement_group=options["placement_group"],
        # EKS wants two zones, Karpenter none.
        least_zones=2 if system_nodes else 1,
    )


@cli.command()
@_fleet
@click.option("--kubernetes", default="1.35", show_default=True, help="Version of Kubernetes")
@click.option(
    "--admit",
    "admitted",
    multiple=True,
    metavar="CIDR",
    help="Network that may reach the API server from outside the VPC (default: none)",
)
@pass_app
def eksctl(app: App, /, kubernetes: str, admitted: tuple[str, ...], **options: Any) -> None:
    """Print a configuration for eksctl, and what it costs an hour.

    `eksctl create cluster -f` reads it. Nothing is created. Without cpu=NUMBER in --nodes there are two nodes
    without accelerators, for etcd and operators.

    \b
    Example: bireme eksctl --nodes p4d.24xlarge=3 --zones us-west-2b,us-west-2c > cluster.yaml
    """
    from bireme.provision.costs import estimate, load_prices
    from bireme.provision.eksctl import cluster_config

    fleet = _as_fleet(app, options, system_nodes=2)
    costs = estimate(fleet.groups, load_prices(app.paths))
    note = "eksctl installs the device plugins of NVIDIA and EFA itself: leave charts/efa-device-plugin out."
    _print([*costs, note], [cluster_config(fleet, kubernetes, admitted)])


@cli.command()
@_fleet
@click.option("--role", metavar="NAME", help="IAM role of the nodes (default: KarpenterNodeRole-CLUSTER)")
@pass_app
def karpenter(app: App, /, role: str | None, **options: Any) -> None:
    """Print Karpenter's objects for --nodes, and what those cost.

    Each type of nodes gets a NodePool and an EC2NodeClass. The costs are those of an hour at most. Nothing is
    created. Nodes with huge pages, and those with a part of a GPU, also get a NodeOverlay, for which
    Karpenter needs its feature gate NodeOverlay.

    \b
    Example: bireme karpenter --nodes p4d.24xlarge=3 --zones us-west-2b,us-west-2c > nodes.yaml
    """
    from bireme.provision.costs import estimate, load_prices
    from bireme.provision.karpenter import karpenter_objects

    fleet = _as_fleet(app, options)
    costs = estimate(fleet.groups, load_prices(app.paths), control_plane=False)
    note = ["Karpenter needs its feature gate: --set settings.featureGates.nodeOverlay=true"]
    objects = karpenter_objects(fleet, role or f"KarpenterNodeRole-{fleet.name}")
    has_overlays = any(group.instance.huge_pages_mib for group in fleet.groups)
    _print([*costs, *(note if has_overlays else [])], objects)


def _print(sentences: Iterable[str], documents: Iterable[Mapping[str, Any]]) -> None:
    """Print ``documents`` as YAML that people read, below ``sentences`` as comments."""
    click.echo("".join(f"# {sentence}\n" for sentence in sentences), nl=False)
    click.echo(block_text(documents, 110), nl=False)


@cli.command()
@pass_app
def demo(app: App, /) -> None:
    """Schedule a training on three simulated p4d.24xlarge.

    It is that of EfficientNet-B7 on ImageNet. A real control plane schedules the real job onto fake nodes;
    the pods are compared with the plan, and everything is removed again.

    \b
    Example: bireme demo
    """
    chart, files = str(app.paths.charts / "torch-elastic"), ["p4d.24xlarge", "imagenet-efa"]
    request = app.request(chart, "imagenet", files, {"workers": 3})
    # The plan needs Helm only, and is there to read while the control plane is got or built.
    app.out.print(views.plan_view(app.planned(request)))
    embedded, name = app.provider("embedded"), f"demo-{os.getpid()}"
    cluster = embedded.up(name, {"p4d.24xlarge": 3})
    try:
        cluster.add_claim("fsx-pvc")
        deployer = app.deployer(cluster)
        outcome = deployer.install(request)
        app.out.print(views.outcome_view(replace(outcome, notes="")))
        deployer.uninstall(request.release, request.namespace)
    finally:
        embedded.down(name)
    sys.exit(1 if outcome.differences else 0)
