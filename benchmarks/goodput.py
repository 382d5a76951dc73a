"""Goodput: what is left of the time of a training job under faults, by Bireme and by other systems.

Each system trains the same script (goodput_train.py) on three workers. They are namespaces of this machine,
or with ``--on kind`` pods of a cluster, for Bireme and for systems with a controller. A seeded list of faults
is done to them, in new jobs for each group of faults. The first group is a killed process and a deleted pod,
one a minute. Each other kind is a group of its own.

A step is useful when its number is new in the run and its loss is a number. A step of two of three workers
counts two thirds. Goodput is the time that the useful steps need without faults and saving, as a share of the
time that passed. That time is the median of what the steps took. Steps made again had their number before, or
no loss that is a number. The pause of a fault is the longest time from one useful step to the next one after
it, or until the end of its window.

Systems run ``--together`` at once, each with its own moments of faults. Needs root, or a container engine.

    make bench-goodput ARGS="[--quick] [--systems stock,…] [--faults kill,…] [--on kind] [-o json]"
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from figures import CONSOLE, Spread, machine
from goodput_kind import OnKind
from goodput_processes import OnProcesses
from goodput_systems import SYSTEMS, WORKERS, Pods, Stage, System
from rich.console import Console
from rich.table import Table

from bireme.core import drawing
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.tools import Toolbox
from tests.kind import stock_torchrun

START_SECONDS = 300
FAULTS = {
    "kill": "a training process gets SIGKILL",
    "delete": "a pod is deleted",
    "node": "a node's power fails for a minute",
    "hang": "a training process is stopped (SIGSTOP)",
    "slow": "a rank takes four times as long, for 40 s",
    "nan": "the parameters become NaN",
    "disk": "checkpoints meet a full disk, for 20 s",
    "etcd": "all pods of etcd are deleted",
}
"""What is done, by kind."""
MIXED = ("kill", "delete")
"""The kinds of which the main figure is made: in turn, in one job."""
WINDOW = {"node": 180.0, "hang": 120.0}
"""Seconds from a fault's moment to the end of its window; a minute for all others."""

Event = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """One fault: its kind, the worker it meets, and its moment and the end of its window in seconds."""

    kind: str
    worker: int
    at: float
    end: float


@dataclass(frozen=True)
class Account:
    """What the steps of some time were worth; ``useful`` in steps of all workers, ``goodput`` as a share."""

    useful: float
    again: int
    goodput: float


@dataclass(frozen=True)
class Outcome:
    """What one job made of its faults: in all, and the pause and the account of each."""

    system: str
    run: int
    whole: Account
    faults: tuple[tuple[Fault, float, Account], ...]


def fault_list(seed: int, kinds: Sequence[str], repeats: int = 1) -> list[Fault]:
    """``repeats`` of each kind in seeded order; a window begins up to 10 s before its fault."""
    chosen = random.Random(seed)
    order = [kind for _ in range(repeats) for kind in chosen.sample(kinds, len(kinds))]
    faults, begin = [], 0.0
    for kind in order:
        end = begin + WINDOW.get(kind, 60.0)
        faults.append(Fault(kind, chosen.randrange(WORKERS), round(begin + chosen.uniform(2, 10), 2), end))
        begin = end
    return faults


def account(steps: Sequence[Event], began: float, ended: float, ideal: float) -> Account:
    """The steps that ended between two moments, in a run of which ``steps`` are all, in the order of time.

    ``ideal`` is what a step takes, in seconds, without faults and without saving.
    """
    useful, again, reached = 0.0, 0, 0
    for event in steps:
        inside = began < event["time"] <= ended
        if event["step"] > reached and event["finite"]:
            reached = event["step"]
            useful += inside * event["world"] / WORKERS
        else:
            again += inside
    return Account(round(useful, 1), again, round(useful * ideal / (ended - began), 4))


def longest_pause(steps: Sequence[Event], began: float, ended: float) -> float:
    """The longest time without a useful step between two moments, in seconds."""
    reached, moments = 0, [began]
    for event in steps:
        if event["step"] > reached and event["finite"]:
            reached = event["step"]
            moments += [event["time"]] if began < event["time"] <= ended else []
    moments.append(ended)
    return round(max(after - before for before, after in pairwise(moments)), 2)


def fill_claim(runs: Path, systems: Sequence[System]) -> None:
    """Write onto the claim the script, what stock torchrun needs, and the packages of these systems."""
    here = Path(__file__).parent
    stock_torchrun.prepare(runs)
    shutil.copy(here / "goodput_train.py", runs / "train.py")
    for name in sorted({system.packages for system in systems if system.packages}):
        for python, file in (("3.13", "requirements.lock"), ("3.12", "python-3.12.lock")):
            lock = here / "pins" / name / file
            if lock.exists():
                options = ["--only-binary=:all:", f"--python-version={python}", "--upgrade"]
                options += [f"--platform=manylinux_2_{glibc}_x86_64" for glibc in (17, 28, 39)]
                target = ["--target", str(runs / "packages" / name), "--requirement", str(lock)]
                pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
                subprocess.run([*pip, *options, *target], check=True)


def measure(stage: Stage, systems: Sequence[System], run: int, faults: Sequence[Fault]) -> list[Outcome]:
    """New jobs of these systems, to all of which the faults are done, a part of a minute apart."""
    with ExitStack() as stack:
        jobs = [stack.enter_context(_job(stage, system)) for system in systems]
        for job in jobs:
            job.until_trained()
        # A node is lost once, for all of them.
        apart = 0 if any(fault.kind == "node" for fault in faults) else 60 / len(jobs)
        with ThreadPoolExecutor(len(jobs)) as pool:
            given = [(job, run, faults, number * apart) for number, job in enumerate(jobs)]
            return list(pool.map(lambda each: each[0].suffer(*each[1:]), given))


@contextmanager
def _job(stage: Stage, system: System) -> Iterator[Job]:
    name = f"g{uuid.uuid4().hex[:6]}"
    folder = stage.runs / name
    for part in (folder, folder / "faults", folder / "events"):
        part.mkdir()
        part.chmod(0o777)
    with stage.job(system, name) as pods:
        yield Job(system, folder, pods)


@dataclass(frozen=True)
class Job:
    """A job that trains in a folder of the claim, and what can be done to it."""

    system: System
    folder: Path
    pods: Pods

    def events(self, kind: str) -> list[Event]:
        """All events of a kind so far, in the order of time."""
        found = []
        for file in (self.folder / "events").iterdir():
            for line in file.read_text().splitlines():
                with suppress(json.JSONDecodeError):  # the line that is being written
                    found.append(json.loads(line))
        return sorted((each for each in found if each["event"] == kind), key=lambda each: each["time"])

    def until_trained(self) -> None:
        """Wait until all workers have made 20 steps together. Raises BiremeError after ``START_SECONDS``."""
        deadline = time.monotonic() + START_SECONDS
        while sum(step["world"] == WORKERS for step in self.events("step")) < 20:
            if time.monotonic() > deadline:
                raise BiremeError(f"{self.system.name} does not train:\n{self.pods.words()[-4000:]}")
            time.sleep(0.5)

    def suffer(self, run: int, faults: Sequence[Fault], wait: float) -> Outcome:
        """Do the faults at their moments, and account for the time until the end of the last window."""
        time.sleep(wait)
        began, moments = time.time(), []
        for fault in faults:
            time.sleep(max(0.0, began + fault.at - time.time()))
            moments.append(time.time())
            self._do(fault)
        time.sleep(max(0.0, began + faults[-1].end - time.time()))
        steps = self.events("step")
        ideal = statistics.median(step["seconds"] for step in steps)
        each, since = [], began
        for fault, moment in zip(faults, moments, strict=True):
            end = began + fault.end
            each.append((fault, longest_pause(steps, moment, end), account(steps, since, end, ideal)))
            since = end
        for fault, pause, worth in each:
            words = f"{self.system.name}: {fault.kind} of worker {fault.worker}: pause {pause:.1f} s, "
            CONSOLE.print(f"{words}{worth.again} again, {worth.goodput:.1%}", style="dim", highlight=False)
        return Outcome(self.system.name, run, account(steps, began, since, ideal), tuple(each))

    def _do(self, fault: Fault) -> None:
        pods, worker = self.pods, self._trainer(fault.worker)
        match fault.kind:
            case "kill":
                self._signal("KILL", worker)
            case "hang":
                self._signal("STOP", worker)
            case "delete":
                pods.delete(worker)
            case "node":
                pods.power_off(worker)
            case "etcd":
                pods.etcd_away()
            case "slow":
                self._ask("slow", pods.address(worker), seconds=40)
            case "nan":
                self._ask("nan", "")
            case "disk":
                self._ask("full", "", seconds=20)

    def _trainer(self, worker: int) -> int:
        """The pod of this worker, or the spare that trains while that waits."""
        training = {each["ip"] for each in self.events("start")[-WORKERS:]}
        spares = range(WORKERS, self.system.pods)
        return next((pod for pod in (worker, *spares) if self.pods.address(pod) in training), worker)

    def _ask(self, fault: str, text: str, seconds: float | None = None) -> None:
        file = self.folder / "faults" / fault
        file.write_text(text)
        if seconds:
            threading.Timer(seconds, file.unlink).start()

    def _signal(self, signal: str, worker: int) -> None:
        """Send a signal to the process that trains in a worker's pod."""
        address = self.pods.address(worker)
        if here := [each for each in self.events("start") if each["ip"] == address]:
            self.pods.send(signal, worker, here[-1]["pid"])


def report(outcomes: Sequence[Outcome], loads: Sequence[float], seed: int) -> dict[str, Any]:
    """Median and spread of all, by system: of the mixed faults, and by kind of fault."""
    rows = []
    for system in dict.fromkeys(each.system for each in outcomes):
        own = [each for each in outcomes if each.system == system]
        settings = next(each.settings for each in SYSTEMS.values() if each.name == system)
        row: dict[str, Any] = {"system": system, "settings": settings, "faults": {}}
        mixed = [each.whole for each in own if {fault.kind for fault, _, _ in each.faults} <= set(MIXED)]
        if mixed:
            row["goodputPercent"] = Spread.of((100 * each.goodput for each in mixed), 1)
            row["usefulSteps"] = Spread.of((each.useful for each in mixed), 0)
            row["stepsAgain"] = Spread.of((each.again for each in mixed), 0)
        for kind in FAULTS:
            met = [each for outcome in own for each in outcome.faults if each[0].kind == kind]
            if met:
                row["faults"][kind] = {
                    "pauseSeconds": Spread.of((pause for _, pause, _ in met), 1),
                    "stepsAgain": Spread.of((worth.again for _, _, worth in met), 0),
                    "goodputPercent": Spread.of((100 * worth.goodput for _, _, worth in met), 0),
                    "times": len(met),
                }
        rows.append(row)
    about = {"machine": machine(), "loadAverage": Spread.of(loads, 0), "seed": seed}
    return {**about, "systems": rows, "outcomes": [asdict(each) for each in outcomes]}


def tables(found: Mapping[str, Any]) -> list[Table]:
    """What a report says, as tables of text."""
    rows, kinds = (
        found["systems"],
        [kind for kind in FAULTS if any(kind in r["faults"] for r in found["systems"])],
    )
    main = Table("system", "goodput, %", "useful steps", "steps again", "settings")
    main.title = "One killed process or deleted pod a minute: median (lowest–highest)"
    for row in rows:
        if "goodputPercent" in row:
            cells = [str(row[key]) for key in ("goodputPercent", "usefulSteps", "stepsAgain")]
            main.add_row(row["system"], *cells, row["settings"])
    each = Table("system", *kinds, title="Longest pause in seconds / goodput of the window in %")
    for row in rows:
        met = [row["faults"].get(kind) for kind in kinds]
        each.add_row(
            row["system"], *(f"{m['pauseSeconds']} / {m['goodputPercent']}" if m else "–" for m in met)
        )
    each.caption = f"{found['machine']}; load average meanwhile {found['loadAverage']}; seed {found['seed']}"
    return [main, each]


def picture(found: Mapping[str, Any]) -> str:
    """The goodput of each system as a bar, an SVG document; a line through its end is the spread."""
    left, right, high = 190, drawing.WIDTH - 2 * drawing.MARGIN - 60, 30
    lines = []
    rows = [row for row in found["systems"] if "goodputPercent" in row]
    for number, row in enumerate(sorted(rows, key=lambda row: -row["goodputPercent"].median)):
        spread, y = row["goodputPercent"], number * high
        x = [left + (right - left) * value / 100 for value in (spread.median, spread.lowest, spread.highest)]
        fill = drawing.FILLS[2 if row["system"].startswith("Bireme") else 0]
        lines += [
            drawing.text(left - 8, y + 15, row["system"], "end"),
            f'<rect x="{left}" y="{y}" width="{x[0] - left:.1f}" height="20" rx="3" fill="{fill}"/>',
            f'<line class="free" x1="{x[1]:.1f}" x2="{x[2]:.1f}" y1="{y + 10}" y2="{y + 10}"/>',
            drawing.text(max(x[0], x[2]) + 6, y + 15, f"{spread.median:g} %"),
        ]
    title = "Goodput at one killed process or deleted pod a minute"
    bars = drawing.Block(tuple(lines), high * len(rows) + 10)
    note = drawing.line("useful steps in the time that passed; median of the runs, the line is their spread")
    return drawing.document(title, [drawing.heading(title), bars, note])


def several(known: Mapping[str, Any]) -> Callable[[Any, Any, str], list[str]]:
    """A check for an option with names of ``known``, divided by commas."""

    def check(context: Any, option: Any, given: str) -> list[str]:
        names = given.split(",") if given else list(known)
        if wrong := [name for name in names if name not in known]:
            raise click.BadParameter(f"no {wrong[0]}: there are {', '.join(known)}")
        return names

    return check


@click.command(help=__doc__)
@click.option("--systems", default="", callback=several(SYSTEMS), help=f"Some of {','.join(SYSTEMS)}")
@click.option("--faults", default="", callback=several(FAULTS), help=f"Some of {','.join(FAULTS)}")
@click.option("--runs", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--quick", is_flag=True, help="One run, in at most two hours")
@click.option("--on", default="processes", type=click.Choice(["processes", "kind"]), show_default=True)
@click.option("--together", default=3, show_default=True, type=click.IntRange(min=1), help="Systems at once")
@click.option("--seed", default=1, show_default=True)
@click.option("--svg", type=click.Path(path_type=Path), help="File for the picture")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(
    systems: list[str], faults: list[str], runs: int, quick: bool, on: str, together: int, seed: int,
    svg: Path | None, output: str,
) -> None:  # fmt: skip
    found = Paths.discover(start=Path(__file__))
    mixed = [kind for kind in faults if kind in MIXED]
    phases = [(mixed, 1)] * bool(mixed) + [([kind], 1) for kind in faults if kind not in MIXED]
    elsewhere = "command" if on == "kind" else "manifests"
    chosen = [SYSTEMS[each] for each in systems if not getattr(SYSTEMS[each], elsewhere)]
    outcomes: list[Outcome] = []
    loads: list[float] = []
    with tempfile.TemporaryDirectory() as state, ExitStack() as stack:
        paths = Paths(found.root, found.cache, Path(state))
        stage: Stage = (OnKind if on == "kind" else OnProcesses)(paths, Toolbox(paths, CONSOLE))
        stage.prepare(stack, chosen)
        fill_claim(stage.runs, chosen)
        for run in range(1 if quick else runs):
            for kinds, repeats in phases:
                listed = fault_list(seed + run, kinds, repeats)
                for first in range(0, len(chosen), together):
                    outcomes += measure(stage, chosen[first : first + together], run + 1, listed)
                    loads.append(os.getloadavg()[0])
    result = report(outcomes, loads, seed)
    if svg:
        svg.write_text(picture(result))
    if output == "json":
        print(json.dumps(result, indent=2, default=vars))
    for table in tables(result):
        Console(stderr=output == "json").print(table)


if __name__ == "__main__":
    main()
