"""Charts of other people, whose pods have no label of the release: installed, compared and removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bireme.cli import cli
from bireme.clusters.api import ApiError
from bireme.clusters.base import Cluster
from bireme.clusters.waiting import until
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory

IMAGE = "registry.example.com/web:1.0"
WEB = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: "{{{{ .Release.Name }}}}-web"}}
spec:
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec: {{containers: [{{name: web, image: {IMAGE}, ports: [{{name: http, containerPort: 9898}}]}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: "{{{{ .Release.Name }}}}-web"}}
spec: {{selector: {{app: web}}, ports: [{{port: 80, targetPort: http}}]}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {{name: "{{{{ .Release.Name }}}}-web"}}
spec:
  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: "{{{{ .Release.Name }}}}-web"}}
  minReplicas: 2
  maxReplicas: 4
"""
CACHE = f"""
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: "{{{{ .Release.Name }}}}-cache"}}
spec:
  replicas: {{{{ .Values.caches }}}}
  serviceName: cache
  selector: {{matchLabels: {{app: cache}}}}
  template:
    metadata: {{labels: {{app: cache}}}}
    spec: {{containers: [{{name: cache, image: {IMAGE}}}]}}
"""
KIND = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: databases.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Database, plural: databases, singular: database}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""
DATABASE = """
apiVersion: example.com/v1
kind: Database
metadata: {name: "{{ .Release.Name }}-db"}
"""
API = """
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.metrics.example.com}
spec:
  group: metrics.example.com
  version: v1
  service: {name: "{{ .Release.Name }}-web", namespace: "{{ .Release.Namespace }}", port: 80}
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
"""
# As NVIDIA's chart chooses its nodes, and by a label that somebody has to give them.
DAEMONS = f"""
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: "{{{{ .Release.Name }}}}"}}
spec:
  selector: {{matchLabels: {{app: mps}}}}
  template:
    metadata: {{labels: {{app: mps}}}}
    spec:
      {{{{- .Values.nodes | toYaml | nindent 6 }}}}
      tolerations: [{{operator: Exists}}]
      containers: [{{name: mps, image: {IMAGE}}}]
"""
SELECTOR = {"nodeSelector": {"nvidia.com/mps.capable": "true"}}
KEYS = ("feature.node.kubernetes.io/pci-10de.present", "nvidia.com/gpu.present")
TERMS = [{"matchExpressions": [{"key": key, "operator": "In", "values": ["true"]}]} for key in KEYS]
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": TERMS}}
AFFINITY = {"affinity": {"nodeAffinity": REQUIRED}}


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    """A web server with an autoscaler, caches, and an object whose pods an operator makes."""
    files = {
        "Chart.yaml": "{apiVersion: v2, name: shop, version: 1.0.0}",
        "values.yaml": "caches: 1",
        "templates/web.yaml": WEB,
        "templates/cache.yaml": CACHE,
        "templates/database.yaml": DATABASE,
        "crds/databases.yaml": KIND,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def operate(cluster: Cluster) -> Iterator[Callable[[InstalledRelease], None]]:
    """Does what an operator does: makes a StatefulSet for the database of a release."""

    def make(release: InstalledRelease) -> None:
        (database,) = release.objects("databases")
        meta = database["metadata"]
        owner = {"apiVersion": "example.com/v1", "kind": "Database", "name": meta["name"], "uid": meta["uid"]}
        container = {"name": "db", "image": IMAGE}
        body = {
            "metadata": {"name": "db-main", "ownerReferences": [{**owner, "controller": True}]},
            "spec": {
                "serviceName": "db",
                "selector": {"matchLabels": {"app": "db"}},
                "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [container]}},
            },
        }
        cluster.api.create(f"/apis/apps/v1/namespaces/{release.namespace}/statefulsets", body)

    yield make
    cluster.api.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/databases.example.com")


def test_pods_of_a_chart_without_labels_are_installed_compared_and_removed(
    cluster: Cluster, release: ReleaseFactory, chart: Path, operate: Callable[[InstalledRelease], None]
) -> None:
    stranger: dict[str, Any] = {"metadata": {"name": "web-stranger", "labels": {"app": "other"}}}
    stranger["spec"] = {"containers": [{"name": "web", "image": IMAGE}]}
    first = release(chart, values={"caches": 2})
    pods = f"/api/v1/namespaces/{first.namespace}/pods"
    cluster.api.create(pods, stranger)
    assert {pod.kind for pod in first.pods()} == {"Deployment", "StatefulSet"}
    assert first.names("pods")[:2] == [f"{first.name}-cache-0", f"{first.name}-cache-1"]
    assert len(first.names("pods")) == 4, "two caches, and two web servers that the autoscaler wants"
    operate(first)
    first.until(lambda: "db-main-0" in first.names("pods") and first.differences() == ())
    assert {pod.name: (pod.kind, pod.workload) for pod in first.pods()}["db-main-0"] == (
        "Database",
        f"{first.name}-db",
    )
    # A number that the autoscaler may choose is as planned, without another look at the plan.
    scale = f"/apis/apps/v1/namespaces/{first.namespace}/deployments/{first.name}-web"
    cluster.api.patch(scale, {"spec": {"replicas": 3}})
    first.until(lambda: len(first.names("pods")) == 6 and first.differences() == ())
    first.upgrade(values={"caches": 1})
    first.uninstall()
    assert first.names("pods") == []
    until(lambda: len(cluster.api.get(pods)["items"]) == 1, 30, "the stranger to be alone")
    cluster.api.delete(f"{pods}/web-stranger")


def test_an_api_of_a_pod_that_does_not_answer_hides_no_objects(
    cluster: Cluster, release: ReleaseFactory, tmp_path: Path
) -> None:
    """As metrics-server's. Nothing runs on fake nodes, so its API stays silent."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: metrics, version: 1.0.0}")
    (tmp_path / "templates/web.yaml").write_text(WEB)
    (tmp_path / "templates/api.yaml").write_text(API)
    made = release(tmp_path)
    asked = "/apis/metrics.example.com/v1"
    until(lambda: _status(cluster, asked) == 503, 60, "the API to be known")
    assert made.names("apiservices") == ["v1.metrics.example.com"]
    assert len(made.names("pods")) == len(made.names("replicasets")) + 1 == 2
    assert made.differences() == ()
    made.uninstall()
    until(lambda: _status(cluster, asked) == 404, 60, "the API to be gone")


def _status(cluster: Cluster, path: str) -> int:
    try:
        cluster.api.get(path)
    except ApiError as error:
        return error.status
    return 200


@pytest.mark.whole
@pytest.mark.parametrize(
    ("nodes", "labels"),
    [(SELECTOR, "nvidia.com/mps.capable=true"), (AFFINITY, " or ".join(f"{key}=true" for key in KEYS))],
    ids=["selector", "affinity"],
)
def test_a_daemonset_that_no_node_takes_is_told_by_plan_status_and_doctor(
    cluster: Cluster, release: ReleaseFactory, tmp_path: Path, nodes: dict[str, Any], labels: str
) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: mps, version: 1.0.0}")
    (tmp_path / "values.yaml").write_text(json.dumps({"nodes": nodes}))
    (tmp_path / "templates/daemons.yaml").write_text(DAEMONS)
    made = release(tmp_path)

    def said(*command: str) -> tuple[int, str]:
        where = ["--namespace", made.namespace, "--kubeconfig", str(cluster.kubeconfig)]
        done = CliRunner().invoke(cli, [*command, *where])
        return done.exit_code, " ".join(done.output.split())

    told = f"No node takes pods of DaemonSet/{made.name}, which want nodes labelled {labels}"
    assert f"on each node labelled {labels}" in made.plan.workloads[0].headline
    assert told in said("status", made.name)[1]
    code, text = said("doctor", made.name, "-o", "json")
    assert (code, told in text) == (1, True), text
    # A node of the kind, though nobody has installed what labels it.
    (node, *_) = cluster.api.get("/api/v1/nodes")["items"]
    path = f"/api/v1/nodes/{node['metadata']['name']}"
    (key, *_) = nodes.get("nodeSelector") or KEYS
    cluster.api.patch(path, {"metadata": {"labels": {key: "true"}}})
    try:
        made.until(lambda: len(made.names("pods")) == 1 and made.differences() == ())
        assert told not in said("status", made.name)[1]
        assert told not in said("doctor", made.name, "-o", "json")[1]
    finally:
        cluster.api.patch(path, {"metadata": {"labels": {key: None}}})


@pytest.mark.whole
def test_what_a_list_has_is_planned_installed_and_compared(release: ReleaseFactory, tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: listed, version: 1.0.0}")
    spec: dict[str, Any] = {
        "containers": [{"name": "main", "image": IMAGE, "resources": {"limits": {"nvidia.com/gpu": 8}}}]
    }
    spec["nodeSelector"] = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    job = {"parallelism": 2, "template": {"spec": {**spec, "restartPolicy": "Never"}}}
    about = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "listed"}, "spec": job}
    listed = {"apiVersion": "v1", "kind": "List", "items": [about]}
    (tmp_path / "templates/list.yaml").write_text(json.dumps(listed))
    made = release(tmp_path, expect_differences=True)
    assert (len(made.plan.pods), made.plan.totals.accelerators) == (2, 16)
    # No node of the cluster is of that type, so both wait.
    assert [each.category for each in made.differences()] == ["pending", "pending"]
