"""Jobs that the real Argo CD installs from a registry and from git, as docs/gitops-argocd.yaml says."""

from __future__ import annotations

import copy
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.clusters.registry import start_addon
from bireme.core.paths import Paths
from bireme.helm import Renderer, RenderRequest
from bireme.live import observe
from bireme.plan.instances import Instance
from bireme.plan.topology import expand
from bireme.tools import Toolbox
from tests.support import faults, git_server, gitops
from tests.support.gitops import CASES, EACH_JOB, TYPE, Job, Site
from tests.support.processes import autoscaler
from tests.support.waiting import until

pytestmark = [pytest.mark.embedded, pytest.mark.whole]
ROOT = Path(__file__).parents[2]
MANIFESTS = {
    each["kind"]: each for each in yaml.safe_load_all((ROOT / "docs/gitops-argocd.yaml").read_text())
}
REPOSITORIES = "/api/v1/namespaces/argocd/secrets"
APPLICATIONS = "/apis/argoproj.io/v1alpha1/namespaces/argocd/applications"
NAME: str = MANIFESTS["Application"]["metadata"]["name"]
DOCUMENTED: dict[str, Any] = MANIFESTS["Application"]["spec"]["source"]["helm"]["valuesObject"]
# What a chart makes itself where it can ask the cluster is a Secret here.
NAMED_SECRETS: dict[str, dict[str, Any]] = {"torch-elastic": {"etcd": DOCUMENTED["etcd"]}, "mpijob": {}}
USERS = {"root-password": "captain", "username": "rower", "password": "oar"}
VALUES_FILE = "jobs/job.yaml"
Object = dict[str, Any]


@dataclass(frozen=True)
class Team(Site):
    """A cluster that Argo CD looks after, and the charts it installs."""

    paths: Paths
    renderer: Renderer
    instances: Mapping[str, Instance]

    def apply(self, case: str, **source: Any) -> Application:
        """The Application of the document, for a chart of the registry or another source."""
        return self.create(values_of(case), **source)

    def create(self, job: Job, **source: Any) -> Application:
        """The same for another job."""
        item: Object = copy.deepcopy(MANIFESTS["Application"])
        if job.values.get("mpi", {}).get("orchestrator") == "MPIJob":
            # As docs/gitops.md says: the API server completes the fields of an MPIJob.
            item["metadata"]["annotations"] = {"argocd.argoproj.io/compare-options": "ServerSideDiff=true"}
        item["spec"]["source"] = {
            "helm": {"valuesObject": job.values},
            **(source or self._from_registry(job.chart)),
        }
        self.cluster.api.create(APPLICATIONS, item)
        return Application(self, job)

    def _from_registry(self, chart: str) -> Object:
        host = self.charts.removeprefix("oci://")
        return {"repoURL": host, "chart": chart, "targetRevision": self.version(chart)}


def values_of(case: str) -> Job:
    """A job with values that name the Secrets it needs."""
    return replace(CASES[case], values={**CASES[case].values, **NAMED_SECRETS[case]})


@dataclass(frozen=True)
class Application:
    """An Application of a job."""

    team: Team
    job: Job
    path: str = f"{APPLICATIONS}/{NAME}"

    def change(self, **values: Any) -> None:
        """Merge these into its values."""
        patch = {"spec": {"source": {"helm": {"valuesObject": values}}}}
        self.team.cluster.api.patch(self.path, patch)

    def refresh(self) -> None:
        """Ask Argo CD to look at the source and the cluster again; returns when it has."""
        asked = {"metadata": {"annotations": {"argocd.argoproj.io/refresh": "hard"}}}
        self.team.cluster.api.patch(self.path, asked)
        until(
            lambda: "argocd.argoproj.io/refresh" not in self._there()["metadata"].get("annotations", {}),
            what=lambda: f"{NAME} to be looked at again",
        )

    def synced(self) -> Object:
        """Its status once the cluster has what the source says, and the pods that this plans."""
        values = self._there()["spec"]["source"]["helm"]["valuesObject"]

        def is_synced() -> bool:
            status = self.status()
            compared = status.get("sync", {}).get("comparedTo", {}).get("source", {})
            asked = compared.get("helm", {}).get("valuesObject")
            return bool(status.get("sync", {}).get("status") == "Synced" and asked == values)

        until(is_synced, what=lambda: f"{NAME} to be synced: {self.status()}")
        self.as_planned(values)
        return self.status()

    def as_planned(self, values: Object) -> None:
        """Wait until the cluster has the pods that these values plan."""
        request = RenderRequest(self.team.paths.charts / self.job.chart, values, NAME, "default")
        manifests = self.team.renderer.render(request).manifests
        plan = expand(NAME, "default", manifests, self.team.instances)
        assert observe.wait(self.team.cluster, plan).differences == ()

    def refused(self) -> str:
        """What Argo CD says once it could not apply the source."""

        said: list[str] = []

        def is_refused() -> bool:
            state: Object = self.status().get("operationState", {})
            if state.get("phase") in ("Failed", "Error"):
                said.append(str(state["message"]))
            return bool(said)

        until(is_refused, what=lambda: f"{NAME} to be refused: {self.status()}")
        return said[0]

    @property
    def is_synced(self) -> bool:
        """Whether Argo CD finds in the cluster what the source says."""
        return bool(self.status()["sync"]["status"] == "Synced")

    def remove(self) -> None:
        """Delete it with all that it has made."""
        self.team.cluster.api.delete(self.path)
        until(lambda: self.team.cluster.api.find(self.path) is None, what=lambda: f"{NAME} to go")
        self.team.is_gone(NAME)

    def status(self) -> Object:
        """What Argo CD says of it."""
        return dict(self._there().get("status", {}))

    def _there(self) -> Object:
        return self.team.cluster.api.get(self.path)


@pytest.fixture(scope="module")
def site(
    bireme_paths: Paths,
    toolbox: Toolbox,
    renderer: Renderer,
    instances: Mapping[str, Instance],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Team]:
    folder, nodes = tmp_path_factory.mktemp("site"), {TYPE: 4, "cpu": 2}
    with gitops.site(bireme_paths, toolbox, folder, gitops.CHARTS, nodes) as site:
        controller = start_addon("argocd", site.cluster, toolbox)
        secret = {"metadata": {"name": "etcd-users"}, "stringData": USERS}
        site.cluster.api.create("/api/v1/namespaces/default/secrets", secret)
        repository: Object = copy.deepcopy(MANIFESTS["Secret"])
        # This registry has no TLS.
        plain = {"url": site.charts.removeprefix("oci://"), "insecureOCIForceHttp": "true"}
        repository["stringData"] |= plain
        site.cluster.api.create(REPOSITORIES, repository)
        yield Team(site.cluster, site.charts, site.archives, bireme_paths, renderer, instances)
        controller.check_alive()


@pytest.fixture
def team(site: Team) -> Iterator[Team]:
    yield site
    left = Application(site, Job("", {}))
    if site.cluster.api.find(left.path):
        left.remove()


@EACH_JOB
def test_a_job_from_a_registry_is_installed_kept_scaled_replaced_and_removed(team: Team, case: str) -> None:
    job = team.apply(case)
    status = job.synced()
    assert {each["kind"] for each in status["resources"]} >= {"MPIJob" if case == "mpijob" else "Job"}
    first, objects = team.pods(NAME), team.objects(NAME)
    assert first
    job.refresh()
    assert job.synced()["history"] == status["history"]
    assert team.objects(NAME) == objects, "a second sync changes nothing"
    if job.job.is_elastic:
        job.change(workers=3)
        job.synced()
        assert first.items() <= team.pods(NAME).items(), "those that train go on"
        job.change(workers=2)
        job.synced()
        assert team.pods(NAME) == first
    job.change(job={"suspend": True})
    job.synced()
    job.change(run=2, workers=3, env={"SEED": "1"}, job={"suspend": None})
    job.synced()
    assert len(team.pods(NAME)) == len(first) + 1
    until(lambda: all("-r2" in name for name in team.jobs(NAME)), what="the first run to be pruned")
    # Kubernetes takes any change of an MPIJob, and its operator reads it only when it starts pods.
    if case == "torch-elastic":
        second = team.pods(NAME)
        job.change(env={"SEED": "2"})
        refused = job.refused()
        assert "field is immutable" in refused
        assert "retried 1 times" in refused, "as often as the manifest asks for"
        assert team.pods(NAME) == second
    job.remove()


@dataclass(frozen=True)
class Committed:
    """A job whose chart and values are in a git repository, which an Application follows."""

    application: Application
    repository: git_server.Repository
    values: Mapping[str, Any]

    def commit(self, **values: Any) -> None:
        """Commit these values of the job too, and wait until the cluster has them."""
        content = yaml.safe_dump({**self.values, **values})
        self._deliver(self.repository.commit("Train", {VALUES_FILE: content}))

    def revert(self) -> None:
        """Take the last commit back, and wait until the cluster has what was before."""
        self._deliver(self.repository.revert())

    def is_healthy(self, how: str) -> None:
        """Wait until Argo CD says so of its health."""
        status = self.application.status
        until(lambda: status()["health"]["status"] == how, what=lambda: f"{how}: {status()}")

    def _deliver(self, commit: str) -> None:
        self.application.refresh()

        def is_synced() -> bool:
            found = self.application.status().get("sync", {})
            return bool(found.get("status") == "Synced" and found.get("revision") == commit)

        until(is_synced, what=lambda: f"{commit} to be synced: {self.application.status()}")
        committed = (self.repository.folder / VALUES_FILE).read_text()
        self.application.as_planned(yaml.safe_load(committed))


@pytest.fixture
def committed(team: Team, case: str, tmp_path: Path) -> Iterator[Committed]:
    """A job without a first commit, in a repository that has its chart unpacked."""
    job = values_of(case)
    with git_server.serving(tmp_path / "jobs") as repository:
        with tarfile.open(team.archives[job.chart]) as archive:
            archive.extractall(repository.folder / "charts", filter="data")
        repository.commit("Charts", {})
        application = team.apply(
            case,
            repoURL=repository.url,
            path=f"charts/{job.chart}",
            targetRevision="main",
            helm={"valueFiles": [f"../../{VALUES_FILE}"]},
        )
        yield Committed(application, repository, job.values)
        application.remove()


@EACH_JOB
def test_commits_install_scale_replace_and_end_a_job(team: Team, committed: Committed, case: str) -> None:
    committed.commit()
    first = team.pods(NAME)
    assert first
    if CASES[case].is_elastic:
        committed.commit(workers=3)
        assert first.items() <= team.pods(NAME).items()
        committed.revert()
        assert team.pods(NAME) == first, "those that trained from the start"
    committed.commit(job={"suspend": True})
    committed.commit(run=2, workers=3, env={"SEED": "1"})
    assert len(team.pods(NAME)) == len(first) + 1
    # What needed a new run is taken back by another one.
    committed.commit(run=2, workers=3, env={"SEED": "1"}, job={"suspend": True})
    committed.commit(run=3)
    assert len(team.pods(NAME)) == len(first)
    assert all("-r3-" in name for name in team.pods(NAME))
    # Argo CD knows no health of an MPIJob.
    if case == "torch-elastic":
        committed.is_healthy("Progressing")
        for name in team.pods(NAME):
            faults.complete(team.cluster, name, "default")
        committed.is_healthy("Healthy")


def test_a_sync_leaves_the_number_of_workers_to_the_autoscaler(team: Team, tmp_path: Path) -> None:
    """With what docs/adr/0011 tells to set in the Application."""
    record = (ROOT / "docs/adr/0011-who-owns-the-number-of-workers.md").read_text()
    (block,) = re.findall(r"```yaml\n(\s*# Argo CD.*?)```", record, re.DOTALL)
    spec = yaml.safe_load(block)["spec"]
    spec["syncPolicy"]["syncOptions"] += MANIFESTS["Application"]["spec"]["syncPolicy"]["syncOptions"]
    autoscale = {"enabled": True, "max": 4, "cooldown": 0}
    job = team.create(Job("torch-elastic", {**DOCUMENTED, "elastic": {"autoscale": autoscale}}))
    team.cluster.api.patch(job.path, {"spec": spec})
    job.synced()
    path, log = f"{gitops.JOBS}/{NAME}-r1", tmp_path / "log"
    with autoscaler(team.cluster.kubeconfig, log):
        until(lambda: len(team.pods(NAME)) == 4, what=log.read_text)
    # Whoever takes the number back now is found out.
    grown = team.pods(NAME)
    job.refresh()
    until(lambda: job.is_synced, what=lambda: "the number to be no difference")
    job.change(job={"labels": {"team": "vision"}})
    until(
        lambda: team.cluster.api.get(path)["metadata"]["labels"].get("team") == "vision" and job.is_synced,
        what=lambda: "the change to be synced",
    )
    assert team.cluster.api.get(path)["spec"]["parallelism"] == 4
    assert team.pods(NAME) == grown
