"""The charts' pods pass the restricted Pod Security Standard; docs/pod-security.md lists the exceptions."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.clusters.base import Cluster
from bireme.helm import Render
from bireme.tools import Toolbox
from tests.support import waiting

ROOT = Path(__file__).parents[2]
CHARTS = sorted({file.parts[-3] for file in ROOT.glob("charts/*/ci/*-values.yaml")})
STANDARDS = ("restricted", "baseline", "privileged")
ROW = re.compile(r"^\| ([\w-]+) \| ([\w-]+) \| (baseline|privileged) \| (\S.+) \|$", re.MULTILINE)
VALUES = re.compile(r"^\| `(.+:.+)` \| (restricted|baseline|privileged) \|$", re.MULTILINE)
# Fields that need other objects in the cluster, and fields that do not matter for security.
ELSEWHERE = ("serviceAccountName", "priorityClassName", "runtimeClassName", "schedulerName")

Exceptions = Mapping[tuple[str, str], str]


def listed() -> Exceptions:
    """The standard that each exception passes, by chart and component."""
    rows = ROW.findall((ROOT / "docs/pod-security.md").read_text(encoding="utf-8"))
    return {(chart, component): standard for chart, component, standard, _ in rows}


def pods(node: Any) -> Iterator[dict[str, Any]]:
    """Every pod or pod template in an object."""
    if isinstance(node, list):
        for each in node:
            yield from pods(each)
    if isinstance(node, dict):
        if isinstance(node.get("spec"), dict) and isinstance(node["spec"].get("containers"), list):
            yield node
        for each in node.values():
            yield from pods(each)


@pytest.fixture(scope="module")
def passes(cluster: Cluster, toolbox: Toolbox) -> Iterator[Callable[[list[dict[str, Any]]], list[str]]]:
    """``passes(pods)``: for each pod the strictest standard under which the API server accepts it."""
    names = {standard: f"{standard}-{uuid.uuid4().hex[:6]}" for standard in STANDARDS}
    for standard, name in names.items():
        labels = {"pod-security.kubernetes.io/enforce": standard}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        cluster.api.create("/api/v1/namespaces", namespace)
        waiting.until_account(cluster.api, name)
    kubectl = [str(toolbox.path("kubectl")), "--kubeconfig", str(cluster.kubeconfig), "create", "-f", "-"]

    def taken(pods: list[dict[str, Any]], standard: str) -> set[str]:
        command = [*kubectl, "-n", names[standard], "--dry-run=server", "-o", "name"]
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})
        done = subprocess.run(command, input=items, capture_output=True, text=True, check=False)
        others = [line for line in done.stderr.splitlines() if "violates PodSecurity" not in line]
        assert not others, f"refused for another reason: {others}"
        return {line.removeprefix("pod/") for line in done.stdout.split()}

    def _passes(pods: list[dict[str, Any]]) -> list[str]:
        bare = [bare_pod(pod, f"pod-{number}") for number, pod in enumerate(pods)]
        accepted = {standard: taken(bare, standard) for standard in STANDARDS}
        return [
            next(standard for standard in STANDARDS if pod["metadata"]["name"] in accepted[standard])
            for pod in bare
        ]

    yield _passes
    for name in names.values():
        cluster.api.delete(f"/api/v1/namespaces/{name}")


def bare_pod(template: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A pod made from a template, with empty volumes in place of the claims of a StatefulSet."""
    spec = {key: value for key, value in template["spec"].items() if key not in ELSEWHERE}
    containers = [*spec["containers"], *spec.get("initContainers", [])]
    mounted = {mount["name"] for each in containers for mount in each.get("volumeMounts", [])}
    volumes = spec.get("volumes", [])
    claimed = sorted(mounted - {volume["name"] for volume in volumes})
    spec["volumes"] = [*volumes, *({"name": volume, "emptyDir": {}} for volume in claimed)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def test_all_pods_but_the_listed_exceptions_pass_the_restricted_standard(
    render: Callable[..., Render], passes: Callable[[list[dict[str, Any]]], list[str]]
) -> None:
    found: list[tuple[str, dict[str, Any]]] = []
    for values in sorted(ROOT.glob("charts/*/ci/*-values.yaml")):
        chart = values.parts[-3]
        rendered = render(chart, files=[str(values.relative_to(ROOT))])
        found += [(chart, pod) for each in rendered.manifests for pod in pods(each.thaw())]
    weakest: dict[tuple[str, str], str] = {}
    for (chart, pod), standard in zip(found, passes([pod for _, pod in found]), strict=True):
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        if standard != "restricted":
            weakest[chart, component] = max(standard, weakest.get((chart, component), ""))
    assert {chart for chart, _ in found} >= {"torch-elastic", "mpi-training", "paddle", "etcd"}
    assert weakest == listed(), "docs/pod-security.md lists the exceptions with their reasons"


def test_every_exception_names_a_chart() -> None:
    table = (ROOT / "docs/pod-security.md").read_text(encoding="utf-8")
    lines = [line for line in table.splitlines() if re.match(r"\| [^`]", line)]
    rows = [line for line in lines if not line.startswith("| chart")]
    assert len(rows) == len(listed()), "a row is: | chart | pod | baseline or privileged | why |"
    assert {chart for chart, _ in listed()} <= set(CHARTS)


def test_values_that_reach_the_node_cost_a_jobs_pods_what_the_page_says(
    render: Callable[..., Render], passes: Callable[[list[dict[str, Any]]], list[str]]
) -> None:
    rows = VALUES.findall((ROOT / "docs/pod-security.md").read_text(encoding="utf-8"))
    assert len(rows) >= 7
    charts = ("torch-elastic", "mpi-training", "paddle")
    workers: list[dict[str, Any]] = []
    for chart, (values, _) in itertools.product(charts, rows):
        rendered = render(chart, values=yaml.safe_load(values))
        jobs = [each for each in rendered.manifests if each.kind == "Job" and not each.is_hook]
        found = pods([each.thaw() for each in jobs])
        workers += [pod for pod in found if pod["spec"]["containers"][0]["name"] == "trainer"]
    assert passes(workers) == [standard for _ in charts for _, standard in rows]
