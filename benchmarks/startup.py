"""The time from creating a job until all its workers run: our MPI jobs and mpi-operator with upstream's
settings, compared with JobSet, PyTorchJob and TrainJob, which make the same pods.

All run in turn on one embedded control plane, on fake p4d.24xlarge nodes with one worker each. All jobs have
the pods that the charts render, so only the controllers differ. The launcher of an MPIJob is created when all
workers are Ready; the second number of each contender is the time until it runs.

    python benchmarks/startup.py [--workers 10,100,500] [--rounds 3] [--rivals JobSet,…] [-o markdown]
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml
from figures import CONSOLE, Spread, machine
from rich.console import Console
from rich.table import Table
from rivals import RIVALS, Rival

from bireme.clusters.embedded import EmbeddedCluster, EmbeddedProvider
from bireme.clusters.waiting import until
from bireme.core.paths import Paths
from bireme.core.progress import step
from bireme.core.quantities import ACCELERATORS, pod_requests
from bireme.helm import Renderer, RenderRequest, SetFlags, values
from bireme.live.release import Releases
from bireme.tools import Toolbox
from tests.support import controllers

LIMIT_SECONDS = 300
TYPE = "p4d.24xlarge"
NAMESPACE = "default"
BASELINE = "MPIJob, upstream's operator"
# The defaults of mpi-operator (cmd/mpi-operator/app/options).
UPSTREAM = ["threads=2", "client.qps=5", "client.burst=10", "queue.rate=10", "queue.burst=100"]


@dataclass(frozen=True)
class Contender:
    """A way to run one MPI job: by charts/mpi-training, or the same pods by another project's controller.

    ``operator`` are the values of charts/mpijob, where the job needs it.
    """

    name: str
    orchestrator: str
    operator: Sequence[str] | None = None
    rival: Rival | None = None


OURS = (
    Contender(BASELINE, "MPIJob", UPSTREAM),
    Contender("MPIJob, our operator", "MPIJob", ()),
    Contender("Job, no operator", "Job"),
)


@dataclass(frozen=True)
class Times:
    """Seconds until all workers run, and until the launcher does; infinity after the limit.

    mpi-operator puts a job off for up to 1000 s when much has happened to its pods, as if it had failed.
    """

    workers: float
    launcher: float


@dataclass(frozen=True)
class Stage:
    """One cluster, and the controllers and jobs on it."""

    cluster: EmbeddedCluster
    paths: Paths
    toolbox: Toolbox

    @contextlib.contextmanager
    def operator(self, contender: Contender) -> Iterator[None]:
        """Run the controller that ``contender`` needs while the block runs."""
        if contender.rival:
            with contender.rival.running(self.cluster, self.toolbox, self.paths.state):
                yield
            return
        if contender.operator is None:
            yield
            return
        releases = Releases(self.cluster, self.toolbox)
        request = RenderRequest(self.paths.charts / "mpijob", settings=SetFlags(contender.operator))
        given = Renderer(self.toolbox, self.paths).merged(request).values
        releases.install(request.chart, "mpijob", "mpi-operator", given, create_namespace=True)
        # Its holder has ended: without it, the next one need not wait for the lease to end.
        self.cluster.api.delete("/apis/coordination.k8s.io/v1/namespaces/mpi-operator/leases/mpi-operator")
        program = self.toolbox.path("mpi-operator")
        with controllers.running(self.cluster, "mpijob", "mpi-operator", program) as operator:
            log = operator.log
            until(lambda: "Started workers" in log.read_text(), LIMIT_SECONDS, "the operator to lead")
            yield
        releases.uninstall("mpijob", "mpi-operator", LIMIT_SECONDS)

    def measure(self, contender: Contender, workers: int) -> Times:
        """Create one job, wait until it runs, and delete it."""
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump_all(self._manifests(contender, workers), file)
            file.flush()
            with self._removed(file.name):
                return self._created(file.name, workers, contender.orchestrator == "MPIJob")

    def _manifests(self, contender: Contender, workers: int) -> list[dict[str, Any]]:
        files = [self.paths.values / "instances" / f"{TYPE}.yaml"]
        given = values.load(files) | {"workers": workers, "mpi": {"orchestrator": contender.orchestrator}}
        request = RenderRequest(self.paths.charts / "mpi-training", given, release="job", namespace=NAMESPACE)
        rendered = Renderer(self.toolbox, self.paths).render(request).manifests
        plain = [manifest.thaw() for manifest in rendered if not manifest.is_hook]
        if contender.rival is None:
            return plain
        (job,) = (each for each in plain if each["kind"] == "Job")
        others = [each for each in plain if each is not job]
        return [*others, *contender.rival.job(job["metadata"]["name"], job["spec"])]

    def _created(self, file: str, workers: int, has_launcher: bool) -> Times:
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        version = self.cluster.api.get(pods)["metadata"]["resourceVersion"]
        with self.cluster.api.watch(pods, LIMIT_SECONDS, resourceVersion=version) as events:
            started = time.perf_counter()
            with self._kubectl("create", "-f", file) as creating:
                times = _running(events, workers, has_launcher, started)
        if creating.returncode:
            sys.exit(f"kubectl create failed: {creating.returncode}")
        return times

    @contextlib.contextmanager
    def _removed(self, file: str) -> Iterator[None]:
        yield
        with self._kubectl("delete", "-f", file, "--cascade=foreground", f"--timeout={LIMIT_SECONDS}s"):
            pass
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        until(lambda: not self.cluster.api.get(pods)["items"], LIMIT_SECONDS, "the pods to be gone")

    def _kubectl(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [str(self.toolbox.path("kubectl")), "--kubeconfig", str(self.cluster.kubeconfig)]
        return subprocess.Popen([*command, "-n", NAMESPACE, *arguments], stdout=subprocess.DEVNULL)


def _running(events: Iterator[Mapping[str, Any]], workers: int, has_launcher: bool, started: float) -> Times:
    """When ``workers`` pods with accelerators run, and the launcher too where that is a pod of its own."""
    up: set[str] = set()
    workers_up = launcher_up = 0.0
    for event in events:
        pod = event["object"]
        if pod.get("status", {}).get("phase") != "Running":
            continue
        now = time.perf_counter() - started
        requests = pod_requests(pod["spec"])
        if any(resource in requests for resource in ACCELERATORS):
            up.add(pod["metadata"]["name"])
        else:
            launcher_up = launcher_up or now
        if len(up) == workers:
            workers_up = workers_up or now
            if launcher_up or not has_launcher:
                return Times(workers_up, launcher_up or workers_up)
    if workers_up:
        return Times(workers_up, math.inf)
    sys.exit(f"{len(up)} of {workers} workers were running after {LIMIT_SECONDS} s")


def _measure(
    stage: Stage, contenders: Sequence[Contender], sizes: Sequence[int], rounds: int
) -> dict[tuple[str, int], list[Times]]:
    """All times by contender and size; the order changes with each round."""
    found: dict[tuple[str, int], list[Times]] = defaultdict(list)
    for turn in range(rounds):
        first = turn % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            with stage.operator(contender):
                for workers in sizes:
                    what = f"Round {turn + 1} of {rounds}: {contender.name}, {workers} workers"
                    with CONSOLE.status(what):
                        times = stage.measure(contender, workers)
                    CONSOLE.print(f"{what}: {times.workers:.1f} s", style="dim", highlight=False)
                    found[contender.name, workers].append(times)
    return found


def _report(
    contenders: Sequence[Contender], sizes: Sequence[int], found: Mapping[tuple[str, int], list[Times]]
) -> dict[str, Any]:
    def row(name: str, workers: int) -> dict[str, Any]:
        times = found[name, workers]
        ratios = [
            base.workers / one.workers for base, one in zip(found[BASELINE, workers], times, strict=True)
        ]
        return {
            "contender": name,
            "workers": workers,
            "workersSeconds": [round(one.workers, 2) for one in times],
            "launcherSeconds": [round(one.launcher, 2) for one in times if one.launcher < math.inf],
            "launcherNotThere": sum(one.launcher == math.inf for one in times),
            "workersSpread": Spread.of(one.workers for one in times),
            "timesFaster": Spread.of(ratios, 1),
        }

    rows = [row(contender.name, workers) for workers in sizes for contender in contenders]
    return {"machine": machine(), "results": rows}


HEADINGS = ("workers", "who", "all workers run", "launcher runs", "times faster")


def _rows(report: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for row in report["results"]:
        yield (
            str(row["workers"]),
            row["contender"],
            f"{row['workersSpread']} s",
            _launcher(row["launcherSeconds"], row["launcherNotThere"]),
            str(row["timesFaster"]),
        )


def _launcher(seconds: Sequence[float], missing: int) -> str:
    late = f"{missing} of {len(seconds) + missing} not within {LIMIT_SECONDS} s"
    return ", ".join(
        [*([f"{statistics.median(seconds):.1f} s"] if seconds else []), *([late] if missing else [])]
    )


def _caption(report: Mapping[str, Any]) -> str:
    return f"medians and spread; {report['machine']}"


def _table(report: Mapping[str, Any]) -> Table:
    table = Table(*HEADINGS, caption=_caption(report))
    for row in _rows(report):
        table.add_row(*row)
    return table


def _markdown(report: Mapping[str, Any]) -> str:
    rows = [HEADINGS, ("---",) * len(HEADINGS), *_rows(report)]
    return "\n".join([f"| {' | '.join(row)} |" for row in rows] + ["", f"({_caption(report)})"])


def _rivals(wanted: str) -> list[Contender]:
    known = {rival.name: rival for rival in RIVALS}
    names = [name for name in wanted.split(",") if name]
    if unknown := set(names) - known.keys():
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: there are {', '.join(known)}")
    return [Contender(name, "Job", rival=known[name]) for name in names]


@click.command(help=__doc__)
@click.option("--workers", default="10,100,500", show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--rivals", default=",".join(rival.name for rival in RIVALS), show_default=True)
@click.option(
    "-o", "--output", type=click.Choice(["table", "markdown", "json"]), default="table", show_default=True
)
def main(workers: str, rounds: int, rivals: str, output: str) -> None:
    sizes = [int(size) for size in workers.split(",")]
    contenders = [*OURS, *_rivals(rivals)]
    found = Paths.discover(start=Path(__file__))
    with tempfile.TemporaryDirectory() as state:
        paths = Paths(found.root, found.cache, Path(state))
        toolbox = Toolbox(paths, CONSOLE)
        for contender in contenders:
            if contender.rival:
                with step(CONSOLE, f"Building {contender.name}"):
                    contender.rival.program(toolbox)
        provider = EmbeddedProvider(paths, toolbox, CONSOLE)
        try:
            stage = Stage(provider.up("startup", {TYPE: max(sizes)}), paths, toolbox)
            report = _report(contenders, sizes, _measure(stage, contenders, sizes, rounds))
        finally:
            provider.down("startup")
    if output == "json":
        print(json.dumps(report, indent=2, default=vars))
    elif output == "markdown":
        print(_markdown(report))
    else:
        Console().print(_table(report))


if __name__ == "__main__":
    main()
