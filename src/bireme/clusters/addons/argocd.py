"""Argo CD's application controller and repository server, beside the control plane, with a Redis.

Their rights are those of the cluster's kubeconfig, which is also the cluster that they call in-cluster. There
is not a web server: Applications, the default project and repositories are objects in the namespace argocd.
"""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from bireme.clusters import programs
from bireme.clusters.addons.kinds import add_kinds
from bireme.clusters.base import Cluster
from bireme.clusters.ports import reserved
from bireme.clusters.programs import Program
from bireme.tools import Toolbox

_NAMESPACE = "argocd"
_KINDS = ("application", "appproject")
_SECONDS = 120
_PART = {"app.kubernetes.io/part-of": "argocd"}
# What an installation has from its first manifests.
_SETTINGS = (
    ("/api/v1/namespaces/argocd/configmaps", {"metadata": {"name": "argocd-cm", "labels": _PART}}),
    ("/api/v1/namespaces/argocd/secrets", {"metadata": {"name": "argocd-secret", "labels": _PART}}),
)
_PROJECT = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "AppProject",
    "metadata": {"name": "default"},
    "spec": {
        "sourceRepos": ["*"],
        "destinations": [{"namespace": "*", "server": "*"}],
        "clusterResourceWhitelist": [{"group": "*", "kind": "*"}],
    },
}


def start(cluster: Cluster, toolbox: Toolbox) -> Program:
    """Start Argo CD with its kinds; returns the controller when all is ready. Raises BiremeError."""
    binary, helm = toolbox.path("argocd"), toolbox.path("helm3")
    folder = toolbox.source("argocd") / "manifests/crds"
    files = (folder / f"{name}-crd.yaml" for name in _KINDS)
    add_kinds(cluster, (yaml.safe_load(file.read_text(encoding="utf-8")) for file in files))
    cluster.api.create("/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}})
    for path, body in _SETTINGS:
        cluster.api.create(path, body)
    cluster.api.create(f"/apis/argoproj.io/v1alpha1/namespaces/{_NAMESPACE}/appprojects", _PROJECT)
    with reserved(4) as (redis, repositories, health, metrics):
        local = "127.0.0.1"
        _run(cluster, "argocd-redis", binary, f"redis {local}:{redis}", helm)
        arguments = (
            f"repo-server --disable-tls --address={local} --port={repositories} "
            f"--metrics-address={local} --metrics-port={health} --redis={local}:{redis}"
        )
        server = _run(cluster, "argocd-repo-server", binary, arguments, helm)
        server.wait_ready(f"http://{local}:{health}/healthz", _SECONDS)
        arguments = (
            f"application-controller --namespace={_NAMESPACE} --metrics-port={metrics} "
            f"--repo-server={local}:{repositories} --repo-server-plaintext --redis={local}:{redis}"
        )
        controller = _run(cluster, "argocd-application-controller", binary, arguments, helm)
        controller.wait_ready(f"http://{local}:{metrics}/healthz", _SECONDS)
    return controller


def _run(cluster: Cluster, name: str, binary: Path, arguments: str, helm: Path) -> Program:
    """Run one program; it finds Helm 3 as `helm`, and git where this process does."""
    folder = programs.new_folder(cluster, name)
    tools = folder / "bin"
    tools.mkdir()
    (tools / "helm").symlink_to(helm)
    environment = {
        "KUBECONFIG": str(cluster.kubeconfig),
        "ARGOCD_FAKE_IN_CLUSTER": "true",
        "ARGOCD_GPG_ENABLED": "false",
        "ARGOCD_TLS_DATA_PATH": str(folder),
        "ARGOCD_SSH_DATA_PATH": str(folder),
        # A socket without a file: one in this folder would have too long a name.
        "ARGOCD_ASK_PASS_SOCK": f"@{cluster.name}-{name}",
        "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "TMPDIR": str(folder),
    }
    return programs.start(folder, binary, arguments.split(), environment)
