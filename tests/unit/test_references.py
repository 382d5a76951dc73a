"""What objects name, or select by labels, is in the release, or is said to be nowhere."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from bireme.check.objects import object_findings
from bireme.core.manifests import Manifest

WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: release-web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, tier: front}}
    spec:
      initContainers: [{name: proxy, restartPolicy: Always, ports: [{name: admin, containerPort: 15000}]}]
      containers: [{name: web, image: web, ports: [{name: http, containerPort: 8080}, {containerPort: 9000}]}]
"""
SERVICE = "{apiVersion: v1, kind: Service, metadata: {name: release-web}, spec: {%s}}"
POD = """
apiVersion: batch/v1
kind: Job
metadata: {name: release-load}
spec: {template: {spec: {restartPolicy: Never, %s}}}
"""
CONTAINER = "containers: [{name: a, image: a:1, %s}]"


def findings(*texts: str) -> list[str]:
    """What is wrong, in the order of the objects, of a release called `release`."""
    return [
        f"{each.path}: {each.sentence}"
        for each in object_findings([Manifest(yaml.safe_load(text)) for text in texts])
    ]


def test_a_service_without_a_pod_that_has_all_its_labels() -> None:
    said = "Service/release-web: no pod has the labels app=web,tier=back, which it selects"
    assert findings(WEB, SERVICE % "selector: {app: web, tier: back}") == [said]


@pytest.mark.parametrize(
    "spec",
    [
        "selector: {app: web}, ports: [{port: 80, targetPort: 8080}, {port: 81, targetPort: admin, name: b}]",
        "type: ExternalName, externalName: example.com",
        "selector: {app: web, statefulset.kubernetes.io/pod-name: web-0}",
    ],
    ids=["a number and a sidecar's port", "no selector", "one pod of a StatefulSet"],
)
def test_a_service_that_serves(spec: str) -> None:
    assert findings(WEB, SERVICE % spec) == []


@pytest.mark.parametrize(
    ("part", "what"),
    [
        (CONTAINER % "envFrom: [{secretRef: {name: NAME}}]", "Secret"),
        ("volumes: [{name: v, secret: {secretName: NAME}}]", "Secret"),
        ("volumes: [{name: v, projected: {sources: [{configMap: {name: NAME}}]}}]", "ConfigMap"),
    ],
)
def test_what_a_pod_mounts_or_reads_under_the_releases_name_is_the_releases(part: str, what: str) -> None:
    said = f"Job/release-load: there is no {what} release-own, which it names"
    assert findings(POD % part.replace("NAME", "release-own")) == [said]
    assert findings(POD % part.replace("NAME", "of-the-cluster")) == []


@pytest.mark.parametrize(
    "part",
    [
        CONTAINER % "envFrom: [{secretRef: {name: release-own, optional: true}}]",
        "volumes: [{name: v, secret: {secretName: release-own, optional: true}}]",
    ],
)
def test_what_is_optional_may_be_missing(part: str) -> None:
    assert findings(POD % part) == []


@pytest.mark.parametrize(
    "maker",
    [
        """
        apiVersion: cert-manager.io/v1
        kind: Certificate
        metadata: {name: c}
        spec: {secretName: release-own}
        """,
        """
        apiVersion: v1
        kind: Pod
        metadata: {name: certgen, annotations: {helm.sh/hook: "pre-install,pre-upgrade"}}
        spec: {containers: [{name: a, image: a:1, args: [create, --secret-name=release-own]}]}
        """,
    ],
    ids=["an operator", "a hook"],
)
def test_what_a_hook_or_an_operator_makes_is_there(maker: str) -> None:
    assert findings(POD % "volumes: [{name: v, secret: {secretName: release-own}}]", maker) == []


def test_pods_that_an_operator_may_make_are_not_missed() -> None:
    database = "{apiVersion: example.com/v1, kind: Database, metadata: {name: db}, spec: {replicas: 3}}"
    assert findings(database, SERVICE % "selector: {app: db}") == []


@pytest.mark.parametrize("spec", ["selector: [a]", "selector: {app: {a: 1}}"])
def test_an_object_that_is_none_is_not_this_checks_to_refuse(spec: str) -> None:
    found: list[Any] = findings(WEB, SERVICE % spec)
    assert all("labels" in each for each in found)
