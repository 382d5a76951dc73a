"""The render harness and the usual ways of testing charts, on the same cases in one run.

Usual: for every case a values file, a ``helm template`` process and ``yaml.safe_load_all``, in turn.
helm-unittest: one suite with a test for every case, in one process, without the suites of subcharts.
Harness: `bireme.helm.Renderer.render_many`, cold (an empty cache), warm from disk (as a new test run is),
and warm from memory. The cases are torch-elastic on every instance type with every workload; those that the
chart refuses are cases too. With --types there are no workloads: a case for each type. Each CHART is measured
as well: its cases are the values, releases and capabilities that the tests of its own suites set, each once.

    python benchmarks/render.py [--types] [--repeats N] [--json] [CHART ...]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml
from figures import CONSOLE

from bireme.core.paths import Paths
from bireme.core.progress import step
from bireme.helm import Renderer, RenderError, RenderRequest, load
from bireme.helm.yaml import block_text, merge
from bireme.tools import Toolbox

SUITE = "helm-unittest"
OWN = "harness, cold"
WARM = ("warm from disk", "warm from memory")
# How many times faster than each, cold: torch-elastic, and charts of others.
AIMS = {"usual": (6.0, 6.0), SUITE: (4.0, 2.0)}
Counts = list[int | None]


def cases(paths: Paths, only_types: bool) -> list[RenderRequest]:
    """torch-elastic on every instance type, with every workload or alone, values merged."""
    workloads = sorted((paths.values / "workloads").glob("*.yaml"))
    stacks: list[list[Path]] = [[]] if only_types else [[each] for each in workloads]
    return [
        RenderRequest(paths.charts / "torch-elastic", load([instance, *stack]), release="job")
        for instance in sorted((paths.values / "instances").glob("*.yaml"))
        for stack in stacks
    ]


def of_suites(chart: Path, kubernetes: str) -> list[RenderRequest]:
    """What the tests of the chart's suites render, each once. Keys in brackets are left out."""
    found: dict[str, RenderRequest] = {}
    suites = (each for each in chart.rglob("*test.yaml") if "templates" not in each.parts)
    for file in sorted(suites):
        for suite in filter(None, yaml.safe_load_all(file.read_text("utf-8"))):
            for test in suite.get("tests") or ():
                files = [file.parent / each for part in (suite, test) for each in part.get("values") or ()]
                values = load([each for each in files if each.is_file()])
                for key, value in {**(suite.get("set") or {}), **(test.get("set") or {})}.items():
                    if "[" not in key and "\\" not in key:
                        for part in reversed(key.split(".")):
                            value = {part: value}
                        values = merge(values, value)
                release, served = (
                    {**(suite.get(part) or {}), **(test.get(part) or {})}
                    for part in ("release", "capabilities")
                )
                request = RenderRequest(
                    chart,
                    json.loads(json.dumps(values, default=str)),
                    namespace=release.get("namespace", "default"),
                    kube_version=kubernetes,
                    api_versions=tuple(served.get("apiVersions") or ()),
                    is_upgrade=bool(release.get("upgrade")),
                )
                found[repr(request)] = request
    return [*found.values()]


def usual(helm: Path, requests: Sequence[RenderRequest]) -> Counts:
    """The number of objects per case (None where the chart refuses it), with one process per case."""
    counts: Counts = []
    for request in requests:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as values:
            # PyYAML would write texts such as 129e6 plain, which Helm reads as numbers.
            values.write(block_text([dict(request.values)]))
            values.flush()
            command = [str(helm), "template", *request.flags(), str(request.chart), "-f", values.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        counts.append(None if done.returncode else sum(1 for each in yaml.safe_load_all(done.stdout) if each))
    return counts


def unittest(binary: Path, requests: Sequence[RenderRequest]) -> Counts:
    """The same by helm-unittest, which tells of each case only whether it renders (0) or not (None)."""
    with tempfile.TemporaryDirectory() as folder:
        tests = []
        for number, request in enumerate(requests):
            values = Path(folder, f"{number}.yaml")
            values.write_text(block_text([dict(request.values)]))
            test = {"it": str(number), "values": [str(values)], "asserts": [{"notFailedTemplate": {}}]}
            release = {"name": request.release, "namespace": request.namespace, "upgrade": request.is_upgrade}
            served: dict[str, Any] = {"apiVersions": list(request.api_versions)}
            if request.kube_version:
                major, minor, _ = request.kube_version.split(".")
                served |= {"majorVersion": int(major), "minorVersion": int(minor)}
            tests.append({**test, "release": release, "capabilities": served})
        suite, report = Path(folder, "cases_test.yaml"), Path(folder, "report.xml")
        suite.write_text(yaml.safe_dump({"suite": "cases", "tests": tests}))
        options = ["--with-subchart=false", "-f", str(suite), "-t", "Sonar", "-o", str(report)]
        subprocess.run([binary, *options, str(requests[0].chart)], capture_output=True, check=False)
        told = {case.get("name"): len(case) for file in ElementTree.parse(report).getroot() for case in file}
        return [None if told[str(number)] else 0 for number in range(len(requests))]


def harness(renderer: Renderer, requests: Sequence[RenderRequest]) -> Counts:
    """The number of objects per case (None where the chart refuses it), by the harness."""
    results = renderer.render_many(requests)
    return [None if isinstance(result, RenderError) else len(result.manifests) for result in results]


def timed(what: str, work: Callable[[], Counts], expected: Counts) -> float:
    """The seconds that ``work`` takes; exits when it does not render what is expected."""
    with step(CONSOLE, what):
        start = time.perf_counter()
        counts = work()
        seconds = time.perf_counter() - start
    if counts != expected:
        sys.exit("error: the two sides did not render the same objects")
    return seconds


def measure(paths: Paths, requests: Sequence[RenderRequest], repeats: int) -> dict[str, list[float]]:
    """Seconds by method and repeat; each repeat starts with an empty cache."""
    toolbox = Toolbox(paths)
    helm, binary = toolbox.path("helm"), toolbox.path(SUITE)
    what = requests[0].chart.name
    with step(CONSOLE, f"{what}: {len(requests)} cases, once to compare with"):
        expected = usual(helm, requests)
    rendered: Counts = [None if each is None else 0 for each in expected]
    seconds: dict[str, list[float]] = {name: [] for name in ("usual", SUITE, OWN, *WARM)}
    for number in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            own = replace(paths, cache=Path(cache))
            first, later = (partial(harness, Renderer(toolbox, own), requests) for _ in range(2))
            works = {
                "usual": (partial(usual, helm, requests), expected),
                OWN: (first, expected),
                WARM[0]: (later, expected),
                WARM[1]: (later, expected),
                SUITE: (partial(unittest, binary, requests), rendered),
            }
            for name, (work, wanted) in works.items():
                turn = f"{what}, repeat {number + 1} of {repeats}: {name}"
                seconds[name].append(timed(turn, work, wanted))
    return seconds


def report(seconds: Mapping[str, Sequence[float]], number: int, is_own: bool) -> dict[str, Any]:
    """Medians, and how many times faster than each rival it is cold: median, minimum and maximum."""

    def spread(rival: str) -> dict[str, float]:
        each = [other / own for other, own in zip(seconds[rival], seconds[OWN], strict=True)]
        aim = AIMS[rival][0 if is_own else 1]
        return {"median": statistics.median(each), "least": min(each), "most": max(each), "aim": aim}

    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {"cases": number, "seconds": medians, "times faster": {rival: spread(rival) for rival in AIMS}}


def main() -> None:
    """Measure and print; exits with 1 when a median misses its target."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("charts", nargs="*", type=Path, help="charts with suites of helm-unittest")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--types", action="store_true", help="a case for each instance type, no workloads")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    paths = Paths.discover()
    toolbox = Toolbox(paths)
    groups = [cases(paths, options.types)]
    groups += [of_suites(chart, toolbox.versions("kubectl")[0]) for chart in options.charts]
    found = {}
    for number, requests in enumerate(groups):
        seconds = measure(paths, requests, max(1, options.repeats))
        found[requests[0].chart.name] = report(seconds, len(requests), number == 0)
    if options.json:
        about = {"cores": os.cpu_count(), "machine": platform.platform()}
        print(json.dumps({**about, "charts": found}, indent=2))
    else:
        shared = Renderer(toolbox, paths).render_binary is not None
        how = "in processes that render many" if shared else "each in a process of its own"
        print(f"{os.cpu_count()} cores, {platform.platform()}, {how}")
        for chart, one in found.items():
            print(f"{chart}: {one['cases']} cases")
            for name, took in one["seconds"].items():
                faster = ""
                if ratio := one["times faster"].get(name):
                    spread = f"{ratio['least']:.1f} to {ratio['most']:.1f}, aim {ratio['aim']:.0f}"
                    faster = f", {ratio['median']:.1f} times that of the harness ({spread})"
                print(f"  {name:18} {took:8.3f} s{faster}")
    ratios = [ratio for one in found.values() for ratio in one["times faster"].values()]
    sys.exit(any(ratio["median"] < ratio["aim"] for ratio in ratios))


if __name__ == "__main__":
    main()
