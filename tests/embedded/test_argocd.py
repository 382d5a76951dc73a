"""Jobs that the real Argo CD installs from a registry and from git, as docs/gitops-argocd.yaml says."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme import observe
from bireme.clusters import start_addon
from bireme.helm import Renderer, RenderRequest
from bireme.instances import Instance
from bireme.paths import Paths
from bireme.tools import Toolbox
from bireme.topology import expand
from tests.support import git_server, gitops
from tests.support.flux import until
from tests.support.gitops import Site

pytestmark = [pytest.mark.embedded, pytest.mark.whole]
ROOT = Path(__file__).parents[2]
MANIFESTS = {
    each["kind"]: each for each in yaml.safe_load_all((ROOT / "docs/gitops-argocd.yaml").read_text())
}
APPLICATIONS = "/apis/argoproj.io/v1alpha1/namespaces/argocd/applications"
NAME: str = MANIFESTS["Application"]["metadata"]["name"]
DOCUMENTED: dict[str, Any] = MANIFESTS["Application"]["spec"]["source"]["helm"]["valuesObject"]
TYPE = DOCUMENTED["instance"]["type"]
JOB_VALUES: dict[str, dict[str, Any]] = {
    "torch-elastic": DOCUMENTED,
    "mpi-training": {"instance": {"type": TYPE}, "workers": 2, "ssh": {"existingSecret": "ssh-key"}},
    "paddle": {"workers": 2, "jobClaim": {"existingClaim": "efsvol"}},
}
SECRETS = {
    "etcd-users": {"root-password": "captain", "username": "rower", "password": "oar"},
    "ssh-key": {"ssh-privatekey": "key"},
}
EACH_CHART = pytest.mark.parametrize("chart", sorted(JOB_VALUES))
ELASTIC_CHARTS = pytest.mark.parametrize("chart", ["paddle", "torch-elastic"])
Object = dict[str, Any]


@dataclass(frozen=True)
class Team(Site):
    """A cluster that Argo CD looks after, and the charts it installs."""

    paths: Paths
    renderer: Renderer
    instances: Mapping[str, Instance]

    def apply(self, chart: str, **source: Any) -> Application:
        """The Application of the document, for a chart of the registry or another source."""
        return self.create(chart, JOB_VALUES[chart], **source)

    def create(self, chart: str, values: Object, **source: Any) -> Application:
        """The same with other values."""
        item: Object = copy.deepcopy(MANIFESTS["Application"])
        item["spec"]["source"] = {
            "helm": {"valuesObject": values},
            **(source or self._from_registry(chart)),
        }
        self.cluster.api.create(APPLICATIONS, item)
        return Application(self, chart)

    def _from_registry(self, chart: str) -> Object:
        host = self.charts.removeprefix("oci://")
        return {"repoURL": host, "chart": chart, "targetRevision": self.version(chart)}


@dataclass(frozen=True)
class Application:
    """An Application of a chart."""

    team: Team
    chart: str
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
            status = self._status()
            compared = status.get("sync", {}).get("comparedTo", {}).get("source", {})
            asked = compared.get("helm", {}).get("valuesObject")
            return bool(status.get("sync", {}).get("status") == "Synced" and asked == values)

        until(is_synced, what=lambda: f"{NAME} to be synced: {self._status()}")
        request = RenderRequest(self.team.paths.charts / self.chart, values, NAME, "default")
        manifests = self.team.renderer.render(request).manifests
        plan = expand(NAME, "default", manifests, self.team.instances)
        assert observe.wait(self.team.cluster, plan).differences == ()
        return self._status()

    def refused(self) -> str:
        """What Argo CD says once it could not apply the source."""

        def said() -> str:
            state: Object = self._status().get("operationState", {})
            return str(state["message"]) if state.get("phase") in ("Failed", "Error") else ""

        until(said, what=lambda: f"{NAME} to be refused: {self._status()}")
        return said()

    @property
    def is_synced(self) -> bool:
        """Whether Argo CD finds in the cluster what the source says."""
        return bool(self._status()["sync"]["status"] == "Synced")

    def remove(self) -> None:
        """Delete it with all that it has made."""
        self.team.cluster.api.delete(self.path)
        until(lambda: self.team.cluster.api.find(self.path) is None, what=lambda: f"{NAME} to go")
        self.team.is_gone(NAME)

    def _there(self) -> Object:
        return self.team.cluster.api.get(self.path)

    def _status(self) -> Object:
        return dict(self._there().get("status", {}))


@pytest.fixture(scope="module")
def site(
    bireme_paths: Paths,
    toolbox: Toolbox,
    renderer: Renderer,
    instances: Mapping[str, Instance],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Team]:
    folder, nodes = tmp_path_factory.mktemp("site"), {TYPE: 4, "cpu": 2}
    with gitops.site(bireme_paths, toolbox, folder, list(JOB_VALUES), nodes) as site:
        controller = start_addon("argocd", site.cluster, toolbox)
        for name, content in SECRETS.items():
            secret = {"metadata": {"name": name}, "stringData": content}
            site.cluster.api.create("/api/v1/namespaces/default/secrets", secret)
        repository: Object = copy.deepcopy(MANIFESTS["Secret"])
        # This registry has no TLS.
        plain = {"url": site.charts.removeprefix("oci://"), "insecureOCIForceHttp": "true"}
        repository["stringData"] |= plain
        site.cluster.api.create("/api/v1/namespaces/argocd/secrets", repository)
        yield Team(site.cluster, site.charts, site.archives, bireme_paths, renderer, instances)
        controller.check_alive()


@pytest.fixture
def team(site: Team) -> Iterator[Team]:
    yield site
    left = Application(site, "")
    if site.cluster.api.find(left.path):
        left.remove()


@EACH_CHART
def test_a_second_sync_changes_nothing(team: Team, chart: str) -> None:
    job = team.apply(chart)
    status = job.synced()
    assert {each["kind"] for each in status["resources"]} >= {"Job"}
    assert status["health"]["status"] == "Progressing", "it is as long as the job trains"
    objects, pods, history = team.objects(NAME), team.pods(NAME), status["history"]
    assert objects
    assert pods
    job.refresh()
    assert job.synced()["history"] == history
    assert team.objects(NAME) == objects
    assert team.pods(NAME) == pods


@ELASTIC_CHARTS
def test_a_job_is_scaled_by_its_values_and_goes_with_its_application(team: Team, chart: str) -> None:
    job = team.apply(chart)
    job.synced()
    first = team.pods(NAME)
    job.change(workers=3)
    job.synced()
    scaled = team.pods(NAME)
    assert first.items() <= scaled.items(), "those that train go on"
    assert len(scaled) == len(first) + 1
    job.remove()


@EACH_CHART
def test_a_new_run_is_one_that_suspends_and_one_that_raises_run(team: Team, chart: str) -> None:
    job = team.apply(chart)
    job.synced()
    first = team.pods(NAME)
    job.change(env={"SEED": "1"})
    assert "field is immutable" in job.refused()
    assert team.pods(NAME) == first, "nothing is stopped that nobody asked to stop"
    job.change(env=None, suspend=True)
    job.synced()
    job.change(run=2, workers=3, env={"SEED": "1"}, suspend=None)
    job.synced()
    second = team.pods(NAME)
    assert len(second) == len(first) + 1
    assert all("-r2-" in name for name in second)
    until(lambda: all(name.endswith("-r2") for name in team.jobs(NAME)), what="the first run to be pruned")
    job.remove()


@EACH_CHART
def test_a_chart_in_git_is_installed_and_removed(team: Team, chart: str, tmp_path: Path) -> None:
    with git_server.serving(tmp_path / "jobs") as repository:
        with tarfile.open(team.archives[chart]) as archive:
            archive.extractall(repository.folder / "charts", filter="data")
        repository.commit("Charts", {})
        job = team.apply(chart, repoURL=repository.url, path=f"charts/{chart}", targetRevision="main")
        job.synced()
        assert team.pods(NAME)
        job.remove()


def test_a_sync_leaves_the_number_of_workers_to_the_autoscaler(team: Team, tmp_path: Path) -> None:
    """With what docs/adr/0011 tells to set in the Application."""
    record = (ROOT / "docs/adr/0011-who-owns-the-number-of-workers.md").read_text()
    (block,) = re.findall(r"```yaml\n(\s*# Argo CD.*?)```", record, re.DOTALL)
    spec = yaml.safe_load(block)["spec"]
    spec["syncPolicy"]["syncOptions"] += MANIFESTS["Application"]["spec"]["syncPolicy"]["syncOptions"]
    autoscale = {"enabled": True, "max": 4, "cooldown": 0, "every": 1}
    job = team.create("torch-elastic", {**DOCUMENTED, "autoscale": autoscale})
    team.cluster.api.patch(job.path, {"spec": spec})
    job.synced()
    path, command = f"{gitops.JOBS}/{NAME}-r1", [str(Path(sys.executable).with_name("bireme")), "autoscale"]
    command += ["--every=1", f"--kubeconfig={team.cluster.kubeconfig}"]
    log = tmp_path / "log"
    with log.open("w") as output, subprocess.Popen(command, stderr=output) as controller:
        try:
            until(lambda: len(team.pods(NAME)) == 4, what=log.read_text)
        finally:
            # Whoever takes the number back now is found out.
            controller.terminate()
    grown = team.pods(NAME)
    job.refresh()
    until(lambda: job.is_synced, what=lambda: "the number to be no difference")
    job.change(jobLabels={"team": "vision"})
    until(
        lambda: team.cluster.api.get(path)["metadata"]["labels"].get("team") == "vision" and job.is_synced,
        what=lambda: "the change to be synced",
    )
    assert team.cluster.api.get(path)["spec"]["parallelism"] == 4
    assert team.pods(NAME) == grown
    job.remove()
