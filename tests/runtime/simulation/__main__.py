"""python -m tests.runtime.simulation [--seeds 5000] [--first 0] [--trace SEED]"""

from __future__ import annotations

import sys
import time

import click

from tests.runtime.simulation.run import Job


@click.command()
@click.option("--seeds", type=int, default=5000)
@click.option("--first", type=int, default=0)
@click.option("--trace", type=int, help="Print all that happens with this seed.")
def main(seeds: int, first: int, trace: int | None) -> None:
    """Simulate the rendezvous with many seeds; names those with which something did not hold."""
    broken, commits, worlds, start = [], 0, 0, time.monotonic()
    chosen = [trace] if trace is not None else range(first, first + seeds)
    for number, seed in enumerate(chosen, 1):
        job = Job(seed)
        try:
            job.simulate()
        except AssertionError as error:
            broken.append(seed)
            click.echo(f"seed {seed}: {error} (after: {'; '.join(job.faults)})")
        if trace is not None:
            click.echo("\n".join(job.sim.trace))
        commits, worlds = commits + job.commits, worlds + len(job.worlds)
        if number % 100 == 0:
            seconds = time.monotonic() - start
            click.echo(f"{number} seeds, {worlds} worlds, {commits} commits, {seconds:.0f} s", err=True)
    click.echo(f"{number} seeds: {worlds} worlds, {commits} commits, {len(broken)} broken: {broken[:20]}")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
