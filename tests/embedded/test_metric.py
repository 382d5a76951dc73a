"""A job that follows a metric: the real controller asks a real Prometheus, which scrapes a real exporter."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import ThreadingHTTPServer

import pytest

from bireme.autoscale.sources import query
from bireme.clusters.embedded import EmbeddedCluster
from bireme.clusters.programs import Program
from bireme.core.errors import BiremeError
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from bireme.tools import Toolbox
from tests.embedded.elastic_jobs import BIREME, REGISTRY, elastic, workers
from tests.support import api_server, controllers
from tests.support.prometheus import Prometheus, scraping
from tests.support.waiting import until

pytestmark = pytest.mark.whole


@dataclass
class Backlog:
    """An exporter of one metric, the length of a queue."""

    length: int = 0
    port: int = 0


@pytest.fixture(scope="module")
def backlog() -> Iterator[Backlog]:
    found = Backlog()

    class Handler(api_server.Quiet):
        def do_GET(self) -> None:
            text = f"# TYPE queue_length gauge\nqueue_length {found.length}\n"
            self.answer(text.encode(), Content_Type="text/plain; version=0.0.4")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield found
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def prometheus(
    toolbox: Toolbox, backlog: Backlog, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    target = {"targets": [f"127.0.0.1:{backlog.port}"]}
    with scraping(toolbox, tmp_path_factory.mktemp("prometheus"), target) as running:
        yield running


@pytest.fixture(scope="module")
def controller(
    cluster: EmbeddedCluster,
    new_release: Callable[[], InstalledRelease],
    test_namespace: str,
    prometheus: Prometheus,
) -> Iterator[Program]:
    """charts/autoscaler, which knows where Prometheus is; its controller runs as a process."""
    release = new_release()
    sets = [
        f"watchNamespace={test_namespace}",
        "everySeconds=1",
        REGISTRY,
        f"prometheus.url={prometheus.url}",
    ]
    release.install("autoscaler", "autoscaler", test_namespace, sets=sets)
    with controllers.running(cluster, "autoscaler", test_namespace, BIREME) as program:
        yield program
    release.uninstall()


def test_a_job_has_the_workers_that_a_query_asks_for_and_keeps_them_without_one(
    controller: Program, release: ReleaseFactory, backlog: Backlog, prometheus: Prometheus
) -> None:
    backlog.length = 20
    asked = "max_over_time(queue_length[3s])"
    metric = {"query": asked, "perWorker": 10}

    def is_known() -> bool:
        with contextlib.suppress(BiremeError):  # before the first scrape
            return query(prometheus.url, asked) == 20
        return False

    until(is_known, what="the length of the queue")
    job = elastic(release, "elastic.autoscale.max=4", values={"elastic": {"autoscale": {"metric": metric}}})
    assert workers(job) == 2
    backlog.length = 35
    until(lambda: workers(job) == 4, what=controller.log.read_text)
    backlog.length = 5
    until(lambda: workers(job) == 1, what=controller.log.read_text)
    backlog.length = 25
    until(lambda: workers(job) == 3, what=controller.log.read_text)
    prometheus.program.stop()
    sentence = f"{job.namespace}/{job.name}-r1: Prometheus at {prometheus.url} gives nothing"
    until(lambda: sentence in controller.log.read_text(), what=controller.log.read_text)
    assert workers(job) == 3
