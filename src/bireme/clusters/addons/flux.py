"""Flux's controllers of sources, Kustomizations and HelmReleases, beside the control plane.

Their rights are those of the cluster's kubeconfig. They find artifacts at an address of this machine, as all
of them run on it.
"""

from __future__ import annotations

from pathlib import Path

from bireme.clusters import programs
from bireme.clusters.addons.kinds import add_kinds, definitions
from bireme.clusters.base import Cluster
from bireme.clusters.ports import reserved
from bireme.clusters.programs import Program
from bireme.tools import Toolbox

_NAMESPACE = "flux-system"
_CONTROLLERS = ("source-controller", "kustomize-controller", "helm-controller")
_SECONDS = 120


def start(cluster: Cluster, toolbox: Toolbox) -> Program:
    """Start Flux with its kinds; returns the helm-controller when all are ready. Raises BiremeError."""
    binaries = toolbox.ensure(_CONTROLLERS)
    sources = (toolbox.source(name) / "config/crd/bases" for name in _CONTROLLERS)
    add_kinds(cluster, definitions(*sources))
    cluster.api.create("/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}})
    with reserved(1) as (storage,):
        for name in _CONTROLLERS:
            program = _run(cluster, name, binaries[name], storage)
    return program


def _run(cluster: Cluster, name: str, binary: Path, storage: int) -> Program:
    """Run one controller; ``storage`` is the port at which the source-controller serves artifacts."""
    folder = programs.new_folder(cluster, name)
    with reserved(1) as (health,):
        arguments = [f"--health-addr=127.0.0.1:{health}", "--metrics-addr=0"]
        if name == "source-controller":
            artifacts = folder / "artifacts"
            artifacts.mkdir()
            address = f"127.0.0.1:{storage}"
            arguments += [
                f"--storage-path={artifacts}",
                f"--storage-addr={address}",
                f"--storage-adv-addr={address}",
            ]
        # They keep what they unpack in the folder for temporary files, which is removed with the cluster.
        environment = {
            "KUBECONFIG": str(cluster.kubeconfig),
            "RUNTIME_NAMESPACE": _NAMESPACE,
            "TMPDIR": str(folder),
        }
        program = programs.start(folder, binary, arguments, environment)
        program.wait_ready(f"http://127.0.0.1:{health}/readyz", _SECONDS)
    return program
