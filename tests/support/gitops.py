"""What the tests of Flux and of Argo CD share: jobs, a cluster, a registry with charts, and what runs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import package
import pytest
import yaml

from bireme.clusters.embedded import EmbeddedCluster, EmbeddedProvider
from bireme.core.paths import Paths
from bireme.live.release import Releases
from bireme.tools import Toolbox
from tests.support import controllers, registry
from tests.support.waiting import until

TYPE = "p4d.24xlarge"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
_MPI_JOBS = "/apis/kubeflow.org/v2beta1/namespaces/default/mpijobs"
_WATCHED = (
    JOBS,
    _MPI_JOBS,
    "/apis/apps/v1/namespaces/default/statefulsets",
    "/apis/apps/v1/namespaces/default/daemonsets",
    "/apis/apps/v1/namespaces/default/deployments",
    "/api/v1/namespaces/default/persistentvolumeclaims",
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/secrets",
    "/api/v1/namespaces/default/services",
)
_WORKERS = "app.kubernetes.io/instance={},app.kubernetes.io/component!=member"


@dataclass(frozen=True)
class Job:
    """A job as a team commits it: a chart and values, with two workers."""

    chart: str
    values: Mapping[str, Any]
    is_elastic: bool = False


CASES = {
    "torch-elastic": Job(
        "torch-elastic", {"instance": {"type": TYPE}, "workers": 2, "elastic": {"maxWorkers": 4}}, True
    ),
    # It takes another number of workers with a new run only.
    "mpijob": Job(
        "mpi-training", {"instance": {"type": TYPE}, "workers": 2, "mpi": {"orchestrator": "MPIJob"}}
    ),
}
CHARTS = ("torch-elastic", "mpi-training")
EACH_JOB = pytest.mark.parametrize("case", CASES)


@dataclass(frozen=True)
class Site:
    """A cluster, and charts: in a registry, and as archives."""

    cluster: EmbeddedCluster
    charts: str
    archives: Mapping[str, Path]

    def version(self, chart: str) -> str:
        """The version of a chart in the registry."""
        return self.archives[chart].stem.removeprefix(f"{chart}-")

    def pods(self, release: str) -> dict[str, str]:
        """The pods of a release that run, without those of etcd: names and identities."""
        found = self.cluster.api.get(
            "/api/v1/namespaces/default/pods", labelSelector=_WORKERS.format(release)
        )
        return {
            pod["metadata"]["name"]: pod["metadata"]["uid"]
            for pod in found["items"]
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        }

    def objects(self, release: str) -> dict[str, str]:
        """What the release consists of, each with a text that any change of it changes."""
        label = f"app.kubernetes.io/instance={release}"
        return {
            f"{path}/{item['metadata']['name']}": _content(item)
            for path in _WATCHED
            for item in self.cluster.api.get(path, labelSelector=label)["items"]
        }

    def jobs(self, release: str) -> set[str]:
        """The names of its Jobs and MPIJobs."""
        label = f"app.kubernetes.io/instance={release}"
        found = [self.cluster.api.get(path, labelSelector=label)["items"] for path in (JOBS, _MPI_JOBS)]
        return {item["metadata"]["name"] for items in found for item in items}

    def is_gone(self, release: str) -> None:
        """Wait until nothing is left of the release."""
        until(lambda: not self.objects(release) and not self.pods(release), what=lambda: f"{release} to go")


@contextmanager
def site(
    paths: Paths, toolbox: Toolbox, folder: Path, charts: Sequence[str], nodes: Mapping[str, int]
) -> Iterator[Site]:
    """A cluster with such nodes, the claim efsvol and mpi-operator, and these charts in a registry."""
    archives = {chart: package.pack_chart(toolbox, paths.charts / chart, folder, 0) for chart in charts}
    provider = EmbeddedProvider(replace(paths, state=folder / "state"), toolbox)
    with registry.serving(toolbox, folder / "registry") as name:
        package.push(toolbox, list(archives.values()), f"oci://{name}/charts", plain_http=True)
        cluster = provider.up(f"site-{uuid.uuid4().hex[:6]}", nodes)
        try:
            cluster.add_claim("efsvol", "default")
            operator = (paths.charts / "mpijob", "mpijob", "mpi-operator")
            Releases(cluster, toolbox).install(*operator, {}, create_namespace=True)
            with controllers.running(cluster, "mpijob", "mpi-operator", toolbox.path("mpi-operator")):
                yield Site(cluster, f"oci://{name}/charts", archives)
        finally:
            provider.down(cluster.name)


def _content(item: Mapping[str, Any]) -> str:
    """All of an object but what its controllers and the API server keep in it."""
    kept = {key: each for key, each in item.items() if key not in ("metadata", "status")}
    about = item["metadata"]
    return yaml.safe_dump(
        [kept, about["uid"], about.get("labels"), about.get("annotations"), about.get("generation")]
    )
