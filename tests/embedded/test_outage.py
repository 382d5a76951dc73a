"""The API server goes away and comes back while the real controller of charts/autoscaler works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bireme.helm import Renderer
from bireme.live.deploy import Deployer
from bireme.live.release import Releases
from bireme.plan.instances import Instance
from bireme.testing.charts import RequestFor
from bireme.tools import Toolbox
from tests.embedded.addons import OwnCluster
from tests.embedded.elastic_jobs import BIREME, REGISTRY, TYPE, options, service
from tests.support import controllers, faults
from tests.support.waiting import until


@pytest.mark.whole
def test_the_controller_goes_on_when_the_api_server_comes_back(
    own_cluster: OwnCluster,
    toolbox: Toolbox,
    renderer: Renderer,
    instances: Mapping[str, Instance],
    request_for: RequestFor,
) -> None:
    """The API server is killed when a job may grow, and when one has to give way; nobody else notices."""
    namespace = "/api/v1/namespaces/default"
    with own_cluster("outage", {TYPE: 3, "cpu": 1}) as cluster:
        deployer = Deployer(cluster, Releases(cluster, toolbox), renderer, instances)

        def install(chart: str, name: str, **given: Any) -> None:
            deployer.install(request_for(chart, release=name, namespace="default", **given), 60)

        def counts() -> list[int]:
            jobs = cluster.api.get("/apis/batch/v1/namespaces/default/jobs")["items"]
            return [job["spec"]["parallelism"] for job in jobs]

        def trains() -> set[str]:
            selector = "app.kubernetes.io/component=worker"
            pods = cluster.api.get(f"{namespace}/pods", labelSelector=selector)["items"]
            return {pod["metadata"]["uid"] for pod in pods if pod["status"].get("phase") == "Running"}

        install("autoscaler", "autoscaler", sets=["everySeconds=1", REGISTRY])
        with controllers.running(cluster, "autoscaler", "default", BIREME) as program:
            log = program.log.read_text

            def outage() -> None:
                said = len(log())
                with faults.without_api_server(cluster):
                    until(lambda: " trying again: " in log()[said:], what=log)
                until(lambda: log().endswith(" leading\n") or " → " in log()[said:], what=log)

            for name in ("first", "second"):
                install(
                    "torch-elastic",
                    name,
                    instance=TYPE,
                    sets=options("elastic.autoscale.max=1", workers=1)["sets"],
                )
            until(lambda: len(trains()) == 2, what=log)
            before = trains()
            bounds = {"bireme/autoscale": '{"min": 1, "max": 3, "cooldown": 0}'}
            job = "/apis/batch/v1/namespaces/default/jobs/second-r1"
            cluster.api.patch(job, {"metadata": {"annotations": bounds}})
            outage()
            until(lambda: counts() == [1, 2] and len(trains()) == 3, what=log)

            urgent = {"metadata": {"name": "urgent"}, "value": 1000, "preemptionPolicy": "Never"}
            cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", urgent)
            cluster.api.create(f"{namespace}/pods", service("service", priorityClassName="urgent"))
            outage()
            pod = f"{namespace}/pods/service"
            until(lambda: cluster.api.get(pod)["status"]["phase"] == "Running", what=log)
            assert counts() == [1, 1]
            assert trains() == before, "those that trained all the time go on"
