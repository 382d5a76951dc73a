"""What the records for `bireme why` cost a training that does not hang: CPU seconds with and without them.

llm.py trains in two processes on gloo, in the root file system with torch 2.14. That records the last 2,000
collectives by itself. With the records for `bireme why` each process also has the handler that prints stacks
and the thread that waits to be asked. With --recorder the recorder of the other training is off, so that the
cost of torch's own is measured too.

A training with the records and one without start together and take turns of one step, in the order with,
without, without, with. So both see the same pace of the machine, and no start counts. A process tells after
each step the CPU time that it has used. The ratio of a start is the median of its pairs of steps. What
differs by chance between processes, such as the place of their memory, differs between starts. Needs root and
`hack/images/build.py rootfs torch-2.14`.

    PYTHONPATH=.:hack/images python benchmarks/overhead.py [--starts 16] [--pairs 150] [--recorder]
"""

from __future__ import annotations

import contextlib
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
from figures import CONSOLE, machine
from rich.progress import track
from rootfs import ensure_rootfs, enter, load_rootfs

from bireme_runtime.elastic.monitor import hang
from tests.images.chroot_jobs import FOLDER, PATHS, SCRIPTS

IMAGE = load_rootfs("torch-2.14")
RECORDS = "/tmp/records"
PROCESSES, WARM_UP = 2, 20
# Runs llm.py, which is not changed, and waits for its turn after each step.
DRIVER = """
import glob, sys, time
import elastic, llm
def waiter():
    tasks = [each for each in glob.glob("/proc/self/task/*") if "bireme" in open(each + "/comm").read()]
    return sum(int(open(each + "/schedstat").read().split()[0]) for each in tasks)
done = elastic.Run.step_done
def step_done(self, step, *rest, **named):
    done(self, step, *rest, **named)
    print("turn", time.process_time(), waiter(), flush=True)
    sys.stdin.readline()
elastic.Run.step_done = step_done
elastic.execute(llm.main)
"""


class Training:
    """A training whose processes wait for their turn, with the records or without."""

    def __init__(self, root: Path, folder: Path, records: bool, env: Mapping[str, str]) -> None:
        port = 29400 + records
        env = {
            **IMAGE.env, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": f"{SCRIPTS}:/srv", "USE_LIBUV": "0",
            "WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **env,
        }  # fmt: skip
        if records:
            site = f"/srv/{hang.SITE.relative_to(PATHS.root / 'runtime/src')}"
            env = {**hang.environment(env, RECORDS), **env, "PYTHONPATH": f"{site}:{env['PYTHONPATH']}"}
        run = ["python3", "-c", DRIVER, f"--checkpoints={FOLDER}/run", "--steps=1000000"]
        command = ["sh", "-c", f'mkdir -p {RECORDS} && exec "$@"', "sh", *run, "--checkpoint-every=1000000"]
        binds = {PATHS.root / "images/torch": SCRIPTS, PATHS.root / "runtime/src": "/srv", folder: FOLDER}
        self._used = 0.0
        # Nanoseconds of CPU of the threads that wait to be asked.
        self.waiters = 0
        self.processes = [
            subprocess.Popen(
                enter(root, command, binds, env | {"RANK": str(rank), "LOCAL_RANK": str(rank)}),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )
            for rank in range(PROCESSES)
        ]  # fmt: skip

    def turn(self) -> float:
        """Make a step. Returns the CPU time of all processes for it."""
        before, self._used, self.waiters = self._used, 0.0, 0
        for process in self.processes if before else ():
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
        for process in self.processes:
            assert process.stdout
            told = (line.split() for line in process.stdout if line.startswith("turn "))
            if not (line := next(told, None)):
                raise click.ClickException(f"a training ended with {process.wait()}")
            self._used += float(line[1])
            self.waiters += int(line[2])
        return self._used - before


@contextlib.contextmanager
def started(root: Path, off: Mapping[str, str]) -> Iterator[dict[bool, Training]]:
    """A training with the records and one without, which have warmed up."""
    with contextlib.ExitStack() as stack:
        both = {}
        for records in (True, False):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            both[records] = Training(root, folder, records, {} if records else off)
            for process in both[records].processes:
                stack.callback(process.wait)
                stack.callback(process.kill)
        for training in both.values():
            for _ in range(WARM_UP):
                training.turn()
        yield both


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median lies with 95 % confidence, whatever the distribution, by the sign test."""
    some, count = sorted(values), len(values)
    below, chance = 0, 0.0
    while (chance := chance + math.comb(count, below) / 2**count) <= 0.025:
        below += 1
    return some[max(0, below - 1)], some[count - max(1, below)]


@click.command()
@click.option("--starts", type=click.IntRange(min=6), default=16, help="Starts of both trainings.")
@click.option("--pairs", type=click.IntRange(min=1), default=150, help="Pairs of steps of each start.")
@click.option("--recorder", is_flag=True, help="Compare with a recorder of torch that is off.")
def main(starts: int, pairs: int, recorder: bool) -> None:
    """Compare pairs of steps."""
    root = ensure_rootfs(IMAGE, PATHS.cache, CONSOLE)
    ratios, pooled, bare, waited = [], [], [], []
    for _ in track(range(starts), "starts", console=CONSOLE):
        with started(root, {"TORCH_FR_BUFFER_SIZE": "0"} if recorder else {}) as trainings:
            found, before = [], trainings[True].waiters
            for number in range(pairs):
                order = (False, True) if number % 2 else (True, False)
                seconds = {records: trainings[records].turn() for records in order}
                found.append(seconds[True] / seconds[False])
                bare.append(seconds[False])
        ratios.append(statistics.median(found))
        pooled += found
        waited.append(trainings[True].waiters - before)
        print(f"{ratios[-1]:.4f}, {waited[-1]} ns", file=sys.stderr)
    least, most = interval(pooled)
    ratio, (low, high), each = statistics.median(ratios), interval(ratios), statistics.median(bare)
    print(machine())
    print(f"a step of llm.py in {PROCESSES} processes: {each * 1000:.1f} ms of CPU without the records")
    print(f"with them {ratio:.4f} times as many (95 %: {low:.4f} to {high:.4f}), in {starts} starts")
    print(f"the threads that wait to be asked: {sum(waited)} ns of CPU in all")
    print(f"of all {len(pooled)} pairs: {statistics.median(pooled):.4f} ({least:.4f} to {most:.4f})")


if __name__ == "__main__":
    main()
