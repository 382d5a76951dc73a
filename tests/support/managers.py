"""The controllers of JobSets, TrainJobs and PyTorchJobs beside a control plane, with their webhooks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bireme.clusters import programs
from bireme.clusters.addons.kinds import add_kinds, definitions
from bireme.clusters.addons.kueue import make_namespace, mount_certificate
from bireme.clusters.base import Cluster
from bireme.clusters.ports import reserved
from bireme.tools import Toolbox

_SECONDS = 120
# Where both look for a certificate before they start: its place in their own image.
_IN_THE_IMAGE = Path("/tmp/k8s-webhook-server/serving-certs/tls.crt")


@dataclass(frozen=True)
class Manager:
    """A controller: where its module has its ``kinds`` and ``webhooks``, and how these are called."""

    tool: str
    namespace: str
    service: str
    secret: str
    kinds: str
    plurals: tuple[str, ...]
    webhooks: str
    names: Mapping[str, str]
    config: Mapping[str, Any] = field(default_factory=dict)
    """What its file of settings has; without any it is told by flags."""
    flags: tuple[str, ...] = ()

    @contextlib.contextmanager
    def running(self, cluster: Cluster, toolbox: Toolbox) -> Iterator[programs.Program]:
        """Run it while the block runs, which starts when its webhooks answer."""
        folder = programs.new_folder(cluster, self.tool)
        binary, source = toolbox.path(self.tool), toolbox.source(self.tool)
        with reserved(2) as (webhook, health):
            make_namespace(cluster, self.namespace, self.secret, self.service)
            service = {"namespace": self.namespace, "name": self.service, "port": webhook}
            kinds = (each for each in definitions(source / self.kinds) if each["kind"] != "Kustomization")
            add_kinds(cluster, [each for each in kinds if each["spec"]["names"]["plural"] in self.plurals])
            for each in yaml.safe_load_all((source / self.webhooks).read_text(encoding="utf-8")):
                for one in each["webhooks"]:
                    one["clientConfig"]["service"] |= service
                each["webhooks"] = [
                    one
                    for one in each["webhooks"]
                    if {*self.plurals, "pods"} & {*one["rules"][0]["resources"]}
                ]
                each["metadata"]["name"] = self.names[each["kind"]]
                path = f"/apis/admissionregistration.k8s.io/v1/{each['kind'].lower()}s"
                cluster.api.create(path, each)
            config = {
                **self.config,
                "kind": "Configuration",
                "webhook": {"host": "127.0.0.1", "port": webhook},
                "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
                "metrics": {"bindAddress": "0"},
                "leaderElection": {"leaderElect": False},
            }
            (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
            ports = [f"--webhook-server-port={webhook}", f"--health-probe-bind-address=127.0.0.1:{health}"]
            flags = [*self.flags, *ports] if self.flags else [f"--config={folder / 'config.yaml'}"]
            _IN_THE_IMAGE.parent.mkdir(parents=True, exist_ok=True)
            _IN_THE_IMAGE.touch()
            # The webhook server reads its certificate below the folder for temporary files.
            environment = {"KUBECONFIG": str(cluster.kubeconfig), "TMPDIR": str(folder)}
            program = programs.start(folder, binary, flags, environment)
        try:
            secret = f"{self.namespace}/secrets/{self.secret}"
            mount_certificate(cluster, program, secret, folder / "k8s-webhook-server/serving-certs")
            program.wait_ready(f"http://127.0.0.1:{health}/readyz", _SECONDS)
            yield program
            program.check_alive()
        finally:
            program.stop()


JOBSET = Manager(
    "jobset",
    "jobset-system",
    "jobset-webhook-service",
    "jobset-webhook-server-cert",
    "config/components/crd/bases",
    ("jobsets",),
    "config/components/webhook/manifests.yaml",
    {
        "MutatingWebhookConfiguration": "jobset-mutating-webhook-configuration",
        "ValidatingWebhookConfiguration": "jobset-validating-webhook-configuration",
    },
    {"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "internalCertManagement": {"enable": True}},
)
TRAINER = Manager(
    "trainer",
    "kubeflow-system",
    "kubeflow-trainer-controller-manager",
    "kubeflow-trainer-webhook-cert",
    "manifests/base/crds",
    ("trainjobs", "trainingruntimes", "clustertrainingruntimes"),
    "manifests/base/webhook/manifests.yaml",
    {
        "MutatingWebhookConfiguration": "defaulter.trainer.kubeflow.org",
        "ValidatingWebhookConfiguration": "validator.trainer.kubeflow.org",
    },
    {"apiVersion": "config.trainer.kubeflow.org/v1alpha1"},
)
TRAINING_OPERATOR = Manager(
    "training-operator",
    "kubeflow",
    "training-operator",
    "training-operator-webhook-cert",
    "manifests/base/crds",
    ("pytorchjobs",),
    "manifests/base/webhook/manifests.yaml",
    {"ValidatingWebhookConfiguration": "validator.training-operator.kubeflow.org"},
    flags=("--enable-scheme=pytorchjob", "--metrics-bind-address=0"),
)
