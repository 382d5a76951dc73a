"""Commands about jobs that follow the capacity."""

from __future__ import annotations

from pathlib import Path

import click

from bireme import autoscale, views
from bireme.cli.options import App, cli, output_option, pass_app
from bireme.errors import BiremeError
from bireme.progress import step


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
    """Compare elastic jobs with static ones on a cluster under TRACE, a CSV file, by simulation.

    Columns of the file: submit and duration (seconds), workers, and if wanted priority, minimum and maximum
    (of the workers). The elastic cluster decides as `bireme autoscale` does.

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
