"""Jobs that the real Flux installs from a registry and from git, by the manifests of docs/gitops.yaml."""

from __future__ import annotations

import copy
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.clusters.registry import start_addon
from bireme.core.paths import Paths
from bireme.helm import Renderer
from bireme.live.deploy import Deployer
from bireme.live.release import Releases
from bireme.plan.instances import Instance
from bireme.tools import Toolbox
from tests.support import git_server, gitops
from tests.support.flux import Flux, path_of
from tests.support.gitops import CASES, EACH_JOB, JOBS, TYPE, Job, Site
from tests.support.processes import autoscaler
from tests.support.waiting import until

pytestmark = [pytest.mark.embedded, pytest.mark.whole]
ROOT = Path(__file__).parents[2]


def manifests(document: str) -> dict[str, Any]:
    """The objects of a document by their kinds."""
    return {each["kind"]: each for each in yaml.safe_load_all((ROOT / "docs" / document).read_text())}


MANIFESTS = manifests("gitops.yaml")
# No CSI driver is there, and no file system is made, as only AWS can.
FILE_SYSTEM = {
    "fileSystemId": "fs-0123456789abcdef0",
    "dnsName": "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    "mountName": "fsx",
}
OTHERS: dict[str, dict[str, Any]] = {
    "dataset": {"claim": {"name": "efsvol", "path": "imagenet"}, "sources": [{"url": "s3://bucket/data"}]},
    "efa-device-plugin": {"region": "us-west-2"},
    "efs": {"volumes": {"shared": {"type": "nfs", "server": "fs.example.com"}}},
    "etcd": {"persistence": {"enabled": False}},
    "fsx": {"provisioning": "static", "zone": "us-west-2b", "static": FILE_SYSTEM, "checkDriver": False},
    "gpu-metrics": {"agent": "dcgm"},
    "paddle": {"workers": 2, "data": {"jobClaim": {"existingClaim": "efsvol"}}},
    "autoscaler": {"global": {"imageRegistries": {"bireme": "registry.example.com"}}},
}
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

    def install(self, job: Job) -> str:
        """Apply source and release, called run; returns the path of the release once it is as planned."""
        self.flux.apply(self.source(job.chart))
        path = self.flux.apply(self.release("run", job.chart, job.values))
        self.flux.ready(path)
        self.as_planned("run")
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
    folder, charts = tmp_path_factory.mktemp("site"), (*gitops.CHARTS, *OTHERS)
    with gitops.site(bireme_paths, toolbox, folder, charts, {TYPE: 4, "cpu": 2}) as site:
        controller = start_addon("flux", site.cluster, toolbox)
        releases = Releases(site.cluster, toolbox)
        deployer = Deployer(site.cluster, releases, renderer, instances)
        yield Team(site.cluster, site.charts, site.archives, Flux(site.cluster), deployer)
        controller.check_alive()


@pytest.fixture
def flux(team: Team) -> Iterator[Flux]:
    yield team.flux
    team.flux.clear()


@EACH_JOB
def test_a_job_from_a_registry_is_installed_kept_scaled_replaced_and_removed(
    team: Team, flux: Flux, case: str
) -> None:
    path = team.install(CASES[case])
    first, objects = team.pods("run"), team.objects("run")
    assert first
    assert [each["version"] for each in flux.sync(path)["history"]] == [1]
    assert team.objects("run") == objects, "a second sync changes nothing"
    if CASES[case].is_elastic:
        job = f"{JOBS}/run-r1"
        team.cluster.api.patch(job, {"spec": {"completions": 3, "parallelism": 3}})
        flux.sync(path)
        until(lambda: team.cluster.api.get(job)["spec"]["parallelism"] == 2, what="two workers again")
        team.as_planned("run")
        first = team.pods("run")
        flux.change(path, values={"workers": 3})
        flux.ready(path)
        team.as_planned("run")
        assert first.items() <= team.pods("run").items(), "those that train go on"
        flux.change(path, values={"workers": 2})
        flux.ready(path)
        team.as_planned("run")
        assert team.pods("run") == first
    flux.change(path, values={"env": {"SEED": "1"}})
    assert "which Kubernetes does not change in place" in flux.refused(path)
    flux.change(path, values={"run": 2})
    assert "is not stopped, and two runs must not write one checkpoint" in flux.refused(path)
    assert team.pods("run") == first, "nothing is stopped that nobody asked to stop"
    flux.change(path, values={"run": None, "env": None, "job": {"suspend": True}})
    flux.ready(path)
    # The workers may still write their checkpoints: Flux tries again until they are gone.
    flux.change(path, values={"run": 2, "workers": 3, "env": {"SEED": "1"}, "job": {"suspend": None}})
    flux.ready(path)
    team.as_planned("run")
    assert len(team.pods("run")) == len(first) + 1
    assert all("-r2-" in name for name in team.pods("run"))
    flux.remove(path)
    team.is_gone("run")


def test_each_other_chart_is_installed_and_a_second_sync_changes_nothing(team: Team, flux: Flux) -> None:
    for chart, values in OTHERS.items():
        flux.apply(team.source(chart))
        path = flux.apply(team.release("run", chart, values))
        flux.ready(path)
        objects = team.objects("run")
        assert objects, chart
        assert [each["version"] for each in flux.sync(path)["history"]] == [1], chart
        assert team.objects("run") == objects, chart
        flux.remove(path)
        team.is_gone("run")


@dataclass(frozen=True)
class Committed:
    """A job that a team installs by commits, with the HelmRelease of docs/gitops-git.yaml."""

    team: Team
    repository: git_server.Repository
    job: Job
    name: str
    source: str
    jobs: str

    def commit(self, **values: Any) -> None:
        """Commit the HelmRelease with these values too, and wait until it is applied."""
        item = manifests("gitops-git.yaml")["HelmRelease"]
        item["spec"]["chart"]["spec"]["chart"] = f"./charts/{self.job.chart}"
        item["spec"]["upgrade"]["strategy"]["retryInterval"] = "3s"
        item["spec"]["values"] = {**self.job.values, **values}
        self.repository.commit("Train", {f"jobs/{self.name}.yaml": yaml.safe_dump(item)})
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

    def pods(self) -> dict[str, str]:
        """The pods of the job that run."""
        return self.team.pods(self.name)

    def _deliver(self) -> None:
        """Wait until the cluster has what was committed."""
        self._sync()
        self.team.flux.ready(path_of("HelmRelease", "helm.toolkit.fluxcd.io/v2", self.name))
        self.team.as_planned(self.name)

    def _sync(self) -> None:
        self.team.flux.sync(self.source)
        self.team.flux.sync(self.jobs)


@pytest.fixture
def committed(team: Team, flux: Flux, case: str, tmp_path: Path) -> Iterator[Committed]:
    """A job without a first commit, in a repository that has its chart unpacked."""
    job, documents = CASES[case], manifests("gitops-git.yaml")
    with git_server.serving(tmp_path / "jobs") as repository:
        with tarfile.open(team.archives[job.chart]) as archive:
            archive.extractall(repository.folder / "charts", filter="data")
        repository.commit("Charts", {"jobs/README.md": "Jobs\n"})
        documents["GitRepository"]["spec"]["url"] = repository.url
        source, jobs = (flux.apply(documents[kind]) for kind in ("GitRepository", "Kustomization"))
        yield Committed(team, repository, job, documents["HelmRelease"]["metadata"]["name"], source, jobs)
        flux.clear()


@EACH_JOB
def test_commits_install_scale_replace_and_remove_a_job(committed: Committed) -> None:
    committed.commit()
    first = committed.pods()
    assert first
    if committed.job.is_elastic:
        committed.commit(workers=3)
        assert len(committed.pods()) == len(first) + 1
        committed.revert()
        assert committed.pods() == first, "those that trained from the start"
    committed.commit(job={"suspend": True})
    committed.commit(run=2, workers=3, env={"SEED": "1"})
    assert len(committed.pods()) == len(first) + 1
    # What needed a new run is taken back by another one.
    committed.commit(run=2, workers=3, env={"SEED": "1"}, job={"suspend": True})
    committed.commit(run=3)
    assert len(committed.pods()) == len(first)
    assert all("-r3-" in name for name in committed.pods())
    committed.remove()


def test_the_autoscaler_s_number_of_workers_stays_when_flux_looks_again(
    team: Team, flux: Flux, tmp_path: Path
) -> None:
    flux.apply(team.source("torch-elastic"))
    values = {**CASES["torch-elastic"].values, "elastic": {"autoscale": {"enabled": True, "cooldown": 0}}}
    manifest = team.release("run", "torch-elastic", values)
    manifest["spec"]["driftDetection"]["ignore"] = flux_ignores()
    with autoscaler(team.cluster.kubeconfig, tmp_path / "log"):
        path = flux.apply(manifest)
        flux.ready(path)
        job = f"{JOBS}/run-r1"
        until(lambda: team.cluster.api.get(job)["spec"]["parallelism"] == 4, what="the job to grow")
        objects = team.objects("run")
        flux.sync(path)
        assert team.objects("run") == objects
        # An upgrade asks the cluster for the number.
        flux.change(path, values={"job": {"activeDeadlineSeconds": 90000}})
        flux.ready(path)
        spec = team.cluster.api.get(job)["spec"]
        assert (spec["parallelism"], spec["completions"]) == (4, 4)


def flux_ignores() -> Any:
    """What docs/adr/0011 has Flux leave out of the comparison."""
    text = (ROOT / "docs/adr/0011-who-owns-the-number-of-workers.md").read_text()
    (block,) = (each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "Flux" in each)
    return yaml.safe_load(block)["spec"]["driftDetection"]["ignore"]
