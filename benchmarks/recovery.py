"""How long a training job stops when it loses a worker: `bireme-etcd`, cold, warm, with a spare; and stock's.

Three workers train on a kind cluster, each time in a new Job; a pod is deleted, or its agent gets SIGKILL.
Bireme's jobs train one after another; those of stock torchrun, which mostly wait, run at the same time.
Measured are the seconds until the new world is agreed (its processes start) and until its first step, by the
workers' logs; the time to start Python and import torch is given separately. Warm jobs have
`recovery.warmStart`. With a spare the new world is one of three again, without it mostly one of two.

Stock is torchrun as a user would start it, as the first process of the container: the chart's pods, Job and
PET_* variables without Bireme's entry point, launcher and backend. All get the same bounds, last call and
monitor interval; stock gets TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 too, without which nobody comes back.
`etcd-v2` is on etcd 3.5 with --enable-v2. Needs a container engine, and a machine with nothing else to do.

    python benchmarks/recovery.py [--repeats 5] [--no-stock] [-o json]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from figures import CONSOLE, Spread, machine
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bireme.clusters.kind import KindCluster, KindProvider
from bireme.core.paths import Paths
from bireme.helm import Renderer
from bireme.plan.instances import load_instances
from bireme.testing import charts
from bireme.testing.pytest_plugin import InstalledRelease
from bireme.tools import Toolbox
from tests.kind import stock_torchrun
from tests.kind.recovery import wait_for_world
from tests.kind.shell import NODE_TYPE, Shell
from tests.kind.training import ANYWHERE, KIND, Training

NAMESPACE, CLAIM = "default", "checkpoints"
LIMIT_SECONDS = 300
"""Limit until a job trains for the first time."""
PATIENCE_SECONDS = 120
"""Limit after a loss. A job that does not train again by then counts with this time, and is reported."""
IMAGES = ("etcd", "etcd-3.5", "python", "torch")
STEPS = ("--steps=100000", "--step-seconds=0.1")
# The client that torchrun's etcd backends import but torch does not contain, and its dependencies.
ETCD_CLIENT = ("python-etcd==0.4.5", "dnspython==2.7.0", "urllib3==2.3.0")
OURS, WARM = "bireme-etcd", "bireme-etcd, warm"
SPARE = "bireme-etcd, warm, a spare"
DELETE, KILL_AGENT, KILL_ALL = "pod deleted", "agent SIGKILLed", "all processes SIGKILLed"
AIMS = {DELETE: 1.0, KILL_AGENT: 2.5}
"""Seconds to the new world that `bireme-etcd` should not exceed, whether cold, warm or with a spare."""


@dataclass(frozen=True)
class Loss:
    """One backend and one way to lose a worker; ``program`` is what gets SIGKILL, empty for a delete."""

    backend: str
    event: str
    program: str


BIREME = tuple(
    Loss(backend, event, program)
    for backend in (OURS, WARM, SPARE)
    for event, program in (
        (DELETE, ""),
        (KILL_AGENT, "bireme_runtime.elastic.agent.launch"),
        (KILL_ALL, "bireme_runtime.elastic.agent.supervisor"),
    )
)
# Stock torchrun is the first process of its container: when it ends, all others are killed.
STOCK = (
    Loss("c10d", DELETE, ""),
    Loss("etcd-v2", DELETE, ""),
    Loss("c10d", KILL_AGENT, "torchrun"),
    Loss("etcd-v2", KILL_AGENT, "torchrun"),
)


@dataclass(frozen=True)
class Recovery:
    """Seconds from the loss to the new world and its first step, and those for starting Python and torch."""

    world: float
    step: float
    imports: float
    recovered: bool = True


@dataclass(frozen=True)
class Stage:
    """One cluster with both etcds, and the jobs that run on it."""

    cluster: KindCluster
    paths: Paths
    toolbox: Toolbox

    def prepare(self) -> None:
        """Load the images, make the claim with the files of stock torchrun, and start the etcds."""
        build = [sys.executable, str(self.paths.hack / "images" / "build.py"), "image", *IMAGES]
        built = subprocess.run(build, stdout=subprocess.PIPE, text=True, check=True)
        self.cluster.load_image(*built.stdout.split())
        self.cluster.add_claim(CLAIM, NAMESPACE)
        site = stock_torchrun.prepare(self.cluster.claim_folder(CLAIM, NAMESPACE))
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site)]
        subprocess.run([*install, *ETCD_CLIENT], check=True)
        for name, sets in {"etcd": [], "etcd-v2": ["v2API=true", f"image.tag={_tag(built.stdout)}"]}.items():
            etcd = self._kind_values()["etcd"]
            sets = ["persistence.enabled=false", "auth.enabled=false", *sets]
            self._release().install("etcd", name, NAMESPACE, values=etcd, sets=sets, timeout=180)

    def one_by_one(self, losses: Sequence[Loss]) -> list[Recovery]:
        """New jobs that lose their last worker, one after another."""
        return [recovery for loss in losses for recovery in self.at_once([loss])]

    def at_once(self, losses: Sequence[Loss]) -> list[Recovery]:
        """New jobs that lose their last worker, all at the same time."""
        with self._jobs(losses) as jobs:
            lost = [self._lose(job, loss) for job, loss in zip(jobs, losses, strict=True)]
            each = zip(jobs, losses, lost, strict=True)
            return [self._recovery(job, loss, moment) for job, loss, moment in each]

    def _recovery(self, training: Training, loss: Loss, lost_at: float) -> Recovery:
        """The worlds from the first agreed one to the first one that made a step; usually only one."""
        least = 3 if loss.backend == SPARE else 1
        try:
            worlds = wait_for_world(training, lost_at, PATIENCE_SECONDS, lambda world: world.size >= least)
        except pytest.fail.Exception:
            return Recovery(PATIENCE_SECONDS, PATIENCE_SECONDS, 0, recovered=False)
        last = worlds[-1]
        assert last.first_step is not None
        return Recovery(worlds[0].agreed - lost_at, last.first_step - lost_at, last.import_seconds)

    def _lose(self, training: Training, loss: Loss) -> float:
        # With a spare, not every worker trains.
        last = max(int(event["host"].rpartition("-")[2]) for event in training.of("start"))
        if loss.program:
            return stock_torchrun.kill(training, last, loss.program)
        pod, now = training.worker(last).name, time.time()
        training.job.delete_pod(pod)
        return now

    @contextmanager
    def _jobs(self, losses: Sequence[Loss]) -> Iterator[list[Training]]:
        """One job for each; waits until all of them train with all workers."""
        with ExitStack() as stack:
            jobs = [stack.enter_context(self._job(loss.backend)) for loss in losses]
            for training in jobs:
                training.until_trained(10, world_size=3, seconds=LIMIT_SECONDS)
            yield jobs

    @contextmanager
    def _job(self, backend: str) -> Iterator[Training]:
        name = f"run-{uuid.uuid4().hex[:6]}"
        values = {
            "workers": 3,
            **ANYWHERE,
            "elastic": {"minWorkers": 2, "maxWorkers": 3},
            "args": ["/opt/bireme/digits.py", f"--checkpoints={stock_torchrun.CLAIM_PATH}/{name}", *STEPS],
            "claims": [{"claimName": CLAIM, "mountPath": stock_torchrun.CLAIM_PATH}],
            **_backend_values(backend),
        }
        installed: dict[str, Any] = {"instance": NODE_TYPE, "files": [KIND], "values": values, "timeout": 180}
        job = self._release()
        try:
            job.install("torch-elastic", name, NAMESPACE, **installed)
            with Training(
                job, Shell(self.cluster, self.toolbox), installed, "digits.py"
            ).followed() as training:
                yield training
        finally:
            if job.exists():
                job.uninstall()

    def _release(self) -> InstalledRelease:
        renderer, instances = Renderer(self.toolbox, self.paths), load_instances(self.paths)
        return InstalledRelease(
            partial(charts.request_for, self.paths, self.paths.root),
            self.toolbox,
            renderer,
            instances,
            self.cluster,
        )

    def _kind_values(self) -> dict[str, Any]:
        values: dict[str, Any] = yaml.safe_load((self.paths.root / KIND).read_text(encoding="utf-8"))
        return values


def _tag(images: str) -> str:
    """The tag of the etcd with the v2 API among the images that were built."""
    return images.split()[IMAGES.index("etcd-3.5")].partition(":")[2]


def _backend_values(backend: str) -> dict[str, Any]:
    """Values of torch-elastic for one backend; `_job` has the shared ones."""
    rendezvous: dict[str, Any] = {"conf": {"last_call_timeout": 1}}
    if backend in (OURS, WARM, SPARE):
        values = {"rendezvous": {**rendezvous, "endpoints": [f"etcd.{NAMESPACE}.svc:2379"]}}
        more = {
            "recovery": {"warmStart": {"enabled": backend != OURS}},
            "elastic": {"spares": int(backend == SPARE)},
        }
        return {**values, "etcd": {"enabled": False}, **more}
    etcd = ("--rdzv-backend=etcd-v2", f"--rdzv-endpoint=etcd-v2.{NAMESPACE}.svc:2379")
    values = stock_torchrun.values(*(etcd if backend == "etcd-v2" else ()))
    values["rendezvous"] |= rendezvous
    return values


def _measure_all(stage: Stage, repeats: int, stock: bool) -> tuple[dict[Loss, list[Recovery]], list[float]]:
    """All losses, ``repeats`` times in turn, so that other load affects all of them; and the load average."""
    sides = ((BIREME, stage.one_by_one), (STOCK, stage.at_once))[: 1 + stock]
    found: dict[Loss, list[Recovery]] = {loss: [] for losses, _ in sides for loss in losses}
    loads: list[float] = []
    with Progress(console=CONSOLE) as progress:
        task = progress.add_task("", total=len(sides) * repeats)
        for number in range(repeats):
            for losses, measure in sides:
                backends = " and ".join(dict.fromkeys(loss.backend for loss in losses))
                progress.update(task, description=f"{number + 1} of {repeats}: {backends}")
                for loss, one in zip(losses, measure(losses), strict=True):
                    found[loss].append(one)
                    words = (
                        f"{loss.backend}, {loss.event}: new world {one.world:.1f} s, step {one.step:.1f} s"
                    )
                    progress.console.print(words, style="dim", highlight=False)
                loads.append(os.getloadavg()[0])
                progress.advance(task)
    return found, loads


def report_of(found: Mapping[Loss, Sequence[Recovery]], loads: Sequence[float]) -> dict[str, Any]:
    """Median and spread of each loss, and the ratio of stock torchrun to `bireme-etcd`."""
    rows: list[dict[str, Any]] = []
    for loss, each in found.items():
        row: dict[str, Any] = {"backend": loss.backend, "event": loss.event, "repeats": len(each)}
        row["notRecovered"] = sum(not one.recovered for one in each)
        row["worldSeconds"] = Spread.of(one.world for one in each)
        row["stepSeconds"] = Spread.of(one.step for one in each)
        row["importSeconds"] = Spread.of(one.imports for one in each)
        rows.append(row)
    ours = {row["event"]: row for row in rows if row["backend"] == OURS}
    for row in rows:
        if row["backend"] in (OURS, WARM, SPARE):
            row["aim"] = AIMS.get(row["event"])
            continue
        row["timesOurs"] = {
            key: round(row[key].median / ours[row["event"]][key].median, 1)
            for key in ("worldSeconds", "stepSeconds")
        }
    return {
        "machine": machine(),
        "loadAverage": Spread.of(loads, 0),
        "losses": rows,
    }


def missed(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The losses whose median is above the aim."""
    return [row for row in report["losses"] if row.get("aim") and row["worldSeconds"].median > row["aim"]]


def _table(report: Mapping[str, Any]) -> Table:
    table = Table(
        "loss", "backend", "to the new world", "to its first step", "of it Python and torch", "times ours",
        f"not within {PATIENCE_SECONDS} s",
        title="Seconds: median (lowest–highest)",
    )  # fmt: skip
    for row in sorted(report["losses"], key=lambda row: [*AIMS, KILL_ALL].index(row["event"])):
        cells = [str(row[key]) for key in ("worldSeconds", "stepSeconds", "importSeconds")]
        times = row.get("timesOurs")
        ratio = f"{times['worldSeconds']} and {times['stepSeconds']}" if times else ""
        aim = f", aim {row['aim']}" if row.get("aim") else ""
        lost = f"{row['notRecovered']} of {row['repeats']}"
        table.add_row(row["event"], row["backend"] + aim, *cells, ratio, lost)
    table.caption = f"{report['machine']}; load average meanwhile {report['loadAverage']}"
    return table


@click.command(help=__doc__)
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--stock/--no-stock", default=True, help="Measure stock torchrun too", show_default=True)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(repeats: int, stock: bool, output: str) -> None:
    found = Paths.discover(start=Path(__file__))
    with tempfile.TemporaryDirectory() as state:
        paths = Paths(found.root, found.cache, Path(state))
        toolbox = Toolbox(paths, CONSOLE)
        provider = KindProvider(paths, toolbox, CONSOLE)
        name = f"recovery-{uuid.uuid4().hex[:6]}"
        try:
            stage = Stage(provider.up(name, {NODE_TYPE: 3}), paths, toolbox)
            stage.prepare()
            results = _measure_all(stage, repeats, stock)
        finally:
            provider.down(name)
    report = report_of(*results)
    if output == "json":
        print(json.dumps(report, indent=2, default=vars))
    else:
        Console().print(_table(report))
    sys.exit(bool(missed(report)))


if __name__ == "__main__":
    main()
