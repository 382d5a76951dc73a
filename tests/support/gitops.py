"""What the tests of Flux and of Argo CD share: a cluster, a registry with packed charts, and what runs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import package
import yaml

from bireme.clusters.embedded import EmbeddedCluster, EmbeddedProvider
from bireme.paths import Paths
from bireme.tools import Toolbox
from tests.support import registry
from tests.support.flux import until

JOBS = "/apis/batch/v1/namespaces/default/jobs"
_WATCHED = (
    JOBS,
    "/apis/apps/v1/namespaces/default/statefulsets",
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/secrets",
    "/api/v1/namespaces/default/services",
)
_WORKERS = "app.kubernetes.io/instance={},app.kubernetes.io/component!=member"


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
        """The names of its Jobs."""
        found = self.cluster.api.get(JOBS, labelSelector=f"app.kubernetes.io/instance={release}")
        return {each["metadata"]["name"] for each in found["items"]}

    def is_gone(self, release: str) -> None:
        """Wait until nothing is left of the release."""
        until(lambda: not self.objects(release) and not self.pods(release), what=lambda: f"{release} to go")


@contextmanager
def site(
    paths: Paths, toolbox: Toolbox, folder: Path, charts: Sequence[str], nodes: Mapping[str, int]
) -> Iterator[Site]:
    """A cluster of its own with such nodes and the claim efsvol, and these charts in a registry."""
    archives = {chart: package.pack_chart(toolbox, paths.charts / chart, folder, 0) for chart in charts}
    provider = EmbeddedProvider(replace(paths, state=folder / "state"), toolbox)
    with registry.serving(toolbox, folder / "registry") as name:
        package.push(toolbox, list(archives.values()), f"oci://{name}/charts", plain_http=True)
        cluster = provider.up(f"site-{uuid.uuid4().hex[:6]}", nodes)
        try:
            cluster.add_claim("efsvol", "default")
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
