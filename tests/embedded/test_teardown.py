"""hack/eks/teardown on a real control plane: lists first, refuses to lose data, can be repeated."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bireme.clusters.embedded import EmbeddedCluster
from bireme.core.paths import Paths
from bireme.testing.pytest_plugin import InstalledRelease
from tests.support import waiting

pytestmark = pytest.mark.embedded
Teardown = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def namespace(cluster: EmbeddedCluster) -> Iterator[str]:
    name = f"teardown-{uuid.uuid4().hex[:8]}"
    cluster.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    cluster.api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def teardown(cluster: EmbeddedCluster, namespace: str, bireme_paths: Paths) -> Teardown:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        script = bireme_paths.hack / "eks/teardown.py"
        where = ["--kubeconfig", str(cluster.kubeconfig), "--namespace", namespace]
        return subprocess.run(
            [sys.executable, script, *where, *options], capture_output=True, text=True, check=False
        )

    return run


def claims(cluster: EmbeddedCluster, namespace: str) -> list[dict[str, Any]]:
    return list(cluster.api.get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims")["items"])


def test_a_cluster_is_emptied_once_the_loss_of_data_is_accepted(
    cluster: EmbeddedCluster,
    namespace: str,
    teardown: Teardown,
    new_release: Callable[[], InstalledRelease],
) -> None:
    new_release().install("etcd", "store", namespace)
    cluster.add_claim("data", namespace)
    service = {"metadata": {"name": "board"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}}
    cluster.api.create(f"/api/v1/namespaces/{namespace}/services", service)

    def is_bound() -> bool:
        return all(each["status"].get("phase") == "Bound" for each in claims(cluster, namespace))

    waiting.until(is_bound)

    listed = teardown()
    assert listed.returncode == 0, listed.stderr
    assert f"release store in {namespace}" in listed.stdout
    assert f"load balancer of Service board in {namespace}" in listed.stdout
    assert f"claim data in {namespace}: deletes pvc-" in listed.stdout
    assert listed.stdout.endswith("Nothing was deleted: add --yes\n")

    refused = teardown("--yes")
    assert refused.returncode == 1
    assert "add --delete-data" in refused.stderr
    assert "data" in {each["metadata"]["name"] for each in claims(cluster, namespace)}
    assert cluster.api.find(f"/api/v1/namespaces/{namespace}/services/board")

    emptied = teardown("--yes", "--delete-data")
    assert emptied.returncode == 0, emptied.stderr
    assert "Now delete the cluster" in emptied.stdout
    assert "What stays until you delete it: S3 buckets" in emptied.stdout
    assert claims(cluster, namespace) == []
    assert cluster.api.find(f"/api/v1/namespaces/{namespace}/services/board") is None

    again = teardown("--yes")
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("nothing is left that AWS would keep")


def test_a_volume_that_is_kept_needs_no_permission(
    cluster: EmbeddedCluster, namespace: str, teardown: Teardown
) -> None:
    volume = f"kept-{namespace}"
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "csi": {"driver": "efs.csi.aws.com", "volumeHandle": "fs-1"},
    }
    cluster.api.create("/api/v1/persistentvolumes", {"metadata": {"name": volume}, "spec": spec})
    try:
        claim = {
            "metadata": {"name": "data"},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "",
                "volumeName": volume,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        cluster.api.create(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims", claim)
        waiting.until(lambda: claims(cluster, namespace)[0]["status"].get("phase") == "Bound")
        done = teardown("--yes")
        assert done.returncode == 0, done.stderr
        assert claims(cluster, namespace) == []
        assert cluster.api.find(f"/api/v1/persistentvolumes/{volume}")
    finally:
        cluster.api.delete(f"/api/v1/persistentvolumes/{volume}")
