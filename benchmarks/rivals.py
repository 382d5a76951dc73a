"""Controllers of other projects that make the same pods, for benchmarks/startup.py and goodput.py.

Each is pinned by a go.mod in benchmarks/pins and runs as the cluster's administrator with its own defaults,
except that it has no leader election and its webhooks are not called, because it runs outside the cluster.
The jobs here set the fields that the webhooks would set.
"""

from __future__ import annotations

import base64
import contextlib
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bireme.clusters.embedded import EmbeddedCluster
from bireme.clusters.kind import KindCluster
from bireme.clusters.waiting import until
from bireme.core.errors import BiremeError
from bireme.tools import Toolbox

PINS = Path(__file__).parent / "pins"
_READY_SECONDS = 120

Manifest = dict[str, Any]
Cluster = EmbeddedCluster | KindCluster


@dataclass(frozen=True)
class Rival:
    """A controller: its pin and Go tool, its Kubernetes kinds, and how it is started and given a job.

    ``crds`` are paths in its module; ``setup`` makes what it needs on the cluster and in a folder, and gives
    its arguments; ``job`` makes a job of a name and a Job's spec, and what it refers to; ``port`` is where it
    says that it is ready; ``helper`` is the controller that its own jobs need.
    """

    name: str
    pin: str
    tool: str
    module: str
    crds: tuple[str, ...]
    setup: Callable[[Cluster, Path], list[str]]
    job: Callable[[str, Mapping[str, Any]], list[Manifest]]
    port: int = 8081
    helper: Rival | None = None

    @contextlib.contextmanager
    def running(self, cluster: Cluster, toolbox: Toolbox, folder: Path) -> Iterator[None]:
        """Run the controller, and its helper, beside ``cluster``; their files are in ``folder``."""
        helping = self.helper.running(cluster, toolbox, folder) if self.helper else contextlib.nullcontext()
        own = folder / self.pin
        own.mkdir(exist_ok=True)
        with helping, self._running(cluster, toolbox, own):
            yield

    def program(self, toolbox: Toolbox) -> str:
        """The path of the controller, which is built if it is missing. Raises BiremeError."""
        return self._go(toolbox, "tool", "-n", self.tool)

    @contextlib.contextmanager
    def _running(self, cluster: Cluster, toolbox: Toolbox, folder: Path) -> Iterator[None]:
        program = self.program(toolbox)
        source = Path(self._go(toolbox, "list", "-m", "-f", "{{.Dir}}", self.module))
        for crd in self.crds:
            _apply(cluster, toolbox, source / crd)
        arguments = self.setup(cluster, folder)
        log = folder / "log"
        environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "MY_POD_NAMESPACE": "default"}
        with log.open("wb") as output:
            process = subprocess.Popen([program, *arguments], env=environment, stdout=output, stderr=output)
        try:
            until(lambda: self._is_ready(process), _READY_SECONDS, f"{self.name} to be ready ({log})")
            if process.poll() is not None:
                lines = log.read_text(errors="replace").strip().splitlines()[-10:]
                raise BiremeError("\n  ".join([f"{self.name} ended with {process.returncode}:", *lines]))
            yield
        finally:
            process.terminate()
            process.wait()

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is not None:
            return True
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as answer:
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


def _apply(cluster: Cluster, toolbox: Toolbox, crd: Path) -> None:
    """Install a CustomResourceDefinition, and wait until the API server serves it."""
    kubectl = [str(toolbox.path("kubectl")), "--kubeconfig", str(cluster.kubeconfig)]
    subprocess.run([*kubectl, "apply", "--server-side", "-f", str(crd)], check=True, capture_output=True)
    wait = [*kubectl, "wait", "--for=condition=Established", "--timeout=60s", "-f", str(crd)]
    # Retried, because kubectl fails while the CustomResourceDefinition has no conditions.
    until(lambda: subprocess.run(wait, capture_output=True).returncode == 0, 120, f"the kind of {crd.name}")


# --- JobSet ---


def _jobset_arguments(cluster: Cluster, folder: Path) -> list[str]:
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


def _jobset(name: str, job: Mapping[str, Any]) -> list[Manifest]:
    spec = _jobset_spec({"name": "worker", "replicas": 1, "template": {"spec": dict(job)}})
    version = "jobset.x-k8s.io/v1alpha2"
    return [{"apiVersion": version, "kind": "JobSet", "metadata": {"name": name}, "spec": spec}]


def _jobset_spec(replicated: Manifest) -> Manifest:
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All"},
        "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
        "replicatedJobs": [replicated],
    }


def _certificates(cluster: Cluster, folder: Path) -> Path:
    """A folder with any certificate and key: the webhooks need them to start, but are not called."""
    folder.mkdir(parents=True, exist_ok=True)
    (user,) = (each["user"] for each in yaml.safe_load(cluster.kubeconfig.read_text())["users"])
    for key, file in (("client-certificate", "tls.crt"), ("client-key", "tls.key")):
        inline = user.get(f"{key}-data")
        # A relative path is one from the kubeconfig.
        there = base64.b64decode(inline) if inline else (cluster.kubeconfig.parent / user[key]).read_bytes()
        (folder / file).write_bytes(there)
    return folder


# The path of the webhook certificates in the containers of the next two controllers.
_MOUNTED = Path("/tmp/k8s-webhook-server/serving-certs")


# --- PyTorchJob ---


def _training_operator_arguments(cluster: Cluster, folder: Path) -> list[str]:
    _certificates(cluster, _MOUNTED)
    # It requires both, because it writes its own certificate into them.
    webhooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    secrets = "/api/v1/namespaces/default/secrets"
    for path, name in (
        (webhooks, "validator.training-operator.kubeflow.org"),
        (secrets, "training-operator-webhook-cert"),
    ):
        if cluster.api.find(f"{path}/{name}") is None:
            cluster.api.create(path, {"metadata": {"name": name}})
    # JobSet uses 9443 and 8081, trainer 9444 and 8082.
    ports = ["--webhook-server-port=9445", "--health-probe-bind-address=:8083"]
    return ["--enable-scheme=pytorchjob", "--metrics-bind-address=0", *ports]


def _pytorch_job(name: str, job: Mapping[str, Any]) -> list[Manifest]:
    template = _with_container_called("pytorch", job["template"])

    def replica(count: int) -> Manifest:
        return {"replicas": count, "restartPolicy": "Never", "template": template}

    roles = {"Master": replica(1), "Worker": replica(job["completions"] - 1)}
    spec = {"pytorchReplicaSpecs": {role: each for role, each in roles.items() if each["replicas"]}}
    version = "kubeflow.org/v1"
    return [{"apiVersion": version, "kind": "PyTorchJob", "metadata": {"name": name}, "spec": spec}]


def _with_container_called(name: str, template: Mapping[str, Any]) -> Manifest:
    """The pod template; these controllers find their container by its name."""
    first, *others = template["spec"]["containers"]
    return {**template, "spec": {**template["spec"], "containers": [{**first, "name": name}, *others]}}


# --- TrainJob ---


def _trainer_arguments(cluster: Cluster, folder: Path) -> list[str]:
    _certificates(cluster, _MOUNTED)
    config = folder / "trainer.yaml"
    settings = {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "certManagement": {"enable": False},
        # JobSet uses 9443 and 8081.
        "webhook": {"port": 9444},
        "health": {"healthProbeBindAddress": ":8082"},
        "metrics": {"bindAddress": "0"},
    }
    config.write_text(yaml.safe_dump(settings))
    return [f"--config={config}"]


def _train_job(name: str, job: Mapping[str, Any]) -> list[Manifest]:
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    # JobSet has other names for these, and policies that name the container.
    spec = {"template": _with_container_called("node", job["template"])}
    replicated = {"name": "node", "template": {"metadata": {"labels": labels}, "spec": spec}}
    version, metadata = "trainer.kubeflow.org/v1alpha1", {"name": name}
    runtime = {"mlPolicy": {"numNodes": 1}, "template": {"spec": _jobset_spec(replicated)}}
    reference = {"apiGroup": version.partition("/")[0], "kind": "TrainingRuntime", "name": name}
    train = {"runtimeRef": reference, "trainer": {"numNodes": job["completions"]}}
    return [
        {"apiVersion": version, "kind": "TrainingRuntime", "metadata": metadata, "spec": runtime},
        {"apiVersion": version, "kind": "TrainJob", "metadata": metadata, "spec": train},
    ]


JOBSET = Rival(
    name="JobSet",
    pin="jobset",
    tool="jobset",
    module="sigs.k8s.io/jobset",
    crds=("config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",),
    setup=_jobset_arguments,
    job=_jobset,
)
RIVALS = (
    JOBSET,
    Rival(
        name="PyTorchJob",
        pin="training-operator",
        tool="training-operator.v1",
        module="github.com/kubeflow/training-operator",
        crds=("manifests/base/crds/kubeflow.org_pytorchjobs.yaml",),
        setup=_training_operator_arguments,
        job=_pytorch_job,
        port=8083,
    ),
    Rival(
        name="TrainJob",
        pin="trainer",
        tool="trainer-controller-manager",
        module="github.com/kubeflow/trainer/v2",
        crds=tuple(
            f"manifests/base/crds/trainer.kubeflow.org_{plural}.yaml"
            for plural in ("trainjobs", "trainingruntimes", "clustertrainingruntimes")
        ),
        setup=_trainer_arguments,
        job=_train_job,
        port=8082,
        helper=JOBSET,
    ),
)
