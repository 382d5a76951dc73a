"""Jobs that the real Flux installs from a registry and from git, by the manifests of docs/gitops.yaml."""

from __future__ import annotations

import copy
import subprocess
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import package
import pytest
import yaml

from bireme.clusters import start_addon
from bireme.clusters.embedded import EmbeddedCluster, EmbeddedProvider
from bireme.deploy import Deployer
from bireme.helm import Renderer
from bireme.instances import Instance
from bireme.paths import Paths
from bireme.release import Releases
from bireme.tools import Toolbox
from tests.support import git_server, registry
from tests.support.flux import Flux, path_of, until

pytestmark = [pytest.mark.embedded, pytest.mark.whole]
ROOT = Path(__file__).parents[2]


def manifests(document: str) -> dict[str, Any]:
    """The objects of a document by their kinds."""
    return {each["kind"]: each for each in yaml.safe_load_all((ROOT / "docs" / document).read_text())}


MANIFESTS = manifests("gitops.yaml")
JOBS = "/apis/batch/v1/namespaces/default/jobs"
WATCHED = (
    JOBS,
    "/apis/apps/v1/namespaces/default/statefulsets",
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/secrets",
    "/api/v1/namespaces/default/services",
)
TYPE = "p4d.24xlarge"
WORKERS = "app.kubernetes.io/instance={},app.kubernetes.io/component!=member"
Object = dict[str, Any]


@dataclass(frozen=True)
class Team:
    """A cluster that Flux looks after, and the charts it installs: in a registry, and as archives."""

    cluster: EmbeddedCluster
    flux: Flux
    deployer: Deployer
    charts: str
    archives: Mapping[str, Path]

    def source(self, chart: str) -> Object:
        """The OCIRepository of docs/gitops.yaml for a chart of this machine's registry."""
        item: Object = copy.deepcopy(MANIFESTS["OCIRepository"])
        item["metadata"]["name"] = chart
        version = self.archives[chart].stem.removeprefix(f"{chart}-")
        item["spec"] |= {"url": f"{self.charts}/{chart}", "ref": {"tag": version}, "insecure": True}
        return item

    def release(self, name: str, chart: str, values: Mapping[str, Any]) -> Object:
        """The HelmRelease of docs/gitops.yaml for another chart with other values."""
        item: Object = copy.deepcopy(MANIFESTS["HelmRelease"])
        item["metadata"]["name"] = name
        item["spec"] |= {"chartRef": {"kind": "OCIRepository", "name": chart}, "values": dict(values)}
        item["spec"]["upgrade"]["strategy"]["retryInterval"] = "3s"
        return item

    def install(self, chart: str, values: Mapping[str, Any]) -> str:
        """Apply source and release, called run; returns the path of the release once it is installed."""
        self.flux.apply(self.source(chart))
        path = self.flux.apply(self.release("run", chart, values))
        self.flux.ready(path)
        return path

    def pods(self, release: str) -> dict[str, str]:
        """The pods of a release that run, without those of etcd: names and identities."""
        found = self.cluster.api.get("/api/v1/namespaces/default/pods", labelSelector=WORKERS.format(release))
        return {
            pod["metadata"]["name"]: pod["metadata"]["uid"]
            for pod in found["items"]
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        }

    def as_planned(self, release: str) -> None:
        """Wait until the cluster has what the release plans."""

        def differences() -> str:
            found = self.deployer.status(release, "default").differences
            return "; ".join(each.sentence for each in found)

        until(lambda: not differences(), what=differences)

    def objects(self, release: str) -> dict[str, str]:
        """What the release consists of, each with a text that any change of it changes."""
        label = f"app.kubernetes.io/instance={release}"
        return {
            f"{path}/{item['metadata']['name']}": _content(item)
            for path in WATCHED
            for item in self.cluster.api.get(path, labelSelector=label)["items"]
        }


def _content(item: Object) -> str:
    """All of an object but what its controllers and the API server keep in it."""
    kept = {key: each for key, each in item.items() if key not in ("metadata", "status")}
    about = item["metadata"]
    return yaml.safe_dump(
        [kept, about["uid"], about.get("labels"), about.get("annotations"), about.get("generation")]
    )


@pytest.fixture(scope="module")
def team(
    bireme_paths: Paths,
    toolbox: Toolbox,
    renderer: Renderer,
    instances: Mapping[str, Instance],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Team]:
    packed, helm = tmp_path_factory.mktemp("charts"), str(toolbox.path("helm"))
    archives = {
        chart: package.pack_chart(toolbox, bireme_paths.charts / chart, packed, 0)
        for chart in ("torch-elastic", "mpi-training", "paddle")
    }
    provider = EmbeddedProvider(replace(bireme_paths, state=tmp_path_factory.mktemp("flux")), toolbox)
    with registry.serving(toolbox, tmp_path_factory.mktemp("registry") / "data") as name:
        for archive in archives.values():
            command = [helm, "push", str(archive), f"oci://{name}/charts", "--plain-http"]
            subprocess.run(command, check=True, capture_output=True)
        cluster = provider.up(f"flux-{uuid.uuid4().hex[:6]}", {TYPE: 4, "cpu": 2})
        try:
            controller = start_addon("flux", cluster, toolbox)
            deployer = Deployer(cluster, Releases(cluster, toolbox), renderer, instances)
            yield Team(cluster, Flux(cluster), deployer, f"oci://{name}/charts", archives)
            controller.check_alive()
        finally:
            provider.down(cluster.name)


@pytest.fixture
def flux(team: Team) -> Iterator[Flux]:
    yield team.flux
    team.flux.clear()


def test_a_release_from_a_registry_is_installed_scaled_and_removed(team: Team, flux: Flux) -> None:
    flux.apply(team.source("torch-elastic"))
    manifest = copy.deepcopy(MANIFESTS["HelmRelease"])
    name = manifest["metadata"]["name"]
    path = flux.apply(manifest)
    flux.ready(path)
    team.as_planned(name)
    first = team.pods(name)
    assert len(first) == manifest["spec"]["values"]["workers"]
    flux.change(path, values={"workers": 3})
    flux.ready(path)
    team.as_planned(name)
    scaled = team.pods(name)
    assert len(scaled) == 3
    assert first.items() <= scaled.items(), "those that trained go on"
    flux.remove(path)
    until(lambda: not team.objects(name) and not team.pods(name), what=lambda: str(team.objects(name)))


JOB_VALUES: dict[str, dict[str, Any]] = {
    "torch-elastic": {"instance": {"type": TYPE}, "workers": 2},
    "mpi-training": {"instance": {"type": TYPE}, "workers": 2},
    "paddle": {},
}


@pytest.mark.parametrize("chart", sorted(JOB_VALUES))
def test_a_second_sync_changes_nothing(team: Team, flux: Flux, chart: str) -> None:
    path = team.install(chart, JOB_VALUES[chart])
    team.as_planned("run")
    objects, pods = team.objects("run"), team.pods("run")
    (revision,) = flux.ready(path)["history"]
    assert objects
    assert pods
    (again,) = flux.sync(path)["history"]
    assert again["version"] == revision["version"] == 1
    assert team.objects("run") == objects
    assert team.pods("run") == pods


def test_what_another_changed_in_a_job_is_changed_back(team: Team, flux: Flux) -> None:
    path = team.install("torch-elastic", JOB_VALUES["torch-elastic"])
    job = f"{JOBS}/run-r1"
    team.cluster.api.patch(job, {"spec": {"completions": 3, "parallelism": 3}})
    flux.sync(path)
    until(lambda: team.cluster.api.get(job)["spec"]["parallelism"] == 2, what="two workers again")
    team.as_planned("run")


def test_a_new_run_is_a_commit_that_suspends_and_one_that_raises_run(team: Team, flux: Flux) -> None:
    path = team.install("torch-elastic", JOB_VALUES["torch-elastic"])
    team.as_planned("run")
    first = team.pods("run")
    flux.change(path, values={"env": {"SEED": "1"}})
    assert "which Kubernetes does not change in place: set run=2" in flux.refused(path)
    flux.change(path, values={"run": 2})
    assert "run run-r1 is not stopped, and two runs must not write one checkpoint" in flux.refused(path)
    assert team.pods("run") == first, "nothing is stopped that nobody asked to stop"
    flux.change(path, values={"run": None, "env": None, "suspend": True})
    flux.ready(path)
    # The workers may still write their checkpoints: Flux tries again until they are gone.
    flux.change(path, values={"run": 2, "env": {"SEED": "1"}, "suspend": None})
    flux.ready(path)
    team.as_planned("run")
    assert {name.rsplit("-", 2)[0] for name in team.pods("run")} == {"run-r2"}
    assert team.cluster.api.find(f"{JOBS}/run-r1") is None


def test_commits_install_scale_take_back_and_remove_a_job(team: Team, flux: Flux, tmp_path: Path) -> None:
    documents = manifests("gitops-git.yaml")
    job = documents["HelmRelease"]
    name = job["metadata"]["name"]
    with git_server.serving(tmp_path / "jobs") as repository:
        with tarfile.open(team.archives["torch-elastic"]) as archive:
            archive.extractall(repository.folder / "charts", filter="data")
        repository.commit("Train", {f"jobs/{name}.yaml": yaml.safe_dump(job), "jobs/README.md": "Jobs\n"})
        documents["GitRepository"]["spec"]["url"] = repository.url
        source, jobs = (flux.apply(documents[kind]) for kind in ("GitRepository", "Kustomization"))

        def deliver() -> None:
            flux.sync(source)
            flux.sync(jobs)

        release = path_of("HelmRelease", job["apiVersion"], name)
        flux.ready(jobs)
        flux.ready(release)
        team.as_planned(name)
        first = team.pods(name)
        assert len(first) == 2

        job["spec"]["values"]["workers"] = 3
        repository.commit("One worker more", {f"jobs/{name}.yaml": yaml.safe_dump(job)})
        deliver()
        flux.ready(release)
        team.as_planned(name)
        assert len(team.pods(name)) == 3

        repository.revert()
        deliver()
        flux.ready(release)
        team.as_planned(name)
        assert team.pods(name) == first, "the two that trained from the start"

        (repository.folder / f"jobs/{name}.yaml").unlink()
        repository.commit("Done", {})
        deliver()
        until(lambda: not team.objects(name) and not team.pods(name), what=lambda: str(team.objects(name)))
