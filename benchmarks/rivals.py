"""Controllers of other projects that make the same pods, built only for benchmarks/startup.py.

Each is pinned by a go.mod in benchmarks/pins and runs as the cluster's administrator, by its own defaults but
for what it needs to run beside a control plane without containers: no leader election, and webhooks that
nobody calls. What their webhooks would fill in, the jobs here say themselves.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bireme.clusters.embedded import EmbeddedCluster
from bireme.clusters.patience import until
from bireme.errors import BiremeError
from bireme.tools import Toolbox

PINS = Path(__file__).parent / "pins"
_READY_SECONDS = 120

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Rival:
    """A controller: its pin and Go tool, the kind it serves, and how it is started and told of a job.

    ``crd`` is a path in its module; ``setup`` makes what it needs on the cluster and in a folder, and gives
    its arguments; ``job`` makes a job of a name and a Job's spec.
    """

    name: str
    pin: str
    tool: str
    module: str
    crd: str
    setup: Callable[[EmbeddedCluster, Path], list[str]]
    job: Callable[[str, Mapping[str, Any]], Manifest]

    @contextlib.contextmanager
    def running(self, cluster: EmbeddedCluster, toolbox: Toolbox, folder: Path) -> Iterator[None]:
        """The controller beside ``cluster`` meanwhile; its files are in ``folder``."""
        program = self._go(toolbox, "tool", "-n", self.tool)
        source = Path(self._go(toolbox, "list", "-m", "-f", "{{.Dir}}", self.module))
        _apply(cluster, toolbox, source / self.crd)
        arguments = self.setup(cluster, folder)
        log = folder / "log"
        environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
        with log.open("wb") as output:
            process = subprocess.Popen([program, *arguments], env=environment, stdout=output, stderr=output)
        try:
            until(lambda: self._is_ready(process), _READY_SECONDS, f"{self.name} to be ready ({log})")
            if process.poll() is not None:
                said = log.read_text(errors="replace").strip().splitlines()[-10:]
                raise BiremeError("\n  ".join([f"{self.name} ended with {process.returncode}:", *said]))
            yield
        finally:
            process.terminate()
            process.wait()

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is not None:
            return True
        try:
            with urllib.request.urlopen("http://127.0.0.1:8081/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _go(self, toolbox: Toolbox, *arguments: str) -> str:
        environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOTOOLCHAIN": "local"}
        command = [str(toolbox.go()), *arguments]
        done = subprocess.run(
            command, cwd=PINS / self.pin, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BiremeError(f"{self.name} cannot be built: {done.stderr.strip()[-800:]}")
        return done.stdout.strip()


def _apply(cluster: EmbeddedCluster, toolbox: Toolbox, crd: Path) -> None:
    """Install a kind, and wait until the API server serves it."""
    kubectl = [str(toolbox.path("kubectl")), "--kubeconfig", str(cluster.kubeconfig)]
    subprocess.run([*kubectl, "apply", "--server-side", "-f", str(crd)], check=True, capture_output=True)
    wait = [*kubectl, "wait", "--for=condition=Established", "--timeout=60s", "-f", str(crd)]
    # Again and again, because kubectl gives up on a kind that has no conditions yet.
    until(lambda: subprocess.run(wait, capture_output=True).returncode == 0, 120, f"the kind of {crd.name}")


# --- JobSet ---


def _jobset_arguments(cluster: EmbeddedCluster, folder: Path) -> list[str]:
    certificates = _certificates(cluster, folder / "certificates")
    config = folder / "jobset.yaml"
    settings = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"certDir": str(certificates)},
        "metrics": {"bindAddress": "0", "certDir": str(certificates)},
    }
    config.write_text(yaml.safe_dump(settings))
    return [f"--config={config}"]


def _jobset(name: str, job: Mapping[str, Any]) -> Manifest:
    replicated = {"name": "worker", "replicas": 1, "template": {"spec": dict(job)}}
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All"},
        "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
        "replicatedJobs": [replicated],
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": spec,
    }


def _certificates(cluster: EmbeddedCluster, folder: Path) -> Path:
    """A folder with some certificate and key: nobody calls the webhooks that want them."""
    folder.mkdir(parents=True, exist_ok=True)
    (certificate,) = cluster.kubeconfig.parent.rglob("pki/admin.crt")
    shutil.copyfile(certificate, folder / "tls.crt")
    shutil.copyfile(certificate.with_suffix(".key"), folder / "tls.key")
    return folder


RIVALS = (
    Rival(
        name="JobSet",
        pin="jobset",
        tool="jobset",
        module="sigs.k8s.io/jobset",
        crd="config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
        setup=_jobset_arguments,
        job=_jobset,
    ),
)
