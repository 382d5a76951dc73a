"""etcd's topology on a real control plane; tests/runtime and tests/kind show that members join."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from bireme.cli import cli
from bireme.clusters.base import Cluster
from bireme.core.errors import BiremeError
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.support.waiting import until

IN_POD = "persistence.enabled=false"


def users(etcd: InstalledRelease) -> dict[str, str]:
    """What is in the Secret that the chart makes."""
    (secret,) = [each for each in etcd.objects("secrets") if each["metadata"]["name"] == f"{etcd.name}-users"]
    return dict(secret["data"])


def test_one_member_grows_to_three_in_place_with_its_passwords(release: ReleaseFactory) -> None:
    etcd = release("etcd", sets=[IN_POD])
    (first,) = etcd.objects("pods")
    made = users(etcd)
    assert made.keys() == {"username", "password", "root-password"}
    etcd.upgrade(sets=[IN_POD, "replicas=3"])
    assert etcd.differences() == ()
    members = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in etcd.objects("pods")}
    assert set(members) == {f"{etcd.name}-{ordinal}" for ordinal in range(3)}
    assert members[f"{etcd.name}-0"] == first["metadata"]["uid"], (
        "growing must not restart the member that is there"
    )
    assert users(etcd) == made
    with pytest.raises(BiremeError, match="replicas: this etcd has 3 members"):
        etcd.upgrade(sets=[IN_POD, "replicas=1"])


def test_its_status_is_there_for_who_may_not_list_jobs(
    release: ReleaseFactory, cluster: Cluster, tmp_path: Path
) -> None:
    etcd = release("etcd", sets=[IN_POD])
    accounts = f"/api/v1/namespaces/{etcd.namespace}/serviceaccounts"
    cluster.api.create(accounts, {"metadata": {"name": "reader"}})
    rights = {"apiGroups": ["", "apps", "policy"], "resources": ["*"], "verbs": ["get", "list", "watch"]}
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    role = {"metadata": {"name": f"{etcd.name}-reader"}, "rules": [rights]}
    cluster.api.create(f"{rbac}/clusterroles", role)
    reader = {"kind": "ServiceAccount", "name": "reader", "namespace": etcd.namespace}
    reference = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": f"{etcd.name}-reader",
    }
    binding = {"metadata": {"name": f"{etcd.name}-reader"}, "roleRef": reference, "subjects": [reader]}
    cluster.api.create(f"{rbac}/clusterrolebindings", binding)
    attributes = {"verb": "list", "resource": "secrets", "namespace": etcd.namespace}
    user = f"system:serviceaccount:{etcd.namespace}:reader"
    review = {"spec": {"user": user, "resourceAttributes": attributes}}
    reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    until(lambda: cluster.api.create(reviews, review)["status"]["allowed"])
    token = cluster.api.create(f"{accounts}/reader/token", {"spec": {"expirationSeconds": 3600}})
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token["status"]["token"]}
    (own := tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    target = ["-n", etcd.namespace, "--kubeconfig", str(own)]
    done = CliRunner().invoke(cli, ["status", etcd.name, *target], catch_exceptions=False)
    for kind in ("clusterroles", "clusterrolebindings"):
        cluster.api.delete(f"{rbac}/{kind}/{etcd.name}-reader")
    assert done.exit_code == 0, done.output
    assert "as planned: 1 pod" in done.output


@pytest.mark.whole
def test_changed_claims_are_refused_as_predicted(release: ReleaseFactory) -> None:
    etcd = release("etcd", sets=[IN_POD])
    changed = ["persistence.enabled=true"]
    assert etcd.changes(sets=changed).is_refused
    with pytest.raises(BiremeError, match="persistence of the StatefulSet"):
        etcd.upgrade(sets=changed)


@pytest.mark.whole
def test_an_etcd_without_users_keeps_none_until_its_clients_have_a_secret(release: ReleaseFactory) -> None:
    etcd = release("etcd", sets=[IN_POD, "auth.enabled=false"])
    with pytest.raises(BiremeError, match="this etcd runs without users"):
        etcd.upgrade(sets=[IN_POD])
    etcd.upgrade(sets=[IN_POD, "auth.enabled=false"])
    etcd.upgrade(sets=[IN_POD, "auth.existingSecret=people"])
    etcd.upgrade(sets=[IN_POD])
