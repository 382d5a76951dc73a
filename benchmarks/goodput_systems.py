"""The systems of benchmarks/goodput.py: how each starts the training, as its own documents recommend.

All have the same root file system, script and claim, and three workers of one process. What a system is not
told here has its own default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bireme.helm.values import merge
from tests.kind import stock_torchrun
from tests.kind.training import ANYWHERE

WORKERS, CLAIM, AT = 3, "goodput", stock_torchrun.CLAIM_PATH


@dataclass(frozen=True)
class System:
    """One way to train. ``settings`` is what it was told, as it is printed; ``way`` is for the script.

    One of these starts it. ``command`` is a shell command of a worker, and ``master`` that of a further pod.
    ``values`` are of charts/torch-elastic, whose environment and script the workers have.

    ``packages`` are those of benchmarks/pins that it needs.
    """

    name: str
    settings: str
    way: str = "file"
    command: str = ""
    master: str = ""
    packages: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

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
        }
        return merge(own, self.values)


_OURS: dict[str, Any] = {
    "recovery": {
        "hang": {"seconds": 30, "firstStepSeconds": 120},
        "progress": {"onNaN": "restart"},
    }
}
_SNAPSHOTS = {"recovery": {"warmStart": {"enabled": True}, "snapshots": {"enabled": True}}}
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
        settings="torch 2.6, Indexed Job, 2 to 3 nodes, maxRestarts 100, store on worker 0 and not shared",
        command=_TORCHRUN,
    ),
    "nvrx": System(
        name="NVRx ft_launcher",
        settings="0.7.0, Indexed Job, 3 nodes, max-restarts 100, heartbeat time-out 30 s",
        way="heartbeats",
        command=_FT_LAUNCHER,
        packages="nvrx",
    ),
    "dlrover": System(
        name="DLRover",
        settings="0.6.1, Indexed Job, local master in a pod, flash checkpoint of every step, 2 replicas",
        way="flash",
        command=_DLROVER,
        master=_DLROVER_MASTER,
        packages="dlrover",
    ),
    "bireme": System(
        name="Bireme",
        settings="elastic 2 to 3, hang.seconds 30, onNaN restart",
        values=_OURS,
    ),
    "snapshots": System(
        name="Bireme, snapshots",
        settings="the same, with warmStart and snapshots of every step with one copy",
        way="snapshots",
        values=merge(_OURS, _SNAPSHOTS),
    ),
}
"""All systems, by the name for --systems."""
