"""The systems of benchmarks/goodput.py: how each starts the training, as its own documents recommend.

All have the same image, script, claim and resources, three workers of one process, and one worker a node
while there is room. What a system is not told here has its own default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from rivals import JOBSET, RIVALS, Rival

from bireme.core.labels import NODE_TYPE_LABEL
from bireme.helm.values import merge
from tests.kind import stock_torchrun
from tests.kind.shell import NODE_TYPE
from tests.kind.training import ANYWHERE

WORKERS, CLAIM, AT = 3, "goodput", stock_torchrun.CLAIM_PATH
IMAGE = "bireme/torch:0.1.0"

Manifest = dict[str, Any]


@dataclass(frozen=True)
class System:
    """One way to train. ``settings`` is what it was told, as it is printed; ``way`` is for the script.

    One of these starts it. ``command`` is a shell command of a worker in an and ``master`` that
    of a further pod. ``values`` are of charts/torch-elastic. ``manifests`` makes the objects of a job of a
    name for the controller ``rival``.

    ``packages`` are those of benchmarks/pins that it needs. ``label`` selects the pods of a job. ``index`` is
    the label with a worker's number.
    """

    name: str
    settings: str
    way: str = "file"
    command: str = ""
    master: str = ""
    packages: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    manifests: Callable[[str, list[str]], list[Manifest]] | None = None
    rival: Rival | None = None
    label: str = "batch.kubernetes.io/job-name={name}"
    index: str = "batch.kubernetes.io/job-completion-index"

    @property
    def pods(self) -> int:
        """How many pods its job has: the workers and its spares."""
        return WORKERS + int(self.values.get("elastic", {}).get("spares", 0))

    def arguments(self, name: str) -> list[str]:
        """The script and its arguments."""
        return [f"{AT}/train.py", f"{AT}/{name}", self.way]

    def shell(self, command: str, name: str, first: str, master: str) -> str:
        """A command of a job of this name, whose first worker and master have these host names."""
        words = {"first": first, "master": master, "name": name, "script": " ".join(self.arguments(name))}
        return command.format(**words)

    def environment(self) -> dict[str, str]:
        """What stock torchrun gets in the chart for Debian's torch, and the packages."""
        own = dict(stock_torchrun.values()["env"])
        if self.packages:
            own["PYTHONPATH"] += f":{AT}/packages/{self.packages}"
        return {**own, "OMP_NUM_THREADS": "1", "USE_LIBUV": "0"}

    def chart_values(self, name: str) -> dict[str, Any]:
        """All values of a job of this name."""
        own: dict[str, Any] = {
            "workers": WORKERS,
            **ANYWHERE,
            "elastic": {"minWorkers": 2, "maxWorkers": WORKERS},
            "args": self.arguments(name),
            "claims": [{"claimName": CLAIM, "mountPath": AT}],
            "placement": {
                "topologySpreadConstraints": [_spread({"batch.kubernetes.io/job-name": f"{name}-r1"})]
            },
        }
        return merge(own, self.values)


class Pods(Protocol):
    """The workers of one job, and what can be done to them; nothing where there is no such worker now."""

    def address(self, worker: int) -> str:
        """The address of a worker's pod, or an empty text."""

    def send(self, signal: str, worker: int, pid: int) -> None:
        """Send a signal to a process of a worker."""

    def delete(self, worker: int) -> None:
        """Delete a worker's pod, which has its time to end."""

    def power_off(self, worker: int) -> None:
        """Lose a worker's node at once; it is back after a minute."""

    def etcd_away(self) -> None:
        """Replace the servers of etcd, if there are some, by empty ones."""

    def words(self) -> str:
        """The last lines of the workers."""


class Stage(Protocol):
    """A place where jobs train on a claim, whose folder on this machine is ``runs``."""

    @property
    def runs(self) -> Any:
        """The folder."""

    def prepare(self, stack: ExitStack, systems: list[System]) -> None:
        """Make ready what these systems need, until the stack ends."""

    def job(self, system: System, name: str) -> AbstractContextManager[Pods]:
        """A job of a system with this name, and its folder, while the block runs."""


def _spread(labels: Mapping[str, str]) -> Manifest:
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(labels)},
    }


def _template(
    name: str, container: str, command: list[str], env: Mapping[str, str] | None = None
) -> Manifest:
    """A pod that runs the command, with Debian's torch made ready as for stock torchrun in the chart."""
    variables = System("", "").environment()
    labels = {"goodput": name}
    trainer: Manifest = {
        "name": container,
        "image": IMAGE,
        "command": command,
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "resources": {"requests": {"cpu": "100m", "memory": "384Mi"}, "limits": {"memory": "2Gi"}},
        "volumeMounts": [{"name": "runs", "mountPath": AT}],
    }
    spec: Manifest = {
        "containers": [trainer],
        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": CLAIM}}],
        "nodeSelector": {NODE_TYPE_LABEL: NODE_TYPE},
        "tolerations": ANYWHERE["tolerations"],
        "topologySpreadConstraints": [_spread(labels)],
    }
    return {"metadata": {"labels": labels}, "spec": spec}


def _jobset(name: str, arguments: list[str]) -> list[Manifest]:
    address = f"--master-addr={name}-workers-0-0.{name}"
    torchrun = f"exec torchrun --nnodes={WORKERS} --nproc-per-node=1 --node-rank=$JOB_COMPLETION_INDEX"
    command = ["sh", "-c", " ".join([torchrun, address, "--master-port=29500", *arguments])]
    template = _template(name, "trainer", command)
    template["spec"]["restartPolicy"] = "Never"
    job = {
        "parallelism": WORKERS,
        "completions": WORKERS,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": template,
    }
    spec = {
        "failurePolicy": {"maxRestarts": 1000},
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job}}],
    }
    version = "jobset.x-k8s.io/v1alpha2"
    return [{"apiVersion": version, "kind": "JobSet", "metadata": {"name": name}, "spec": spec}]


def _pytorch_job(name: str, arguments: list[str]) -> list[Manifest]:
    command = ["python3", "-m", "torch.distributed.run", *arguments]
    template = _template(name, "pytorch", command)
    spec = {
        "nprocPerNode": "1",
        "elasticPolicy": {"rdzvBackend": "c10d", "minReplicas": 2, "maxReplicas": 3, "maxRestarts": 100},
        "pytorchReplicaSpecs": {
            "Worker": {"replicas": WORKERS, "restartPolicy": "OnFailure", "template": template}
        },
    }
    version = "kubeflow.org/v1"
    return [{"apiVersion": version, "kind": "PyTorchJob", "metadata": {"name": name}, "spec": spec}]


_OURS: dict[str, Any] = {
    "recovery": {
        "hang": {"seconds": 30, "firstStepSeconds": 120},
        "progress": {"onNaN": "restart"},
    }
}
_SNAPSHOTS = {"recovery": {"warmStart": {"enabled": True}, "snapshots": {"enabled": True}}}
_SPARE = {"elastic": {"spares": 1}}
_JOBSET_PODS, _CHART_PODS = "jobset.sigs.k8s.io/jobset-name={name}", "batch.kubernetes.io/job-name={name}-r1"

_TORCHRUN = (
    "exec torchrun --nnodes=2:3 --nproc-per-node=1 --max-restarts=100 --rdzv-backend=c10d "
    "--rdzv-id={name} --rdzv-endpoint={first}:29400 {script}"
)
_FT_LAUNCHER = (
    "exec python3 -m nvidia_resiliency_ext.fault_tolerance.launcher --nnodes=3 --nproc-per-node=1 "
    "--max-restarts=100 --rdzv-backend=c10d --rdzv-id={name} --rdzv-endpoint={first}:29400 "
    "--ft-initial-rank-heartbeat-timeout=120 --ft-rank-heartbeat-timeout=30 {script}"
)
_DLROVER = (
    "export DLROVER_MASTER_ADDR={master}:50001 ELASTIC_JOB_NAME={name} NODE_TYPE=worker NODE_NUM=3 "
    "NODE_RANK=$JOB_COMPLETION_INDEX WORKER_RANK=$JOB_COMPLETION_INDEX NODE_ID=$JOB_COMPLETION_INDEX; "
    "exec python3 -m dlrover.trainer.torch.elastic_run --nnodes=2:3 --nproc-per-node=1 --max-restarts=100 "
    "{script}"
)
_DLROVER_MASTER = (
    "exec python3 -m dlrover.python.master.main --platform local --port 50001 --node_num 3 --job_name {name}"
)

SYSTEMS = {
    "stock": System(
        name="torchrun, c10d",
        settings="torch 2.6, 2 to 3 nodes, maxRestarts 100, store on worker 0 and not shared",
        command=_TORCHRUN,
    ),
    "nvrx": System(
        name="NVRx ft_launcher",
        settings="0.7.0, 3 nodes, max-restarts 100, heartbeat time-out 30 s",
        way="heartbeats",
        command=_FT_LAUNCHER,
        packages="nvrx",
    ),
    "dlrover": System(
        name="DLRover",
        settings="0.6.1, local master in a pod, flash checkpoint of every step, 2 replicas",
        way="flash",
        command=_DLROVER,
        master=_DLROVER_MASTER,
        packages="dlrover",
    ),
    "jobset": System(
        name="JobSet, recreate",
        settings="0.12, torchrun of 3 nodes, backoffLimit 0, failurePolicy.maxRestarts 1000",
        manifests=_jobset,
        rival=JOBSET,
        label=_JOBSET_PODS,
    ),
    "pytorchjob": System(
        name="PyTorchJob, elastic",
        settings="training-operator 1.9.3, c10d, 2 to 3 replicas, maxRestarts 100, OnFailure",
        manifests=_pytorch_job,
        rival=RIVALS[1],
        label="training.kubeflow.org/job-name={name}",
        index="training.kubeflow.org/replica-index",
    ),
    "bireme": System(
        name="Bireme",
        settings="elastic 2 to 3, hang.seconds 30, onNaN restart",
        values=_OURS,
        label=_CHART_PODS,
    ),
    "snapshots": System(
        name="Bireme, snapshots",
        settings="the same, with warmStart and snapshots of every step with one copy",
        way="snapshots",
        values=merge(_OURS, _SNAPSHOTS),
        label=_CHART_PODS,
    ),
    "spare": System(
        name="Bireme, snapshots, spare",
        settings="the same, and a fourth pod that waits (elastic.spares: 1)",
        way="snapshots",
        values=merge(merge(_OURS, _SNAPSHOTS), _SPARE),
        label=_CHART_PODS,
    ),
}
"""All systems, by the name for --systems."""
