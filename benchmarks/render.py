"""The render harness and the usual ways of testing charts, on the same cases in one run.

Usual: for every case a values file, a ``helm template`` process and ``yaml.safe_load_all``, in turn.
helm-unittest: one suite with a test for every case, in one process, without the suites of subcharts.
Harness: `bireme.helm.Renderer.render_many`, cold (an empty cache), warm from disk (as a new test run is),
and warm from memory. The cases are torch-elastic on every instance type with every workload; those that the
chart refuses are cases too. With --types there are no workloads: a case for each type.

    python benchmarks/render.py [--types] [--repeats N] [--json]
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
from bireme.helm.yaml import BlockDumper
from bireme.tools import Toolbox

AIMS = {"cold": 1.8, "warm from disk": 50.0, "warm from memory": 50.0}
SUITE = "helm-unittest"
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


def usual(helm: Path, requests: Sequence[RenderRequest]) -> Counts:
    """The number of objects per case (None where the chart refuses it), with one process per case."""
    counts: Counts = []
    for request in requests:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as values:
            yaml.safe_dump(dict(request.values), values)
            values.flush()
            command = [str(helm), "template", request.release, str(request.chart), "-f", values.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        counts.append(None if done.returncode else sum(1 for each in yaml.safe_load_all(done.stdout) if each))
    return counts


def unittest(binary: Path, requests: Sequence[RenderRequest]) -> Counts:
    """The same by helm-unittest, which tells of each case only whether it renders (0) or not (None)."""
    with tempfile.TemporaryDirectory() as folder:
        tests = []
        for number, request in enumerate(requests):
            values = Path(folder, f"{number}.yaml")
            values.write_text(yaml.dump(dict(request.values), Dumper=BlockDumper))
            tests.append({"it": str(number), "values": [str(values)], "asserts": [{"notFailedTemplate": {}}]})
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
    with step(CONSOLE, f"{len(requests)} cases, once to compare with"):
        expected = usual(helm, requests)
    rendered: Counts = [None if each is None else 0 for each in expected]
    seconds: dict[str, list[float]] = {name: [] for name in ("usual", SUITE, *AIMS)}
    for number in range(repeats):
        turn = f"repeat {number + 1} of {repeats}"
        with tempfile.TemporaryDirectory() as cache:
            own = replace(paths, cache=Path(cache))
            first, later = (partial(harness, Renderer(toolbox, own), requests) for _ in range(2))
            works = {
                "usual": partial(usual, helm, requests),
                "cold": first,
                "warm from disk": later,
                "warm from memory": later,
            }
            for name, work in works.items():
                seconds[name].append(timed(f"{turn}: {name}", work, expected))
            suite = partial(unittest, binary, requests)
            seconds[SUITE].append(timed(f"{turn}: {SUITE}", suite, rendered))
    return seconds


def report(seconds: Mapping[str, Sequence[float]], number: int) -> dict[str, Any]:
    """Medians, and the ratios to the usual way and to helm-unittest: median, minimum and maximum."""

    def spread(rival: str, name: str) -> dict[str, float]:
        each = [other / own for other, own in zip(seconds[rival], seconds[name], strict=True)]
        return {"median": statistics.median(each), "least": min(each), "most": max(each)}

    return {
        "cases": number,
        "cores": os.cpu_count(),
        "machine": platform.platform(),
        "seconds": {name: statistics.median(times) for name, times in seconds.items()},
        "times faster": {name: spread("usual", name) | {"aim": AIMS[name]} for name in AIMS},
        f"times faster than {SUITE}": {name: spread(SUITE, name) for name in AIMS},
    }


def main() -> None:
    """Measure and print; exits with 1 when a median misses its target."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--types", action="store_true", help="a case for each instance type, no workloads")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    paths = Paths.discover()
    requests = cases(paths, options.types)
    shared = Renderer(Toolbox(paths), paths).render_binary is not None
    seconds = measure(paths, requests, max(1, options.repeats))
    found = report(seconds, len(requests)) | {"one process": shared}
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        how = "in processes that render many" if shared else "each in a process of its own"
        print(f"{found['cases']} cases on {found['cores']} cores, {found['machine']}, {how}")
        for name in ("usual", SUITE):
            print(f"{name:18} {found['seconds'][name]:8.3f} s")
        for name, ratio in found["times faster"].items():
            spread = f"{ratio['least']:.1f} to {ratio['most']:.1f}"
            faster = f"{ratio['median']:.1f} times faster ({spread}; aim {ratio['aim']})"
            print(f"{name:18} {found['seconds'][name]:8.3f} s, {faster}")
        for name, ratio in found[f"times faster than {SUITE}"].items():
            spread = f"{ratio['least']:.1f} to {ratio['most']:.1f}"
            print(f"{name:18} {ratio['median']:.1f} times faster than {SUITE} ({spread})")
    sys.exit(any(ratio["median"] < ratio["aim"] for ratio in found["times faster"].values()))


if __name__ == "__main__":
    main()
