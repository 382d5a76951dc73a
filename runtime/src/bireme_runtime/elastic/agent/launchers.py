"""Launchers that start the training processes of a node themselves: accelerate, deepspeed, or any command.

torchrun's agent runs `python3 -m bireme_runtime.elastic.agent.launchers LAUNCHER ARGS…` as its only process
of the node. That writes what the launcher reads, sets the variables of docs/runtime.md, and becomes the
launcher. So rendezvous, restarts, SIGTERM and exit codes are those of torchrun.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme_runtime.elastic import fence
from bireme_runtime.elastic.agent import torch_handler
from bireme_runtime.process import children, environment
from bireme_runtime.process.environment import setting
from bireme_runtime.process.errors import USAGE, Stop

NAME = "BIREME_LAUNCHER"
FOLDER = "BIREME_LAUNCHER_FOLDER"
_NODES, _PORT = "BIREME_NODES", "BIREME_LAUNCHER_PORT"
_MODULES = {"accelerate": "accelerate.commands.launch", "deepspeed": "deepspeed.launcher.runner"}
# Variables of a training process, which this one is not: a launcher sets its own.
_OF_A_RANK = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE",
)  # fmt: skip


def starts_nodes(env: Mapping[str, str]) -> bool:
    """Whether a launcher starts the training processes, and torchrun one process a node."""
    return env.get(NAME, "torchrun") != "torchrun"


def torchrun_arguments(env: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """The arguments with which torchrun runs the launcher. Raises Stop when there is no such launcher."""
    kind = environment.choice(env, NAME, "node", *_MODULES)
    if not arguments:
        raise Stop(USAGE, f"launcher {kind} has nothing to run: set args")
    program = arguments[0]
    if kind == "node" and shutil.which(program, path=env.get("PATH")) is None:
        raise Stop(
            USAGE, f"there is no command {program}: launcher node runs args as a command; check the image"
        )
    if kind in _MODULES and importlib.util.find_spec(kind) is None:
        raise Stop(USAGE, f"launcher {kind} needs the Python package {kind}, which the image does not have")
    return ["--nproc-per-node=1", "-m", __name__, kind, *arguments]


def meet(store: Any, rank: int, size: int) -> None:
    """Let the nodes of a round learn each other's addresses and a free port of the first.

    ``store``: that of the round. The answers are in the environment of the processes that start next.
    """
    own = os.environ.get("PET_LOCAL_ADDR") or socket.getfqdn()
    store.set(f"bireme/node/{rank}", own)
    if rank == 0:
        store.set("bireme/launcher-port", str(torch_handler.free_port()))
    keys = [f"bireme/node/{each}" for each in range(size)]
    os.environ[_NODES] = ",".join(store.get(key).decode() for key in keys)
    os.environ[_PORT] = store.get("bireme/launcher-port").decode()


def ranks_below(pid: int) -> list[tuple[int, int, int]]:
    """Process id, rank and local rank of the training processes that a launcher, ``pid``, has started."""
    found: dict[int, tuple[int, int, int]] = {}
    for each in children.descendants(pid):
        if place := _place(each):
            # What a training process starts, such as a data loader, has its environment and comes later.
            found.setdefault(place[0], (each, *place))
    return list(found.values())


def _place(pid: int) -> tuple[int, int] | None:
    """Rank and local rank in the environment of a process."""
    items = (item.partition(b"=") for item in children.told(pid, "environ").split(b"\0"))
    env = {key: value for key, _, value in items}
    rank, local = env.get(b"RANK", b""), env.get(b"LOCAL_RANK", b"")
    return (int(rank), int(local)) if rank.isdigit() and local.isdigit() else None


@dataclass(frozen=True)
class Node:
    """The place of a node in its round. ``nodes``: addresses by rank; ``processes``: of each node."""

    nodes: Sequence[str]
    rank: int = setting("GROUP_RANK")
    address: str = setting("MASTER_ADDR")
    port: int = setting(_PORT)
    processes: int = setting("PET_NPROC_PER_NODE", 1)

    def environment(self) -> dict[str, str]:
        """Variables that launchers and scripts know; a plain `torchrun SCRIPT` follows those with PET_."""
        place = {
            "NODE_RANK": str(self.rank),
            "NNODES": str(len(self.nodes)),
            "NPROC_PER_NODE": str(self.processes),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }
        return {**place, **{f"PET_{name}": value for name, value in place.items()}}

    def accelerate(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of accelerate: that of the values, with the place of this node."""
        world = len(self.nodes) * self.processes
        usual = {
            "compute_environment": "LOCAL_MACHINE",
            "distributed_type": "MULTI_GPU" if world > 1 else "NO",
            "mixed_precision": "no",
            "use_cpu": False,
        }
        place = {
            "machine_rank": self.rank,
            "num_machines": len(self.nodes),
            "num_processes": world,
            "main_process_ip": self.address,
            "main_process_port": self.port,
            "rdzv_backend": "static",
            "same_network": True,
        }
        return {**usual, **own, **place}

    def command(self, kind: str, files: Path, arguments: Sequence[str]) -> list[str]:
        """The command of the launcher, whose files are in ``files``."""
        if kind == "node":
            return list(arguments)
        options = {
            "accelerate": [f"--config_file={files / 'accelerate.json'}"],
            "deepspeed": [
                f"--hostfile={files / 'hostfile'}", "--no_ssh", f"--node_rank={self.rank}",
                f"--master_addr={self.address}", f"--master_port={self.port}",
            ],
        }  # fmt: skip
        return [sys.executable, "-u", "-m", _MODULES[kind], *options[kind], *arguments]


def main(argv: Sequence[str]) -> None:
    """Become the launcher, with its files in the folder that the supervisor made for them."""
    node = environment.read(Node, os.environ, nodes=environment.required(os.environ, _NODES).split(","))
    files = Path(environment.required(os.environ, FOLDER))
    own = json.loads(os.environ.get("BIREME_ACCELERATE") or "{}")
    (files / "accelerate.json").write_text(json.dumps(node.accelerate(own)))
    (files / "hostfile").write_text("".join(f"{each} slots={node.processes}\n" for each in node.nodes))
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key not in _OF_A_RANK and not key.startswith(("PET_", "TORCHELASTIC_"))
    }
    env = {
        **inherited,
        **node.environment(),
        **fence.kept(os.environ),
        "BIREME_HOSTFILE": str(files / "hostfile"),
        "BIREME_ACCELERATE_CONFIG": str(files / "accelerate.json"),
    }
    command = node.command(argv[0], files, argv[1:])
    os.execvpe(command[0], command, env)


if __name__ == "__main__":
    main(sys.argv[1:])
