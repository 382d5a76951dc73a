"""How much memory each step of charts/dataset needs for a dataset of many files.

Each step is a process of its own, and its peak is what the kernel counted (VmHWM of /proc). The list is that
of a server that makes up the keys of a bucket; the other steps work on files of 7 bytes, which are links. All
but --copied of them are staged already, by the journal of an earlier attempt, as a disk has not many millions
of small files.

    python benchmarks/dataset_memory.py [--entries 20000] [--copied 20000] [--listed 20000] [-o json]
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from figures import CONSOLE, machine
from rich.console import Console
from rich.table import Table

from bireme.core.progress import step

ROOT = Path(__file__).parents[1]
CONTENT = b"content"
# ext4 allows 65,000 links to a file.
LINKS = 50_000
PAGE = 1000

# The peak that wait4 tells includes that of the parent before it started the program.
PEAK = """
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
LIST = """
import os
from bireme_runtime.dataset.staging import listed, settings_from
settings = settings_from(os.environ)
with settings.lists() as lists:
    listed(settings, os.environ, lists)
"""
STEP = """
import sys
from bireme_runtime.dataset.__main__ import main
if main(sys.argv[1:]):
    sys.exit("the step failed")
"""


@dataclass(frozen=True)
class Step:
    """What one process needed."""

    name: str
    entries: int
    seconds: float
    peakMiB: float


@contextlib.contextmanager
def bucket(entries: int) -> Iterator[str]:
    """The URL of a server of S3 that lists this number of keys."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
            start = int(query.get("continuation-token", "0"))
            until = min(start + PAGE, entries)
            rows = "".join(
                f"<Contents><Key>data/train/n{number % 1000:08d}/n{number:08d}_{number:05d}.JPEG</Key>"
                f"<Size>7</Size><ETag>&quot;{number:032x}&quot;</ETag></Contents>"
                for number in range(start, until)
            )
            more = f"<NextContinuationToken>{until}</NextContinuationToken>" if until < entries else ""
            body = f"<ListBucketResult>{rows}{more}</ListBucketResult>".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Requests are not logged."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def files(folder: Path, entries: int) -> None:
    """Make this number of files, a thousand to a folder."""
    for number in range(entries):
        file = f"{folder}/{path(number)}"
        if number % 1000 == 0:
            os.makedirs(os.path.dirname(file))
        if number % LINKS == 0:
            Path(file).write_bytes(CONTENT)
            first = file
        else:
            os.link(first, file)


def path(number: int) -> str:
    """Where a file is."""
    return f"n{number // 1000:05d}/n{number:08d}.JPEG"


def staged(source: Path, staging: Path, entries: int) -> None:
    """The files as an attempt that was killed has copied them, with its journal."""
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    (staging / ".bireme").mkdir(parents=True)
    with (staging / ".bireme/journal-0.jsonl").open("w") as journal:
        for number in range(entries):
            file = f"{source}/{path(number)}"
            if number % 1000 == 0:
                os.makedirs(os.path.dirname(f"{staging}/{path(number)}"))
            if number % LINKS == 0:
                version = str(os.stat(file).st_mtime_ns)
                Path(f"{staging}/{path(number)}").write_bytes(CONTENT)
                first = f"{staging}/{path(number)}"
            else:
                os.link(first, f"{staging}/{path(number)}")
            record = {"path": path(number), "version": version, "size": len(CONTENT), "sha256": sha256}
            journal.write(f"\n{json.dumps(record)}\n")


def measure(name: str, entries: int, program: str, arguments: Sequence[str], env: Mapping[str, str]) -> Step:
    """Run a step to its end."""
    started = time.perf_counter()
    with step(CONSOLE, f"{name}, {entries:,} entries"):
        done = subprocess.run(
            [sys.executable, "-c", program + PEAK, *arguments],
            env={"PYTHONPATH": str(ROOT / "runtime/src"), **env},
            stdout=subprocess.PIPE,
            check=True,
        )
    return Step(name, entries, round(time.perf_counter() - started, 1), round(int(done.stdout) / 1024, 1))


def steps(place: Path, entries: int, copied: int, listed: int) -> Iterator[Step]:
    """All steps, in their order."""

    def env(url: str, target: str) -> dict[str, str]:
        settings = {"target": str(place / target), "sources": [{"url": url}]}
        return {"BIREME_DATASET": json.dumps(settings)}

    with bucket(listed) as server:
        s3 = {"AWS_ENDPOINT_URL_S3": server, "BIREME_S3_ANONYMOUS": "true"}
        yield measure("list", listed, LIST, [], {**s3, **env("s3://b/data", "listed")})
    files(place / "source", entries)
    staged(place / "source", place / ".data.staging", max(entries - copied, 0))
    both = env(f"file://{place}/source", "data")
    for name in ("stage", "publish"):
        yield measure(name, entries, STEP, [name], both)
    folder = str(place / "data")
    yield measure("verify", entries, STEP, ["verify", folder], {})
    yield measure("verify --quick", entries, STEP, ["verify", folder, "--quick"], {})


@click.command(help=__doc__)
@click.option("--entries", default=20_000, show_default=True, help="Files to stage, publish and verify")
@click.option("--copied", default=20_000, show_default=True, help="How many of them `stage` has to copy")
@click.option("--listed", default=20_000, show_default=True, help="Objects to list")
@click.option("--folder", type=click.Path(path_type=Path, exists=True), help="Where to copy to, else $TMPDIR")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(entries: int, copied: int, listed: int, folder: Path | None, output: str) -> None:
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        found = []
        for each in steps(place, entries, copied, listed):
            found.append(each)
            CONSOLE.print(f"{each.name}: {each.entries:,} entries, {each.seconds:g} s, {each.peakMiB:g} MiB")
    finally:
        shutil.rmtree(place)
    if output == "json":
        print(json.dumps({"machine": machine(), "rows": [vars(each) for each in found]}, indent=2))
        return
    table = Table("step", "entries", "seconds", "peak MiB", title="Memory of a dataset's steps")
    for each in found:
        table.add_row(each.name, f"{each.entries:,}", f"{each.seconds:g}", f"{each.peakMiB:g}")
    table.caption = machine()
    Console().print(table)


if __name__ == "__main__":
    main()
