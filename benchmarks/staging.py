"""How fast charts/dataset copies data from S3, compared with `aws s3 sync` from the same server.

The server is moto on this machine, so it shares the cores with the copying process. Both copy into a new
folder with their own defaults, in turn; charts/dataset also checks and publishes. The ratio is sync's time
over ours.

    python benchmarks/staging.py [--repeats 5] [--small 1000] [--large 4] [-o json]
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from figures import CONSOLE, Spread, machine
from rich.console import Console
from rich.table import Table

from bireme.core.progress import step

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.runtime.s3_servers import S3Server, environment_of, s3_server  # noqa: E402

PIN = ROOT / "benchmarks/pins/awscli/requirements.lock"
SMALL, LARGE = 100_000, 128 << 20
CHUNK = 1 << 20

Copy = Callable[[S3Server, str, Path], None]


@dataclass(frozen=True)
class Data:
    """A bucket: the number of its objects and the size of each."""

    name: str
    count: int
    size: int

    @property
    def megabytes(self) -> float:
        return self.count * self.size / 1e6

    def upload(self, server: S3Server) -> None:
        """Make the bucket. Each object has other content."""
        server.put(self.name)
        chance = random.Random(self.name)
        chunk = chance.randbytes(min(self.size, CHUNK))
        for number in range(self.count):
            content = number.to_bytes(8, "big") + chunk * (self.size // len(chunk))
            server.put(f"{self.name}/data/n{number % 10}/{number}.bin", content[: self.size])


def ours(server: S3Server, bucket: str, folder: Path) -> None:
    """What the Job of charts/dataset runs."""
    settings = {"target": str(folder / "data"), "sources": [{"url": f"s3://{bucket}/data"}]}
    env = {"PYTHONPATH": str(ROOT / "runtime/src"), "BIREME_DATASET": json.dumps(settings), **server.env}
    for part in ("stage", "publish"):
        _run([sys.executable, "-m", "bireme_runtime.dataset", part], env)


def sync(server: S3Server, bucket: str, folder: Path) -> None:
    """`aws s3 sync`."""
    program = environment_of("awscli", PIN) / "bin/aws"
    source = ["--endpoint-url", server.url, "s3", "sync", f"s3://{bucket}/data", str(folder / "data")]
    _run([str(program), *source, "--quiet"], {**server.env, "HOME": str(folder), "AWS_PAGER": ""})


def _run(command: list[str], env: Mapping[str, str]) -> None:
    done = subprocess.run(
        command, env={"PATH": os.environ["PATH"], **env}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{command[0]} failed: {done.stdout}{done.stderr}")


def seconds(copy: Copy, server: S3Server, data: Data, place: Path) -> float:
    """The seconds of one copy; checks that it is complete, and removes it."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        os.sync()  # what the last one left for the disk to do
        started = time.perf_counter()
        copy(server, data.name, Path(folder))
        taken = time.perf_counter() - started
        found = [file.stat().st_size for file in Path(folder, "data").rglob("*.bin")]
        if found != [data.size] * data.count:
            sys.exit(f"{copy.__name__} left {len(found)} of {data.count} objects")
    return taken


def measure(server: S3Server, data: Data, repeats: int, place: Path) -> dict[str, Any]:
    """Seconds of both in turn, in alternating order; each ratio is that of two neighbours."""
    taken: dict[Copy, list[float]] = {ours: [], sync: []}
    with step(CONSOLE, f"{data.name}: upload"):
        data.upload(server)
    for repeat in range(-1, repeats):
        for copy in (ours, sync) if repeat % 2 else (sync, ours):
            with step(
                CONSOLE, f"{data.name}: {copy.__name__}, {max(repeat, 0)} of {repeats} repeats are done"
            ):
                duration = seconds(copy, server, data, place)
            if repeat >= 0:  # the first one warms up
                taken[copy].append(duration)
    ratios = [theirs / own for own, theirs in zip(taken[ours], taken[sync], strict=True)]
    return {
        "data": f"{data.count} × {data.size / 1e6:g} MB",
        **{
            f"{copy.__name__}MBps": Spread.of(data.megabytes / each for each in found)
            for copy, found in taken.items()
        },
        "ratio": Spread.of(ratios),
    }


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield row["data"]
    for key in ("oursMBps", "syncMBps", "ratio"):
        yield str(row[key])


@click.command(help=__doc__)
@click.option("--repeats", default=5, show_default=True)
@click.option("--small", default=1000, show_default=True, help=f"Objects of {SMALL // 1000} kB")
@click.option("--large", default=4, show_default=True, help=f"Objects of {LARGE >> 20} MiB")
@click.option("--folder", type=click.Path(path_type=Path, exists=True), help="Where to copy to, else $TMPDIR")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(repeats: int, small: int, large: int, folder: Path | None, output: str) -> None:
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        with s3_server(place / "moto.log") as server:
            rows = [
                measure(server, data, repeats, place)
                for data in (Data("small", small, SMALL), Data("large", large, LARGE))
            ]
    finally:
        shutil.rmtree(place)
    if output == "json":
        print(json.dumps({"machine": machine(), "repeats": repeats, "rows": rows}, indent=2, default=vars))
        return
    table = Table("data", "charts/dataset MB/s", "aws s3 sync MB/s", "sync's time over ours", title="Staging")
    for row in rows:
        table.add_row(*_cells(row))
    table.caption = f"median (lowest–highest) of {repeats} repeats; {machine()}"
    Console().print(table)


if __name__ == "__main__":
    main()
