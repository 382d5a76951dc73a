"""What people read keeps every name and column, on any width and in a pipe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from bireme.cli import cli, views
from bireme.cli.options import UNLIMITED
from bireme.core.manifests import Manifest
from bireme.live.observe import Difference, compare
from bireme.live.pods import observed_pod
from bireme.live.summary import ReleaseStatus
from bireme.plan.instances import Instance
from bireme.plan.topology import Plan, expand
from bireme.tools import ToolStatus

ROOT = Path(__file__).parents[2]
NAME = "a-training-with-a-long-name-r1"


def job(workers: int = 2) -> Manifest:
    requests = {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "4", "memory": "1060000Mi", "cpu": "90"}
    container = {
        "name": "worker",
        "env": [{"name": "PET_NPROC_PER_NODE", "value": "8"}],
        "resources": {"requests": requests, "limits": requests},
    }
    selector = {"node.kubernetes.io/instance-type": "p4d.24xlarge"}
    template = {
        "metadata": {"labels": {"app.kubernetes.io/component": "worker"}},
        "spec": {"subdomain": NAME, "nodeSelector": selector, "containers": [container]},
    }
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "parallelism": workers,
        "completions": workers,
        "template": template,
    }
    return Manifest({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": NAME}, "spec": spec})


def storage() -> list[Manifest]:
    claim: dict[str, Any] = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1200Gi"}},
        "storageClassName": "fsx-sc",
    }
    class_ = {"kind": "StorageClass", "metadata": {"name": "fsx-sc"}, "provisioner": "fsx.csi.aws.com"}
    etcd = {"replicas": 3, "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}]}
    return [
        Manifest(class_),
        Manifest({"kind": "PersistentVolumeClaim", "metadata": {"name": "fsx-pvc"}, "spec": claim}),
        Manifest({"kind": "StatefulSet", "metadata": {"name": "etcd"}, "spec": etcd}),
    ]


@pytest.fixture
def plan(instances: Mapping[str, Instance]) -> Plan:
    return expand("a", "training", [job(20)], instances)


def shown(view: Any, width: int) -> str:
    out = StringIO()
    Console(file=out, width=width, markup=False).print(view)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, UNLIMITED])
def test_a_plan_shows_every_column_on_any_width(plan: Plan, width: int) -> None:
    text = shown(views.plan_view(plan), width)
    assert max(map(len, text.splitlines())) <= width
    flat = re.sub(r"\s+", " ", text)
    for part in (
        f"{NAME}-0",
        "0–7",
        "gpu=8",
        "efa=4",
        "memory=1060000Mi",
        "cpu=90",
        "p4d.24xlarge",
        "… 8 more",
    ):
        assert part in flat
    wide = shown(views.plan_view(plan, every_pod=True), UNLIMITED)
    assert all(f"  {NAME}-{index} " in wide for index in range(20))


def test_one_of_a_kind_is_counted_in_the_singular(instances: Mapping[str, Instance]) -> None:
    plan = expand("a", "training", [job(1)], instances)
    assert plan.summary == "1 pod, 8 accelerators, 4 EFA, nodes: 1 × p4d.24xlarge"


@pytest.mark.parametrize("width", [60, 200])
def test_live_pods_show_name_node_and_reason_on_any_width(width: int) -> None:
    waiting = {
        "name": "worker",
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "[no] access"}},
    }
    live = {
        "metadata": {"name": f"{NAME}-0-x7k2p", "labels": {"app.kubernetes.io/component": "worker"}},
        "spec": {"nodeName": "ip-10-11-12-13.us-west-2.compute.internal", "containers": [{"name": "worker"}]},
        "status": {"phase": "Pending", "containerStatuses": [waiting]},
    }
    flat = re.sub(r"\s+", " ", shown(views.pods_view([observed_pod(live)], every_pod=True), width))
    for part in (
        f"{NAME}-0-x7k2p",
        "ip-10-11-12-13.us-west-2.compute.internal",
        "ImagePullBackOff, [no] access",
    ):
        assert part in flat


def test_the_traceback_of_a_failed_worker_is_shown_with_its_lines() -> None:
    calls = "".join(f'  File "/opt/model/layer_{each}.py", line {each}, in forward\n' for each in range(9))
    error = "ValueError: the shape is wrong"
    message = f"Traceback (most recent call last):\n{calls}{error}\nrank 0 on node-a failed in round 3\n"
    ended = {"exitCode": 70, "reason": "Error", "message": message}
    pods = [
        observed_pod(
            {
                "metadata": {"name": f"{NAME}-{index}"},
                "spec": {"containers": [{"name": "trainer"}]},
                "status": {
                    "phase": "Failed",
                    "containerStatuses": [{"name": "trainer", "state": {"terminated": ended}}],
                },
            }
        )
        for index in (0, 1)
    ]
    printed = shown(views.outcome_view(ReleaseStatus(expand("a", "default", [], {}), tuple(pods), ())), 200)
    assert printed.count("Traceback") == 1
    assert f"{NAME}-0 said last:\n  Traceback (most recent call last):\n" in printed
    assert f"\n  {error}\n" in re.sub(r" +\n", "\n", printed)
    assert pods[0].reason == "container trainer ended: Error, rank 0 on node-a failed in round 3"


def test_a_terminal_shows_tools_a_line_each_and_their_paths_where_they_fit(tmp_path: Path) -> None:
    path = tmp_path / ("a-folder-with-a-long-name-" * 5) / "helm"
    table = views.tools_view([ToolStatus("helm", "4.3.1", "cache", path, "4.3.1")])
    assert re.search(r"helm +4\.3\.1 +cache +4\.3\.1 *\n", shown(table, 80))
    assert str(path) in shown(table, UNLIMITED)


def test_an_empty_list_says_how_to_fill_it() -> None:
    assert shown(views.clusters_view([]), 80) == "there is no cluster: start one with: bireme up\n"
    assert shown(views.releases_view([]), 80) == "there are no releases: bireme install makes one\n"


def test_what_is_true_of_many_pods_is_said_once() -> None:
    said = "{} is Pending: 0/4 nodes are available"
    pods = [Difference("pending", "run-r1", f"run-r1-{n}", said.format(f"run-r1-{n}")) for n in range(100)]
    other = Difference("missing", "etcd", "etcd-0", "etcd-0 is missing")
    lines = shown(views.differences_view([*pods, other]), 200).splitlines()
    assert [line.rstrip() for line in lines] == [
        "✗ run-r1-0 is Pending: 0/4 nodes are available (also 99 more pods, up to run-r1-99)",
        "✗ etcd-0 is missing",
    ]
    assert shown(views.differences_view(pods[:2]), 200).strip().endswith("available (also run-r1-1)")


def test_a_status_of_many_pending_workers_is_one_screen_that_begins_with_the_reason(
    instances: Mapping[str, Instance],
) -> None:
    workers = 128
    message = (
        f"0/{workers + 1} nodes are available: {workers + 1} Insufficient nvidia.com/gpu. preemption: none"
    )
    pending = {"type": "PodScheduled", "status": "False", "message": message}
    owner = {"kind": "Job", "name": NAME, "controller": True}
    pods = [
        observed_pod(
            {
                "metadata": {
                    "name": f"{NAME}-{index}-abcde",
                    "labels": {"batch.kubernetes.io/job-completion-index": str(index)},
                    "ownerReferences": [owner],
                },
                "spec": {"hostname": f"{NAME}-{index}", **job().thaw()["spec"]["template"]["spec"]},
                "status": {"phase": "Pending", "conditions": [pending]},
            }
        )
        for index in range(workers)
    ]
    plan = expand("a", "training", [job(workers)], instances)
    nodes = (
        f"{workers} worker pods cannot be placed: there are no p4d.24xlarge nodes, {workers} are needed",
    )
    status = ReleaseStatus(plan, tuple(pods), compare(plan, pods), causes=nodes)
    lines = shown(views.outcome_view(status), 80).splitlines()
    assert len(lines) <= 24
    assert lines[0].startswith(f"✗ {workers} worker pods cannot be placed: there are no p4d.24xlarge")
    text = re.sub(r"\s+", " ", " ".join(lines))
    assert text.count("Insufficient nvidia.com/gpu") == 1
    assert f"(also {workers - 1} more pods, up to {NAME}-{workers - 1})" in text
    wide = shown(views.outcome_view(status, every_pod=True), UNLIMITED)
    assert all(f" {NAME}-{index}-abcde " in wide for index in range(workers))


def test_a_daemonset_that_no_node_takes_is_told_beside_the_rest(instances: Mapping[str, Instance]) -> None:
    said = "No node takes pods of DaemonSet/mps, which want nodes labelled mps.capable=true"
    status = ReleaseStatus(expand("mps", "training", [], instances), (), (), causes=(said,))
    lines = [line.rstrip() for line in shown(views.outcome_view(status), 120).splitlines()]
    assert lines == [f"! {said}", "✓ as planned: 0 pods, 0 accelerators, 0 EFA, nodes: any"]


def test_what_is_piped_loses_nothing() -> None:
    words = ["plan", "mpi-training", "-f", "p3.16xlarge", "-f", "maskrcnn"]
    text = CliRunner().invoke(cli, words, env={"COLUMNS": "40"}).stdout
    assert re.search(r"worker .* gpu=8 .*p3\.16xlarge", text)


def test_a_plan_names_claims_volumes_and_classes(instances: Mapping[str, Instance]) -> None:
    found = expand("fsx", "training", storage()[:2], instances)
    text = shown(views.plan_view(found), 80)
    assert "StorageClass/fsx-sc" in text
    assert "fsx.csi.aws.com" in text
    assert "1200Gi" in text
    assert text.splitlines()[-1] == "1 claim, 1 storage class"


def test_each_member_of_a_stateful_set_has_its_claims(instances: Mapping[str, Instance]) -> None:
    found = expand("etcd", "training", storage()[2:], instances)
    assert [each.name for each in found.storage] == ["data-etcd-0", "data-etcd-1", "data-etcd-2"]
