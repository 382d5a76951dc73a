"""charts/mpijob is installed, upgraded and removed: what happens to the kind, and what its rights allow."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bireme.clusters.embedded import EmbeddedCluster
from bireme.clusters.waiting import until
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.testing.pytest_plugin import InstalledRelease
from bireme.tools import Toolbox
from tests.support import controllers, waiting
from tests.support.tiers import core

Install = Callable[..., InstalledRelease]


@pytest.fixture
def install(
    cluster: EmbeddedCluster, new_release: Callable[[], InstalledRelease], mpi_kind: str
) -> Iterator[Install]:
    """``install(namespace, chart="mpijob", sets=[…])``: release mpijob, removed when the test ends."""
    made: list[InstalledRelease] = []

    def _install(
        namespace: str, chart: str | Path = "mpijob", name: str = "mpijob", **options: Any
    ) -> InstalledRelease:
        one = new_release()
        made.append(one)
        return one.install(chart, name, namespace, **options)

    yield _install
    for one in made:
        if one.exists():
            one.uninstall()
    cluster.api.delete(mpi_kind)
    waiting.until_gone(cluster.api, mpi_kind)


@pytest.fixture
def namespace(cluster: EmbeddedCluster) -> Callable[[], str]:
    """Creates namespaces; they are removed with the cluster."""

    def _namespace() -> str:
        name = f"n{uuid.uuid4().hex[:6]}"
        cluster.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    return _namespace


def mpi_job(cluster: EmbeddedCluster, namespace: str, name: str = "small", **spec: Any) -> str:
    """Create an MPIJob with one worker; its path."""
    template = {"template": {"spec": {"containers": [{"name": "mpi", "image": "mpi"}]}}, "replicas": 1}
    body = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name},
        "spec": {"mpiReplicaSpecs": {"Launcher": template, "Worker": template}, **spec},
    }
    path = f"/apis/kubeflow.org/v2beta1/namespaces/{namespace}/mpijobs"
    cluster.api.create(path, body)
    return f"{path}/{name}"


def pods(cluster: EmbeddedCluster, namespace: str) -> list[str]:
    return [
        pod["metadata"]["name"] for pod in cluster.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    ]


def older(paths: Paths, folder: Path) -> Path:
    """The chart with an older kind, without launcherCreationPolicy."""
    shutil.copytree(paths.charts / "mpijob", folder / "mpijob")
    kind = folder / "mpijob/files/mpijobs.kubeflow.org.yaml"
    text, count = re.subn(r"(?m)^( +)launcherCreationPolicy:\n(?:\1 +.*\n)+", "", kind.read_text())
    assert count == 1
    kind.write_text(text)
    return folder / "mpijob"


@pytest.mark.parametrize("helm", core("helm", of=["helm", "helm3"]))
def test_upgrading_the_chart_upgrades_the_kind_and_keeps_the_jobs(
    cluster: EmbeddedCluster,
    install: Install,
    namespace: Callable[[], str],
    bireme_paths: Paths,
    tmp_path: Path,
    helm: str,
) -> None:
    here = namespace()
    operator = install(here, older(bireme_paths, tmp_path), helm=helm)
    first = mpi_job(cluster, here, launcherCreationPolicy="WaitForWorkersReady")
    assert "launcherCreationPolicy" not in cluster.api.get(first)["spec"]
    operator.chart = "mpijob"
    operator.upgrade(helm=helm)
    # The API server serves the old schema until it has heard of the new one.
    until(
        lambda: cluster.api.get(first)["spec"].get("launcherCreationPolicy") == "AtStartup", 60, "the schema"
    )
    second = mpi_job(cluster, here, "later", launcherCreationPolicy="WaitForWorkersReady")
    assert cluster.api.get(second)["spec"]["launcherCreationPolicy"] == "WaitForWorkersReady"


@pytest.mark.whole
def test_uninstalling_keeps_the_kind_and_its_jobs_for_the_next_release(
    cluster: EmbeddedCluster, install: Install, namespace: Callable[[], str]
) -> None:
    here = namespace()
    operator = install(here)
    job = mpi_job(cluster, here)
    operator.uninstall()
    assert cluster.api.find(job) is not None
    install(here)
    assert cluster.api.find(job) is not None


def test_uninstalling_removes_the_kind_and_its_jobs_if_configured(
    cluster: EmbeddedCluster, install: Install, namespace: Callable[[], str], mpi_kind: str
) -> None:
    here = namespace()
    operator = install(here, sets=["crds.keep=false"])
    job = mpi_job(cluster, here)
    operator.uninstall()
    waiting.until_gone(cluster.api, mpi_kind)
    assert cluster.api.find(job) is None


@pytest.mark.whole
def test_a_kind_that_another_release_owns_is_left_alone(
    cluster: EmbeddedCluster, install: Install, namespace: Callable[[], str]
) -> None:
    one, other = namespace(), namespace()
    install(one)
    with pytest.raises(BiremeError, match=f"MPIJob belongs to release mpijob in namespace {one}"):
        install(other)
    install(other, sets=["crds.enabled=false", f"watchNamespace={other}"])
    with pytest.raises(BiremeError, match=f"release mpijob is in namespace {one} already"):
        install(one, name="second", sets=["crds.enabled=false"])


@pytest.mark.whole
def test_a_kind_without_helms_labels_is_left_alone(
    cluster: EmbeddedCluster, install: Install, namespace: Callable[[], str], mpi_kind: str
) -> None:
    here = namespace()
    operator = install(here)
    kept = {
        "annotations": {"meta.helm.sh/release-name": None},
        "labels": {"app.kubernetes.io/managed-by": None},
    }
    cluster.api.patch(mpi_kind, {"metadata": kept})
    operator.uninstall()
    with pytest.raises(BiremeError, match="a CustomResourceDefinition of MPIJob that Helm does not manage"):
        install(here)


@pytest.mark.whole
def test_an_operator_for_one_namespace_ignores_jobs_of_others(
    cluster: EmbeddedCluster, install: Install, namespace: Callable[[], str], toolbox: Toolbox
) -> None:
    ours, team, others = namespace(), namespace(), namespace()
    install(ours, sets=[f"watchNamespace={team}"])
    mpi_job(cluster, others)
    with controllers.running(cluster, "mpijob", ours, toolbox.path("mpi-operator")):
        mpi_job(cluster, team)
        until(lambda: len(pods(cluster, team)) == 2, 120, "launcher and worker")
    assert pods(cluster, others) == []
    for resource in ("secrets", "configmaps", "pods", "services"):
        assert may(cluster, ours, "list", resource, team)
        assert not may(cluster, ours, "list", resource, others)
        assert not may(cluster, ours, "create", resource, others)


# Everything that its code does (pkg/controller of mpi-operator), and rights that other operators have.
RIGHTS: Mapping[str, set[str]] = {
    "mpijobs.kubeflow.org": {"list", "watch"},
    "mpijobs/status.kubeflow.org": {"update"},
    "mpijobs/finalizers.kubeflow.org": {"update"},
    "configmaps": {"list", "watch", "create", "update"},
    "secrets": {"list", "watch", "create", "update"},
    "services": {"list", "watch", "create", "update"},
    "pods": {"list", "watch", "create", "delete"},
    "pods/exec": set(),
    "jobs.batch": {"list", "watch", "create", "update"},
    "jobs/status.batch": {"update"},
    "events": {"create", "patch"},
    "priorityclasses.scheduling.k8s.io": {"list", "watch"},
    "podgroups.scheduling.volcano.sh": set(),
    "leases.coordination.k8s.io": set(),
    "customresourcedefinitions.apiextensions.k8s.io": set(),
    "clusterroles.rbac.authorization.k8s.io": set(),
    "nodes": set(),
}
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")


@pytest.mark.whole
def test_an_operator_for_all_namespaces_has_exactly_the_rights_it_uses(
    cluster: EmbeddedCluster, install: Install, namespace: Callable[[], str]
) -> None:
    here = namespace()
    install(here)
    asked = [(resource, verb) for resource in RIGHTS for verb in VERBS]
    answers = cluster.api.each(lambda each: may(cluster, here, each[1], each[0], "default"), asked)
    allowed = {each for each, answer in zip(asked, answers, strict=True) if answer}
    assert allowed == {(resource, verb) for resource, verbs in RIGHTS.items() for verb in verbs}


def may(cluster: EmbeddedCluster, account_namespace: str, verb: str, resource: str, namespace: str) -> bool:
    """Whether the operator of ``account_namespace`` may do so in ``namespace``."""
    name, _, group = resource.partition(".")
    name, _, subresource = name.partition("/")
    wanted = {"verb": verb, "resource": name, "subresource": subresource, "group": group}
    review = {
        "spec": {
            "user": f"system:serviceaccount:{account_namespace}:mpijob",
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": {**wanted, "namespace": namespace},
        }
    }
    answer = cluster.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])
