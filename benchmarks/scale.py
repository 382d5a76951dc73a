"""The time from `bireme install` of 1,000 whole-node workers until all run, compared with `kubectl create`.

Both create the same Job, from the same rendered manifests, on the same embedded control plane with 1,000 fake
p4d.24xlarge nodes, in turn; the result is the ratio of each pair. `bireme install` renders, plans, installs
with Helm, watches the pods and compares all of them with the plan; kubectl creates the Job, and waits until
its status has as many ready pods. Half of Bireme's workers are then deleted at once, and have to run again.

    python benchmarks/scale.py [--workers 1000] [--pairs 3] [-o json]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import yaml
from figures import CONSOLE, Spread, machine
from rich.console import Console
from rich.table import Table

from bireme.clusters.embedded import EmbeddedCluster, EmbeddedProvider
from bireme.clusters.waiting import until
from bireme.core.paths import Paths
from bireme.core.progress import step
from bireme.helm import parse
from bireme.tools import Toolbox

LIMIT_SECONDS = 900
TYPE = "p4d.24xlarge"
PODS = "/api/v1/namespaces/default/pods"
INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True)
class Stage:
    """One cluster, and two ways to create the same Job on it."""

    cluster: EmbeddedCluster
    paths: Paths
    toolbox: Toolbox
    workers: int

    def bireme(self) -> None:
        """`bireme install`, which compares the pods with the plan."""
        self._bireme("install", *self._chart("ours"), "-o", "json", "--timeout", str(LIMIT_SECONDS))

    def lose_half(self) -> None:
        """Delete every second worker by force, as when their nodes are gone, until as many run again."""
        lost = self._running()[::2]
        api = self.cluster.api
        api.each(lambda name: api.delete(f"{PODS}/{name}", gracePeriodSeconds="0"), lost)
        until(lambda: len({*self._running()} - {*lost}) == self.workers, LIMIT_SECONDS, "all workers to run")

    def remove_bireme(self) -> None:
        """Uninstall, and wait until the pods are gone."""
        self._bireme("uninstall", "ours", "--timeout", str(LIMIT_SECONDS))

    def kubectl(self) -> None:
        """`kubectl create` of the rendered manifests, and `kubectl wait` for the Job."""
        self._kubectl("create", "-f", str(self._rendered))
        ready = f"--for=jsonpath={{.status.ready}}={self.workers}"
        self._kubectl("wait", "job/plain-r1", ready, f"--timeout={LIMIT_SECONDS}s")

    def remove_kubectl(self) -> None:
        """Delete the Job, and wait until the pods are gone."""
        self._kubectl(
            "delete", "-f", str(self._rendered), "--cascade=foreground", f"--timeout={LIMIT_SECONDS}s"
        )

    def render(self) -> None:
        """Write the manifests for kubectl, without Helm's hooks.

        Not part of what is measured.
        """
        text = self._run([*_bireme_command(), "render", *self._chart("plain")])
        kept = [manifest.thaw() for manifest in parse(text) if not manifest.is_hook]
        self._rendered.write_text(yaml.safe_dump_all(kept), encoding="utf-8")

    @property
    def _rendered(self) -> Path:
        return self.paths.state / "plain.yaml"

    def _chart(self, release: str) -> list[str]:
        files = [f"instances/{TYPE}.yaml", "workloads/imagenet-efa.yaml"]
        values = [word for file in files for word in ("-f", str(self.paths.values / file))]
        sets = ["--set", f"workers={self.workers},elastic.maxWorkers={self.workers}"]
        return [str(self.paths.charts / "torch-elastic"), *values, *sets, release]

    def _running(self) -> list[str]:
        chosen = {"fieldSelector": "status.phase=Running", "labelSelector": INDEX}
        pods = self.cluster.api.get(PODS, **chosen)["items"]
        return [each["metadata"]["name"] for each in pods if "deletionTimestamp" not in each["metadata"]]

    def _bireme(self, *arguments: str) -> None:
        self._run([*_bireme_command(), *arguments, "--cluster", self.cluster.name])

    def _kubectl(self, *arguments: str) -> None:
        kubectl = self.toolbox.path("kubectl")
        self._run([str(kubectl), "--kubeconfig", str(self.cluster.kubeconfig), *arguments])

    def _run(self, command: list[str]) -> str:
        environment = os.environ | {"BIREME_STATE": str(self.paths.state)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout


def _bireme_command() -> list[str]:
    return [sys.executable, "-c", "from bireme.cli import main; main()"]


def _timed(what: str, act: Callable[[], None]) -> float:
    with step(CONSOLE, what):
        started = time.perf_counter()
        act()
        return time.perf_counter() - started


def _measure(stage: Stage, pairs: int) -> list[tuple[float, float, float]]:
    """Seconds of Bireme, of kubectl, and after the loss of half, in pairs; the order alternates."""
    results = []
    for number in range(pairs):
        turns = [
            ("bireme install", stage.bireme, stage.remove_bireme),
            ("kubectl create", stage.kubectl, stage.remove_kubectl),
        ]
        seconds = {}
        for name, act, remove in turns if number % 2 == 0 else reversed(turns):
            seconds[name] = _timed(f"Pair {number + 1} of {pairs}: {name}", act)
            if act == stage.bireme:
                seconds["loss"] = _timed(f"Pair {number + 1} of {pairs}: half are lost", stage.lose_half)
            _timed(f"Pair {number + 1} of {pairs}: removing", remove)
        results.append((seconds["bireme install"], seconds["kubectl create"], seconds["loss"]))
    return results


def _report(
    workers: int, nodes_seconds: float, results: list[tuple[float, float, float]]
) -> dict[str, object]:
    return {
        "workers": workers,
        "machine": machine(),
        "upSeconds": round(nodes_seconds, 1),
        "biremeSeconds": [round(ours, 1) for ours, _, _ in results],
        "kubectlSeconds": [round(plain, 1) for _, plain, _ in results],
        "halfLostSeconds": [round(loss, 1) for _, _, loss in results],
        "ratio": Spread.of(ours / plain for ours, plain, _ in results),
    }


def _table(report: dict[str, object], results: list[tuple[float, float, float]]) -> Table:
    table = Table(
        "pair", "bireme install", "kubectl create", "ratio", "half lost", title=f"{report['workers']} workers"
    )
    for number, (ours, plain, loss) in enumerate(results, 1):
        table.add_row(str(number), f"{ours:.1f} s", f"{plain:.1f} s", f"{ours / plain:.2f}", f"{loss:.1f} s")
    table.caption = f"median ratio and spread: {report['ratio']}; {report['machine']}"
    return table


@click.command(help=__doc__)
@click.option("--workers", default=1000, show_default=True)
@click.option("--pairs", default=3, show_default=True)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(workers: int, pairs: int, output: str) -> None:
    found = Paths.discover(start=Path(__file__))
    with tempfile.TemporaryDirectory() as state:
        paths = Paths(found.root, found.cache, Path(state))
        provider = EmbeddedProvider(paths, Toolbox(paths, CONSOLE), CONSOLE)
        try:
            started = time.perf_counter()
            cluster = provider.up("scale", {TYPE: workers})
            up_seconds = time.perf_counter() - started
            cluster.add_claim("fsx-pvc")
            stage = Stage(cluster, paths, Toolbox(paths), workers)
            stage.render()
            results = _measure(stage, pairs)
        finally:
            provider.down("scale")
    report = _report(workers, up_seconds, results)
    if output == "json":
        print(json.dumps(report, indent=2, default=vars))
    else:
        Console().print(_table(report, results))


if __name__ == "__main__":
    main()
