"""Kueue's manager, beside the control plane instead of in a pod.

Its rights are those of the cluster's kubeconfig. It makes its certificate itself, as in a pod; the Secret is
copied into its folder as a kubelet would mount it, and the Service of its webhooks stands for this machine.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bireme.clusters import programs
from bireme.clusters.addons.kinds import add_kinds, definitions
from bireme.clusters.base import Cluster
from bireme.clusters.ports import reserved
from bireme.clusters.programs import Program
from bireme.clusters.waiting import until
from bireme.tools import Toolbox

_NAMESPACE = "kueue-system"
_SERVICE = "kueue-webhook-service"
_SECRET = "kueue-webhook-server-cert"
_SECONDS = 120
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
# What the charts' jobs consist of. Only those of a queue are looked at: others start also without Kueue.
_FRAMEWORKS = ("batch/job", "kubeflow.org/mpijob", "pod")
_RESOURCES = frozenset({"jobs", "mpijobs", "pods"})
_OF_A_QUEUE = {"matchExpressions": [{"key": "kueue.x-k8s.io/queue-name", "operator": "Exists"}]}
# Kinds of several versions, between which Kueue converts.
_CONVERTED = frozenset({"clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads"})


def start(cluster: Cluster, toolbox: Toolbox) -> Program:
    """Start Kueue with its kinds and webhooks; returns when it is ready. Raises BiremeError.

    Elastic jobs are on; the API of pending workloads is off.
    """
    folder = programs.new_folder(cluster, "kueue")
    binary, components = toolbox.path("kueue"), toolbox.source("kueue") / "config/components"
    with reserved(2) as (webhook, health):
        service = {"namespace": _NAMESPACE, "name": _SERVICE, "port": webhook}
        make_namespace(cluster, _NAMESPACE, _SECRET, _SERVICE)
        add_kinds(cluster, _definitions(components / "crd/bases", service))
        for path, body in _webhooks(components / "webhook/manifests.yaml", service):
            cluster.api.create(f"{_ADMISSION}/{path}", body)
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(_configuration(folder, webhook, health)), encoding="utf-8")
        environment = {"KUBECONFIG": str(cluster.kubeconfig)}
        program = programs.start(folder, binary, [f"--config={config}"], environment)
        mount_certificate(cluster, program, f"{_NAMESPACE}/secrets/{_SECRET}", folder / "certificate")
        program.wait_ready(f"http://127.0.0.1:{health}/readyz", _SECONDS)
    return program


def _configuration(folder: Path, webhook: int, health: int) -> dict[str, Any]:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": _NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(folder / "certificate")},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {
            "enable": True,
            "webhookServiceName": _SERVICE,
            "webhookSecretName": _SECRET,
        },
        "featureGates": {"ElasticJobsViaWorkloadSlices": True, "VisibilityOnDemand": False},
        "integrations": {"frameworks": list(_FRAMEWORKS)},
    }


def make_namespace(cluster: Cluster, name: str, secret: str, service: str) -> None:
    """A controller's namespace, with the Secret for its certificate and the Service of its webhooks."""
    cluster.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    cluster.api.create(f"/api/v1/namespaces/{name}/secrets", {"metadata": {"name": secret}})
    # An ExternalName: no one routes the address of another Service on this machine.
    body = {"metadata": {"name": service}, "spec": {"type": "ExternalName", "externalName": "localhost"}}
    cluster.api.create(f"/api/v1/namespaces/{name}/services", body)


def _definitions(folder: Path, service: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for definition in definitions(folder):
        if definition["spec"]["names"]["plural"] in _CONVERTED:
            webhook = {
                "clientConfig": {"service": {**service, "path": "/convert"}},
                "conversionReviewVersions": ["v1"],
            }
            definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
        yield definition


def _webhooks(file: Path, service: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kueue's own webhooks and those of the kinds that it queues here, and where to create them."""
    for configuration in yaml.safe_load_all(file.read_text(encoding="utf-8")):
        kept = []
        for webhook in configuration["webhooks"]:
            (rule,) = webhook["rules"]
            webhook["clientConfig"]["service"] |= service
            if _RESOURCES & set(rule["resources"]):
                kept.append(webhook | {"objectSelector": _OF_A_QUEUE})
            elif "kueue.x-k8s.io" in rule["apiGroups"]:
                kept.append(webhook)
        name = f"kueue-{configuration['metadata']['name']}"
        path = f"{configuration['kind'].lower()}s"
        yield path, configuration | {"metadata": {"name": name}, "webhooks": kept}


def mount_certificate(cluster: Cluster, program: Program, secret: str, folder: Path) -> None:
    """Write ``secret``, as in kueue-system/secrets/cert, to ``folder`` once ``program`` has filled it."""

    def data() -> dict[str, str]:
        return cluster.api.get(f"/api/v1/namespaces/{secret}").get("data") or {}

    until(lambda: program.has_ended() or "tls.key" in data(), _SECONDS, f"a certificate in {secret}")
    program.check_alive()
    folder.mkdir(mode=0o700, parents=True)
    for name, content in data().items():
        (folder / name).write_bytes(base64.b64decode(content))
