"""What workers say, quota of Kueue as plain objects, and answers of a stand-in for Prometheus."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from fractions import Fraction
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bireme.autoscale.cluster import RunningJob, running
from bireme.autoscale.sources import query, quotas, saving, unused
from bireme.clusters.api import Api
from bireme.core.errors import BiremeError
from tests.support import api_server

GPU = "nvidia.com/gpu"
SPEC = {"containers": [{"name": "trainer", "resources": {"limits": {GPU: "8"}, "requests": {"cpu": "4"}}}]}


def queue(gpus: int, used: int = 0, waiting: int = 0, **more: Any) -> dict[str, Any]:
    flavors = [{"name": "p5", "resources": [{"name": GPU, "nominalQuota": str(gpus)}]}]
    usage = [{"name": "p5", "resources": [{"name": GPU, "total": str(used), "borrowed": "0"}]}]
    groups = [{"coveredResources": [GPU], "flavors": flavors}, *more.get("groups", [])]
    return {
        "spec": {"resourceGroups": groups},
        "status": {"flavorsUsage": usage, "pendingWorkloads": waiting},
    }


def test_the_unused_quota_is_counted_in_workers() -> None:
    assert unused(queue(40), SPEC) == 5
    assert unused(queue(40, used=20), SPEC) == 2
    assert unused(queue(16, used=24), SPEC) == 0


def test_nothing_is_left_while_others_wait_in_the_queue() -> None:
    assert unused(queue(40, waiting=1), SPEC) == 0


def test_what_kueue_has_not_counted_yet_is_not_unused() -> None:
    assert unused(queue(40), SPEC, {GPU: Fraction(16)}) == 3
    assert unused(queue(40, used=24), SPEC, {GPU: Fraction(16)}) == 2


def test_the_scarcest_group_counts() -> None:
    cpus = [{"name": "any", "resources": [{"name": "cpu", "nominalQuota": "9"}]}]
    assert unused(queue(40, groups=[{"coveredResources": ["cpu"], "flavors": cpus}]), SPEC) == 2


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[Any], str]]:
    """``prometheus(data)`` is the address of a stand-in that answers every query with it."""

    def serve(data: Any) -> str:
        class Handler(api_server.Quiet):
            def do_GET(self) -> None:
                self.answer(json.dumps({"status": "success", "data": data}).encode())

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.enter_context(api_server.serving(server, tmp_path))
        return f"http://127.0.0.1:{server.server_port}"

    with ExitStack() as servers:
        yield serve


def vector(*values: str) -> dict[str, Any]:
    return {"resultType": "vector", "result": [{"metric": {}, "value": [0, value]} for value in values]}


def test_a_query_gives_one_number(prometheus: Callable[[Any], str]) -> None:
    assert query(prometheus(vector("12.5")), "queue_length") == 12.5
    assert query(prometheus({"resultType": "scalar", "result": [0, "3"]}), "scalar(3)") == 3


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (vector(), "gives 0 series"),
        (vector("1", "2"), "gives 2 series; write it so that it gives one"),
        (vector("NaN"), "gives NaN, which is no number of workers"),
        ({}, "gives nothing for 'queue_length'"),
    ],
)
def test_a_query_without_one_number_is_told(
    prometheus: Callable[[Any], str], data: Any, sentence: str
) -> None:
    with pytest.raises(BiremeError, match=sentence):
        query(prometheus(data), "queue_length")


def test_a_metric_without_prometheus_is_told() -> None:
    with pytest.raises(BiremeError, match="set --prometheus"):
        query("", "queue_length")
    with pytest.raises(BiremeError, match=r"Prometheus at http://127\.0\.0\.1:1 gives nothing"):
        query("http://127.0.0.1:1", "queue_length")


def elastic(size: int, name: str = "a", queue: str = "") -> RunningJob:
    """A job whose workers tell their status at port 9464."""
    trainer = {"name": "trainer", "ports": [{"name": "metrics", "containerPort": 9464}]}
    live = {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": "a",
            "labels": {"kueue.x-k8s.io/queue-name": queue},
            "annotations": {"bireme/autoscale": '{"min": 1, "max": 8}'},
        },
        "spec": {"completions": size, "template": {"spec": {"containers": [trainer]}}},
    }
    pods = [
        {
            "metadata": {
                "ownerReferences": [{"uid": "a"}],
                "labels": {"batch.kubernetes.io/job-completion-index": str(number)},
            },
            "spec": {},
            "status": {"podIP": f"10.0.0.{number}", "conditions": [{"type": "Ready", "status": "True"}]},
        }
        for number in range(size)
    ]
    ((job,), _) = running([live], pods)
    return job


def test_one_worker_that_saves_is_enough() -> None:
    def ask(_: str, pod: Mapping[str, Any], port: int, path: str) -> Mapping[str, Any]:
        return {"saving": (pod["status"]["podIP"], port) == ("10.0.0.7", 9464)}

    assert saving(ask, [elastic(8)]) == {"team/a"}
    assert saving(ask, [elastic(7)]) == set()


def test_workers_that_nobody_reaches_cost_few_time_outs() -> None:
    asked = []

    def ask(_: str, pod: Mapping[str, Any], port: int, path: str) -> None:
        asked.append(pod["status"]["podIP"])

    assert saving(ask, [elastic(100)]) == set()
    assert len(asked) == 4


def test_a_queue_is_asked_for_once_however_many_jobs_are_in_it(tmp_path: Path) -> None:
    asked = []

    class Handler(api_server.Quiet):
        def do_GET(self) -> None:
            asked.append(self.path.rpartition("/")[2])
            found = {"spec": {"clusterQueue": "all"}} if "localqueues" in self.path else queue(40)
            self.answer(json.dumps({"metadata": {"name": "all"}, **found}).encode())

    with api_server.serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler), tmp_path) as kubeconfig:
        left = quotas(Api(kubeconfig), [elastic(2, name, team) for name, team in QUEUED])
    assert left.keys() == {f"team/{name}" for name, _ in QUEUED}
    assert sorted(asked) == ["all", "speech", "vision"]


QUEUED = [("a", "vision"), ("b", "vision"), ("c", "speech")]
