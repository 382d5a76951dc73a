"""Gangs: the real schedulers of Volcano and of Kubernetes start a job whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.clusters.base import Cluster
from bireme.tools import Toolbox
from tests.embedded.addons import OwnCluster
from tests.embedded.csi import running
from tests.runtime.etcd_servers import free_port
from tests.support import waiting

pytestmark = pytest.mark.whole
KINDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PODS, JOBS = "/api/v1/namespaces/default/pods", "/apis/batch/v1/namespaces/default/jobs"
GROUPS = {"volcano": "scheduling.volcano.sh/v1beta1", "kubernetes": "scheduling.k8s.io/v1alpha2"}
GATES = {
    "kubeFeatureGates": "GenericWorkload=true,GangScheduling=true",
    "kubeRuntimeConfig": "scheduling.k8s.io/v1alpha2=true",
}
NODES = {"p4d.24xlarge": 5, "cpu": 1}
until = partial(waiting.until, seconds=180)


@contextlib.contextmanager
def volcano(cluster: Cluster, toolbox: Toolbox, folder: Path) -> Iterator[None]:
    """Volcano's scheduler at work for the cluster, with the kinds of its module."""
    source = toolbox.source("vc-scheduler") / "config/crd/volcano/bases"
    for kind in ("podgroups", "queues", "numatopologies"):
        (file,) = source.glob(f"*_{kind}.yaml")
        cluster.api.create(KINDS, yaml.safe_load(file.read_text()))
    listed = "/apis/scheduling.volcano.sh/v1beta1/queues"
    until(lambda: cluster.api.find(listed) is not None)
    queue = {"apiVersion": GROUPS["volcano"], "kind": "Queue", "metadata": {"name": "default"}}
    cluster.api.create(listed, queue | {"spec": {"weight": 1, "reclaimable": True}})
    cluster.api.patch(f"{listed}/default/status", {"status": {"state": "Open", "allocated": {}}})
    command: list[str | Path] = [
        toolbox.path("vc-scheduler"),
        f"--kubeconfig={cluster.kubeconfig}",
        "--leader-elect=false",
        f"--listen-address=127.0.0.1:{free_port()}",
        "--enable-healthz=false",
    ]
    with running(command, {"PATH": os.environ["PATH"]}, folder / "volcano.log") as process:
        yield
        assert process.poll() is None, (folder / "volcano.log").read_text()[-4000:]


@pytest.fixture(scope="module", params=["volcano", "kubernetes"])
def gang(
    request: pytest.FixtureRequest,
    own_cluster: OwnCluster,
    toolbox: Toolbox,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, Cluster]]:
    """The value of placement.gang, and a cluster with that scheduler."""
    folder, is_volcano = tmp_path_factory.mktemp("gang"), request.param == "volcano"
    with (
        own_cluster("gang", NODES, options=None if is_volcano else GATES) as cluster,
        volcano(cluster, toolbox, folder) if is_volcano else contextlib.nullcontext(),
    ):
        yield request.param, cluster


def workers(cluster: Cluster, release: str, component: str = "worker") -> list[dict[str, Any]]:
    selector = f"app.kubernetes.io/instance={release},app.kubernetes.io/component={component}"
    found: list[dict[str, Any]] = cluster.api.get(PODS, labelSelector=selector)["items"]
    return found


def on_nodes(cluster: Cluster, release: str, component: str = "worker") -> int:
    return sum("nodeName" in pod["spec"] for pod in workers(cluster, release, component))


@pytest.fixture
def install(gang: tuple[str, Cluster], render: Callable[..., Any]) -> Iterator[Callable[..., None]]:
    """Make the group and the job of a chart: ``install(release, chart, gang, sets)``; all go at the end."""
    _, cluster = gang
    made: list[str] = []

    def make(release: str, chart: str, way: str, *sets: str) -> None:
        chosen = [*sets, *([f"placement.gang={way}"] if way else [])]
        rendered = render(chart, release=release, namespace="default", instance="p4d.24xlarge", sets=chosen)
        for each in rendered.manifests:
            if each.kind in ("PodGroup", "Job", "ConfigMap") and "etcd" not in each.name:
                path = {
                    "Job": JOBS,
                    "ConfigMap": "/api/v1/namespaces/default/configmaps",
                    "PodGroup": f"/apis/{each['apiVersion']}/namespaces/default/podgroups",
                }[each.kind]
                cluster.api.create(path, each.thaw())
                made.append(f"{path}/{each.name}")

    yield make
    for path in reversed(made):
        cluster.api.delete(path, propagationPolicy="Background")
    until(lambda: not cluster.api.get(PODS)["items"])


CHARTS = {
    "torch-elastic": ("workers=3", "elastic.minWorkers=3"),
    "mpi-training": ("workers=3", "image.repository=r", "image.tag=t"),
}


def two(chart: str) -> list[str]:
    """The values of the chart for a job of two workers."""
    return [each.replace("=3", "=2") for each in CHARTS[chart]]


@pytest.mark.parametrize("chart", CHARTS)
def test_of_two_jobs_that_do_not_fit_together_one_starts_whole_one_waits(
    gang: tuple[str, Cluster], install: Callable[..., None], chart: str
) -> None:
    way, cluster = gang
    install("first", chart, way, *CHARTS[chart])
    until(lambda: on_nodes(cluster, "first") == 3)
    install("second", chart, way, *CHARTS[chart])
    # A later job that fits shows that the scheduler has looked at the second.
    install("third", chart, way, *two(chart))
    until(lambda: on_nodes(cluster, "third") == 2)
    assert len(workers(cluster, "second")) == 3
    assert on_nodes(cluster, "second") == 0
    cluster.api.delete(f"{JOBS}/first-r1", propagationPolicy="Background")
    until(lambda: on_nodes(cluster, "second") == 3)


@pytest.mark.parametrize("gang", ["volcano"], indirect=True)
@pytest.mark.parametrize("chart", CHARTS)
def test_a_gang_of_volcano_has_no_more_than_its_queue(
    gang: tuple[str, Cluster], install: Callable[..., None], chart: str
) -> None:
    way, cluster = gang
    queues = "/apis/scheduling.volcano.sh/v1beta1/queues"
    name = f"research-{chart}"
    capability = {"weight": 1, "reclaimable": True, "capability": {"nvidia.com/gpu": "16"}}
    queue = {"apiVersion": GROUPS["volcano"], "kind": "Queue", "metadata": {"name": name}}
    cluster.api.create(queues, queue | {"spec": capability})
    cluster.api.patch(f"{queues}/{name}/status", {"status": {"state": "Open", "allocated": {}}})
    install("beyond", chart, way, *CHARTS[chart], f"placement.queue={name}")
    install("within", chart, way, *two(chart), f"placement.queue={name}")
    until(lambda: on_nodes(cluster, "within") == 2)
    assert len(workers(cluster, "beyond")) == 3
    assert on_nodes(cluster, "beyond") == 0, "five nodes have room, the queue has not"
    # The default queue may use half of the cluster's memory, which is two and a half nodes.
    install("elsewhere", chart, way, *two(chart))
    until(lambda: on_nodes(cluster, "elsewhere") == 2)
    assert on_nodes(cluster, "beyond") == 0


@pytest.mark.parametrize("gang", ["volcano"], indirect=True)
def test_pservers_wait_with_their_trainers(gang: tuple[str, Cluster], install: Callable[..., None]) -> None:
    """Of the second job there is room for the pserver, and not for all trainers."""
    way, cluster = gang
    about = {"storageClassName": "", "accessModes": ["ReadWriteMany"]}
    volume = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": "/jobs"}, **about}
    claim = {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": "jobs", **about}
    for kind, path, spec in (
        ("PersistentVolume", "/api/v1/persistentvolumes", volume),
        ("PersistentVolumeClaim", "/api/v1/namespaces/default/persistentvolumeclaims", claim),
    ):
        cluster.api.create(
            path, {"apiVersion": "v1", "kind": kind, "metadata": {"name": "jobs"}, "spec": spec}
        )
    sets = ["workers=3", "paddle.pservers.count=1", "paddle.useGpu=true", "data.jobClaim.existingClaim=jobs"]

    def begun(release: str) -> tuple[int, int]:
        return on_nodes(cluster, release, "trainer"), on_nodes(cluster, release, "pserver")

    install("first", "paddle", way, *sets)
    until(lambda: begun("first") == (3, 1))
    install("second", "paddle", way, *sets)
    install("third", "torch-elastic", way, *two("torch-elastic"))
    until(lambda: on_nodes(cluster, "third") == 2)
    assert [len(workers(cluster, "second", role)) for role in ("trainer", "pserver")] == [3, 1]
    assert begun("second") == (0, 0)
    for job in ("first-r1", "first-ps-r1"):
        cluster.api.delete(f"{JOBS}/{job}", propagationPolicy="Background")
    until(lambda: begun("second") == (3, 1))


def test_without_a_gang_a_job_starts_in_part(gang: tuple[str, Cluster], install: Callable[..., None]) -> None:
    _, cluster = gang
    install("first", "torch-elastic", "", "workers=3")
    until(lambda: on_nodes(cluster, "first") == 3)
    install("second", "torch-elastic", "", "workers=3")
    until(lambda: on_nodes(cluster, "second") == 2)
