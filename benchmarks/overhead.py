"""What the records for `bireme why` cost a training that does not hang: CPU seconds with and without them.

llm.py trains for some steps in two processes on gloo, in the root file system with torch 2.14, whose Flight
Recorder records gloo. With the records each process has the recorder's 2,000 collectives, the handler that
prints stacks, and the thread that waits to be asked. Runs alternate, and pairs of them are compared. Needs
root and `hack/images/build.py rootfs torch-2.14`.

    PYTHONPATH=.:hack/images python benchmarks/overhead.py [--pairs 10] [--steps 150] [-o json]
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path

import click
from figures import CONSOLE, Spread, machine
from rich.progress import track
from rootfs import ensure_rootfs, enter, load_rootfs

from bireme_runtime.elastic.monitor import hang
from tests.images.chroot_jobs import FOLDER, PATHS, SCRIPTS, torchrun

IMAGE = load_rootfs("torch-2.14")
RECORDS = "/tmp/records"


def cpu_seconds(root: Path, steps: int, records: bool) -> float:
    """The CPU time of one training, of all its processes."""
    env = {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": "/srv",
        "USE_LIBUV": "0",
        **IMAGE.env,
    }
    env |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if records:
        told = hang.environment(env, RECORDS)
        env |= told | {"PYTHONPATH": f"/srv/{hang.SITE.relative_to(PATHS.root / 'runtime/src')}:/srv"}
    else:
        # Newer torch records by itself.
        env |= {"TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}
    script = [
        f"{SCRIPTS}/llm.py",
        f"--checkpoints={FOLDER}/run",
        f"--steps={steps}",
        "--checkpoint-every=1000",
    ]
    command = ["sh", "-c", f'mkdir -p {RECORDS} && exec "$@"', "sh", *torchrun(2), *script]
    with tempfile.TemporaryDirectory() as folder:
        binds = {
            PATHS.root / "images/torch": SCRIPTS, PATHS.root / "runtime/src": "/srv", Path(folder): FOLDER
        }  # fmt: skip
        process = subprocess.Popen(
            enter(root, command, binds, env), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise click.ClickException(f"the training ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime


@click.command()
@click.option("--pairs", type=click.IntRange(min=1), default=10, help="Runs with and without the records.")
@click.option("--steps", type=click.IntRange(min=1), default=150, help="Steps of each run.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def main(pairs: int, steps: int, output: str) -> None:
    """Compare pairs of trainings."""
    root = ensure_rootfs(IMAGE, PATHS.cache, CONSOLE)
    bare: list[float] = []
    recorded: list[float] = []
    for number in track(range(pairs), "pairs", console=CONSOLE):
        # The order alternates, because a machine changes its pace.
        for records in (True, False) if number % 2 else (False, True):
            (recorded if records else bare).append(cpu_seconds(root, steps, records))
    ratio = Spread.of((with_them / without for with_them, without in zip(recorded, bare, strict=True)), 4)
    if output == "json":
        print(json.dumps({"machine": machine(), "steps": steps, "ratio": asdict(ratio), "bare": bare}))
        return
    print(machine())
    print(f"{steps} steps of llm.py in two processes: {Spread.of(bare)} s of CPU without the records")
    print(f"with them {ratio} times as many, in {pairs} pairs")


if __name__ == "__main__":
    main()
