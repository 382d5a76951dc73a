"""Which pod's log `bireme logs` reads, and how, against a server that answers like Kubernetes' API."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from bireme.clusters.base import Cluster
from bireme.clusters.existing import existing
from bireme.core.errors import BiremeError
from bireme.core.manifests import Manifest
from bireme.live import logs
from bireme.live.logs import Wanted, all_logs, log, main_log, main_pod
from bireme.plan.instances import Instance
from bireme.plan.topology import Plan, expand
from tests.support.api_server import Quiet, serving

PODS = "/api/v1/namespaces/default/pods"


def pod(name: str, index: int, created: str, phase: str = "Running") -> dict[str, Any]:
    owner = {"kind": "Job", "name": "train-r1", "controller": True}
    labels = {
        "app.kubernetes.io/instance": "train",
        "app.kubernetes.io/component": "worker",
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    meta = {"name": name, "resourceVersion": "1", "ownerReferences": [owner], "labels": labels}
    return {
        "metadata": meta | {"creationTimestamp": created},
        "spec": {"nodeName": "n", "containers": [{"name": "worker"}, {"name": "sidecar"}]},
        "status": {"phase": phase},
    }


LIVE = [
    pod("train-r1-0-aaaaa", 0, "2026-01-01T00:00:00Z"),
    pod("train-r1-1-bbbbb", 1, "2026-01-01T00:00:00Z", "Failed"),
    pod("train-r1-1-ccccc", 1, "2026-01-01T00:05:00Z"),
    pod("train-r1-2-ddddd", 2, "2026-01-01T00:05:00Z", "Pending"),
]


class Answers(Quiet):
    """An API server with these pods. The log of a pod is its name and the parameters of the request."""

    def pods(self) -> list[dict[str, Any]]:
        return LIVE

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        asked = {key: values[0] for key, values in parse_qs(address.query).items()}
        name = address.path.removeprefix(f"{PODS}/")
        found = next((each for each in LIVE if each["metadata"]["name"] == name), None)
        if name.endswith("/log"):
            body = f"{name} {asked}".encode()
        elif found:
            body = json.dumps(found).encode()
        elif "/jobs/" in address.path:
            body = json.dumps({"metadata": {"name": "train-r1"}}).encode()
        else:
            items = self.pods() if address.path == PODS else []
            body = json.dumps({"items": items, "metadata": {"resourceVersion": "1"}}).encode()
        self.answer(body)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Answers), tmp_path) as kubeconfig:
        yield existing(kubeconfig)


@pytest.fixture
def plan(instances: Mapping[str, Instance]) -> Plan:
    """Three workers with eight ranks each."""
    container = {"name": "worker", "env": [{"name": "PET_NPROC_PER_NODE", "value": "8"}]}
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "parallelism": 3,
        "completions": 3,
        "template": {"spec": {"containers": [container]}},
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train-r1"}, "spec": spec}
    return expand("train", "default", [Manifest(job)], instances)


@pytest.mark.parametrize(
    ("rank", "name"), [(None, "train-r1-0-aaaaa"), (7, "train-r1-0-aaaaa"), (8, "train-r1-1-ccccc")]
)
def test_the_newest_pod_that_runs_a_rank_is_read(
    cluster: Cluster, plan: Plan, rank: int | None, name: str
) -> None:
    assert main_pod(cluster, plan, rank).name == name


def test_the_log_is_that_of_the_first_container(cluster: Cluster, plan: Plan) -> None:
    assert main_log(cluster, plan) == "train-r1-0-aaaaa/log {'container': 'worker'}"


def test_a_log_can_be_followed_and_that_before_a_restart_read(cluster: Cluster, plan: Plan) -> None:
    read = b"".join(log(cluster, plan, main_pod(cluster, plan), Wanted(follow=True, previous=True))).decode()
    assert read == "train-r1-0-aaaaa/log {'container': 'worker', 'follow': 'true', 'previous': 'true'}"


def test_all_ranks_are_read_in_order_each_line_after_its_rank(cluster: Cluster, plan: Plan) -> None:
    """One that has not started has printed nothing; of a rank with two pods, the older comes first."""
    read = b"".join(all_logs(cluster, plan, Wanted(since=600, tail=5))).decode().splitlines()
    asked = "{'container': 'worker', 'sinceSeconds': '600', 'tailLines': '5'}"
    assert read == [
        f"0 | train-r1-0-aaaaa/log {asked}",
        f"1 | train-r1-1-bbbbb/log {asked}",
        f"1 | train-r1-1-ccccc/log {asked}",
    ]


def test_all_ranks_are_followed_until_the_last_has_ended(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that starts meanwhile is followed too."""
    late = pod("train-r1-2-ddddd", 2, "2026-01-01T00:05:00Z")
    looks = iter([LIVE, [*LIVE[:3], late]])
    ended = [{**each, "status": {"phase": "Succeeded"}} for each in [*LIVE[:3], late]]
    monkeypatch.setattr(Answers, "pods", lambda self: next(looks, ended))
    read = b"".join(all_logs(cluster, plan, Wanted(follow=True))).decode().splitlines()
    assert sorted(line.split("/log")[0] for line in read) == [
        "0 | train-r1-0-aaaaa",
        "1 | train-r1-1-bbbbb",
        "1 | train-r1-1-ccccc",
        "2 | train-r1-2-ddddd",
    ]


def test_logs_that_a_busy_api_server_sends_late_are_followed_to_their_end(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = [{**each, "status": {"phase": "Succeeded"}} for each in LIVE[:3]]
    whole = Answers.answer

    def late(self: Answers, body: bytes) -> None:
        time.sleep(0.3 if self.path.partition("?")[0].endswith("/log") else 0)
        whole(self, body)

    monkeypatch.setattr(Answers, "pods", lambda self: ended)
    monkeypatch.setattr(Answers, "answer", late)
    monkeypatch.setattr(logs, "_LOOK_SECONDS", 0.03)
    read = b"".join(all_logs(cluster, plan, Wanted(follow=True))).decode().splitlines()
    assert len(read) == 3


def test_a_job_none_of_whose_pods_has_started_is_named(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Answers, "pods", lambda self: LIVE[3:])
    with pytest.raises(BiremeError, match="no pod of train has started: bireme status train says why"):
        list(all_logs(cluster, plan, Wanted()))


def test_a_rank_that_is_not_there_is_named(cluster: Cluster, plan: Plan) -> None:
    with pytest.raises(BiremeError, match="train in namespace default has no pod with rank 24"):
        main_pod(cluster, plan, 24)


def test_a_pod_that_has_not_started_is_named(cluster: Cluster, plan: Plan) -> None:
    with pytest.raises(BiremeError, match="train-r1-2-ddddd has not started: its containers are being made"):
        log(cluster, plan, main_pod(cluster, plan, 16))


def test_a_node_that_cannot_be_reached_is_named(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Answers.answer

    def unreachable(self: Answers, body: bytes) -> None:
        if self.path.partition("?")[0].endswith("/log"):
            message = 'Get "https://n:10250/containerLogs": dial tcp: lookup n: no such host'
            whole(self, json.dumps({"message": message}).encode(), 500)
        else:
            whole(self, body)

    monkeypatch.setattr(Answers, "answer", unreachable)
    with pytest.raises(BiremeError) as refused:
        main_log(cluster, plan)
    assert str(refused.value).startswith("train-r1-0-aaaaa runs on node n, whose kubelet the API server")
    assert "bireme status train shows" in str(refused.value)


def test_a_connection_that_is_lost_in_the_middle_is_told_in_a_sentence(
    cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Answers.answer

    def cut(self: Answers, body: bytes) -> None:
        if not self.path.partition("?")[0].endswith("/log"):
            whole(self, body)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + 100))
        self.end_headers()
        self.wfile.write(body)

    monkeypatch.setattr(Answers, "answer", cut)
    with pytest.raises(BiremeError, match="the connection to the cluster was lost in the middle"):
        main_log(cluster, plan)
