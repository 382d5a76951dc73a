"""Jobs installed as Argo CD does it: `helm template`, which asks no cluster, then server-side apply."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from bireme.clusters.embedded import EmbeddedCluster
from bireme.core.labels import RELEASE_LABEL
from bireme.helm import Renderer, parse
from bireme.live import observe
from bireme.plan.instances import Instance
from bireme.plan.topology import expand
from bireme.testing.charts import RequestFor
from bireme.tools import Toolbox
from tests.support.tiers import core
from tests.support.waiting import until

TYPE = "p4d.24xlarge"
# What a chart cannot generate without a cluster to ask is a Secret that the team makes.
SECRETS = {
    "etcd-users": {"root-password": "captain", "username": "rower", "password": "oar"},
    "ssh-key": {"ssh-privatekey": "key"},
}
JOBS: dict[str, dict[str, Any]] = {
    "torch-elastic": {"instance": {"type": TYPE}, "etcd": {"auth": {"existingSecret": "etcd-users"}}},
    "mpi-training": {"instance": {"type": TYPE}, "mpi": {"ssh": {"existingSecret": "ssh-key"}}},
    "paddle": {
        "paddle": {"dispatch": "dynamic"},
        "etcd": {"enabled": True, "auth": {"existingSecret": "etcd-users"}},
    },
}
Object = dict[str, Any]


@dataclass
class Applied:
    """A job that is applied rather than installed: Helm has no release of it."""

    chart: str
    namespace: str
    cluster: EmbeddedCluster
    toolbox: Toolbox
    renderer: Renderer
    request_for: RequestFor
    instances: Mapping[str, Instance]
    name: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:6]}")

    def render(self, **values: Any) -> list[Object]:
        """What `helm template` prints now, without hooks."""
        request = self.request_for(
            self.chart,
            values={**JOBS[self.chart], "workers": 2, **values},
            release=self.name,
            namespace=self.namespace,
        )
        return [each.thaw() for each in parse(self.renderer.text(request)) if not each.is_hook]

    def apply(self, objects: list[Object]) -> subprocess.CompletedProcess[str]:
        """Apply them as the field manager of Argo CD."""
        return self._kubectl("apply", objects)

    def drift(self, objects: list[Object]) -> str:
        """What an apply of them would change, as the API server says it; "" for nothing."""
        found = self._kubectl("diff", objects)
        assert found.returncode in (0, 1), found.stderr
        return found.stdout

    def as_planned(self, objects: list[Object]) -> None:
        """Wait until the cluster has the pods that these objects plan."""
        plan = expand(self.name, self.namespace, parse(yaml.safe_dump_all(objects)), self.instances)
        assert observe.wait(self.cluster, plan).differences == ()

    def pods(self) -> dict[str, str]:
        """The live pods: names and identities."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        found = self.cluster.api.get(path, labelSelector=f"{RELEASE_LABEL}={self.name}")["items"]
        return {
            pod["metadata"]["name"]: pod["metadata"]["uid"]
            for pod in found
            if "deletionTimestamp" not in pod["metadata"]
        }

    def remove(self) -> None:
        """Delete every object, as a cascading delete does."""
        kinds = sorted({each["kind"] for each in self.render()})
        command = ["delete", ",".join(kinds), "--selector", f"{RELEASE_LABEL}={self.name}", "--wait"]
        subprocess.run([*self._start(), *command], capture_output=True, check=True)

    def _kubectl(self, verb: str, objects: list[Object]) -> subprocess.CompletedProcess[str]:
        command = [*self._start(), verb, "--server-side", "--field-manager", "argocd-controller", "-f", "-"]
        text = yaml.safe_dump_all(objects)
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    def _start(self) -> list[str]:
        where = ["--kubeconfig", str(self.cluster.kubeconfig), "--namespace", self.namespace]
        return [str(self.toolbox.path("kubectl")), *where]


@pytest.fixture(scope="module", autouse=True)
def of_the_team(cluster: EmbeddedCluster, test_namespace: str) -> None:
    """The Secrets, and the claim on EFS."""
    for name, content in SECRETS.items():
        secret = {"metadata": {"name": name}, "stringData": content}
        cluster.api.create(f"/api/v1/namespaces/{test_namespace}/secrets", secret)
    cluster.add_claim("efsvol", test_namespace)


@pytest.fixture
def job(
    cluster: EmbeddedCluster,
    toolbox: Toolbox,
    renderer: Renderer,
    request_for: RequestFor,
    instances: Mapping[str, Instance],
    test_namespace: str,
) -> Iterator[Callable[[str], Applied]]:
    made: list[Applied] = []

    def of(chart: str) -> Applied:
        made.append(Applied(chart, test_namespace, cluster, toolbox, renderer, request_for, instances))
        return made[-1]

    yield of
    for each in made:
        each.remove()


@pytest.mark.parametrize("chart", core("torch-elastic", of=sorted(JOBS)))
def test_a_second_apply_changes_nothing_and_what_a_job_cannot_take_is_refused(
    job: Callable[[str], Applied], chart: str
) -> None:
    applied = job(chart)
    first = applied.render()
    assert applied.drift(first), "there is nothing yet"
    done = applied.apply(first)
    assert done.returncode == 0, done.stderr
    applied.as_planned(first)
    pods = applied.pods()
    second = applied.render()
    assert second == first
    # kubectl compares two reads, and the Job's controller may write the number of ready pods between them.
    until(lambda: applied.drift(second) == "", 60, lambda: applied.drift(second), every=1)
    done = applied.apply(second)
    assert done.returncode == 0, done.stderr
    applied.as_planned(second)
    assert applied.pods() == pods
    refused = applied.apply(applied.render(env={"SEED": "1"}))
    assert refused.returncode != 0
    assert "field is immutable" in refused.stderr
    assert applied.pods() == pods, "those that train go on"
