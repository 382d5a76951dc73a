"""Jobs that the real Flux installs from a registry and from git, by the manifests of docs/gitops.yaml."""

from __future__ import annotations

import copy
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.clusters import start_addon
from bireme.deploy import Deployer
from bireme.helm import Renderer
from bireme.instances import Instance
from bireme.paths import Paths
from bireme.release import Releases
from bireme.tools import Toolbox
from tests.support import git_server, gitops
from tests.support.flux import Flux, path_of, until
from tests.support.gitops import JOBS, Site

pytestmark = [pytest.mark.embedded, pytest.mark.whole]
ROOT = Path(__file__).parents[2]


def manifests(document: str) -> dict[str, Any]:
    """The objects of a document by their kinds."""
    return {each["kind"]: each for each in yaml.safe_load_all((ROOT / "docs" / document).read_text())}


MANIFESTS = manifests("gitops.yaml")
TYPE = "p4d.24xlarge"
JOB_VALUES: dict[str, dict[str, Any]] = {
    "torch-elastic": {"instance": {"type": TYPE}, "workers": 2, "maxWorkers": 4},
    "mpi-training": {"instance": {"type": TYPE}, "workers": 2},
    "paddle": {"workers": 2, "jobClaim": {"existingClaim": "efsvol"}},
}
EACH_CHART = pytest.mark.parametrize("chart", sorted(JOB_VALUES))
# An MPI job takes another number of workers with a new run only.
ELASTIC_CHARTS = pytest.mark.parametrize("chart", ["paddle", "torch-elastic"])
Object = dict[str, Any]


@dataclass(frozen=True)
class Team(Site):
    """A cluster that Flux looks after, and the charts it installs."""

    flux: Flux
    deployer: Deployer

    def source(self, chart: str) -> Object:
        """The OCIRepository of docs/gitops.yaml for a chart of this machine's registry."""
        item: Object = copy.deepcopy(MANIFESTS["OCIRepository"])
        item["metadata"]["name"] = chart
        item["spec"] |= {"url": f"{self.charts}/{chart}", "ref": {"tag": self.version(chart)}}
        item["spec"]["insecure"] = True
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

    def as_planned(self, release: str) -> None:
        """Wait until the cluster has what the release plans."""

        def differences() -> str:
            found = self.deployer.status(release, "default").differences
            return "; ".join(each.sentence for each in found)

        until(lambda: not differences(), what=differences)


@pytest.fixture(scope="module")
def team(
    bireme_paths: Paths,
    toolbox: Toolbox,
    renderer: Renderer,
    instances: Mapping[str, Instance],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Team]:
    nodes = {TYPE: 4, "cpu": 2}
    with gitops.site(bireme_paths, toolbox, tmp_path_factory.mktemp("site"), list(JOB_VALUES), nodes) as site:
        controller = start_addon("flux", site.cluster, toolbox)
        releases = Releases(site.cluster, toolbox)
        deployer = Deployer(site.cluster, releases, renderer, instances)
        yield Team(site.cluster, site.charts, site.archives, Flux(site.cluster), deployer)
        controller.check_alive()


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
    team.is_gone(name)


@EACH_CHART
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


@ELASTIC_CHARTS
def test_a_job_from_a_registry_is_scaled_and_removed(team: Team, flux: Flux, chart: str) -> None:
    path = team.install(chart, JOB_VALUES[chart])
    team.as_planned("run")
    first = team.pods("run")
    flux.change(path, values={"workers": 3})
    flux.ready(path)
    team.as_planned("run")
    scaled = team.pods("run")
    assert first.items() <= scaled.items(), "those that train go on"
    assert len(scaled) == len(first) + 1
    flux.change(path, values={"workers": 2})
    flux.ready(path)
    team.as_planned("run")
    assert team.pods("run") == first
    flux.remove(path)
    team.is_gone("run")


@EACH_CHART
def test_a_new_run_is_a_commit_that_suspends_and_one_that_raises_run(
    team: Team, flux: Flux, chart: str
) -> None:
    path = team.install(chart, JOB_VALUES[chart])
    team.as_planned("run")
    first = team.pods("run")
    flux.change(path, values={"env": {"SEED": "1"}})
    assert "which Kubernetes does not change in place" in flux.refused(path)
    flux.change(path, values={"run": 2})
    assert "is not stopped, and two runs must not write one checkpoint" in flux.refused(path)
    assert team.pods("run") == first, "nothing is stopped that nobody asked to stop"
    flux.change(path, values={"run": None, "env": None, "suspend": True})
    flux.ready(path)
    # The workers may still write their checkpoints: Flux tries again until they are gone.
    flux.change(path, values={"run": 2, "workers": 3, "env": {"SEED": "1"}, "suspend": None})
    flux.ready(path)
    team.as_planned("run")
    second = team.pods("run")
    assert len(second) == len(first) + 1
    assert all("-r2-" in name for name in second)
    assert all(name.endswith("-r2") for name in team.jobs("run"))
    flux.remove(path)
    team.is_gone("run")


@dataclass(frozen=True)
class Committed:
    """A job that a team installs by commits, with the HelmRelease of docs/gitops-git.yaml."""

    team: Team
    repository: git_server.Repository
    chart: str
    name: str
    source: str
    jobs: str

    def commit(self, **values: Any) -> None:
        """Commit the HelmRelease with these values too, and wait until it is applied."""
        job = manifests("gitops-git.yaml")["HelmRelease"]
        job["spec"]["chart"]["spec"]["chart"] = f"./charts/{self.chart}"
        job["spec"]["upgrade"]["strategy"]["retryInterval"] = "3s"
        job["spec"]["values"] = JOB_VALUES[self.chart] | values
        self.repository.commit("Train", {f"jobs/{self.name}.yaml": yaml.safe_dump(job)})
        self._deliver()

    def revert(self) -> None:
        """Take the last commit back."""
        self.repository.revert()
        self._deliver()

    def remove(self) -> None:
        """Commit the end of the job."""
        (self.repository.folder / f"jobs/{self.name}.yaml").unlink()
        self.repository.commit("Done", {})
        self._sync()
        self.team.is_gone(self.name)

    def _deliver(self) -> None:
        """Wait until the cluster has what was committed."""
        self._sync()
        self.team.flux.ready(path_of("HelmRelease", "helm.toolkit.fluxcd.io/v2", self.name))
        self.team.as_planned(self.name)

    def pods(self) -> dict[str, str]:
        return self.team.pods(self.name)

    def _sync(self) -> None:
        self.team.flux.sync(self.source)
        self.team.flux.sync(self.jobs)


@pytest.fixture
def committed(team: Team, flux: Flux, chart: str, tmp_path: Path) -> Iterator[Committed]:
    """A job without a first commit, in a repository that has its chart unpacked."""
    documents = manifests("gitops-git.yaml")
    with git_server.serving(tmp_path / "jobs") as repository:
        with tarfile.open(team.archives[chart]) as archive:
            archive.extractall(repository.folder / "charts", filter="data")
        repository.commit("Charts", {"jobs/README.md": "Jobs\n"})
        documents["GitRepository"]["spec"]["url"] = repository.url
        source, jobs = (flux.apply(documents[kind]) for kind in ("GitRepository", "Kustomization"))
        yield Committed(team, repository, chart, documents["HelmRelease"]["metadata"]["name"], source, jobs)
        flux.clear()


@ELASTIC_CHARTS
def test_commits_install_scale_take_back_and_remove_a_job(committed: Committed) -> None:
    committed.commit()
    first = committed.pods()
    assert first
    committed.commit(workers=3)
    assert len(committed.pods()) == len(first) + 1
    committed.revert()
    assert committed.pods() == first, "those that trained from the start"
    committed.remove()


@pytest.mark.parametrize("chart", ["mpi-training"])
def test_commits_give_an_mpi_job_another_number_of_workers_and_take_it_back(committed: Committed) -> None:
    committed.commit()
    assert len(committed.pods()) == 2
    for run, workers, before in ((2, 3, 2), (3, 2, 3)):
        committed.commit(run=run - 1, workers=before, suspend=True)
        committed.commit(run=run, workers=workers)
        assert len(committed.pods()) == workers
    committed.remove()
