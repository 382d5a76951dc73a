"""What benchmarks/goodput.py trains: a small network in plain torch, whose steps are told to a file.

    train.py FOLDER file|snapshots|heartbeats|flash [--every 20]

A step sleeps for what a device would compute, and takes part in one all-reduce by DDP. ``file`` saves by
torch.save every 20 steps, and where a process gets SIGTERM. ``snapshots`` are Bireme's, one of each step.
``heartbeats`` adds those of nvidia-resiliency-ext to ``file``. ``flash`` is DLRover's checkpoint in memory of
each step.
FOLDER/faults has the faults that the script makes itself: ``slow`` has the address of the pod that takes four
times as long, ``nan`` spoils the parameters once, and with ``full`` the disk is full.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEP_SECONDS = 0.5
WIDTH = 256
# What a collective may take before the script fails: the same for all systems.
LIMIT = timedelta(seconds=30)

TERM = threading.Event()


class File:
    """One file on the claim, written by torch.save and renamed: what torchrun's own examples do."""

    def __init__(self, folder: Path, every: int) -> None:
        self.folder, self.every = folder, every
        self.path = folder / "checkpoint.pt"

    def restore(self) -> tuple[int, Any] | None:
        """The step and the state of the newest checkpoint, if there is one."""
        return torch.load(self.path) if self.path.exists() else None

    def save(self, step: int, state: Any) -> None:
        """Write a checkpoint where one is due: rank 0 writes, and whoever has to end."""
        if TERM.is_set() or (step % self.every == 0 and dist.get_rank() == 0):
            full = (self.folder / "faults" / "full").exists()
            written = self.folder / f".checkpoint.{socket.gethostname()}.{os.getpid()}"
            torch.save((step, state), "/dev/full" if full else written)
            written.replace(self.path)


class Snapshots(File):
    """Bireme's snapshots: a copy in memory of each step, and one at another worker."""

    def restore(self) -> tuple[int, Any] | None:
        from bireme_runtime.elastic import snapshots

        found: tuple[int, Any] | None = snapshots.restore()
        return found

    def save(self, step: int, state: Any) -> None:
        from bireme_runtime.elastic import snapshots

        snapshots.save(step, state)


class Heartbeats(File):
    """The same file, and a heartbeat of each step for the monitor of nvidia-resiliency-ext."""

    def __init__(self, folder: Path, every: int) -> None:
        super().__init__(folder, every)
        from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

        self.client = RankMonitorClient()
        self.client.init_workload_monitoring()

    def save(self, step: int, state: Any) -> None:
        super().save(step, state)
        self.client.send_heartbeat()


class Flash(File):
    """DLRover's flash checkpoint: each step to memory with one replica, and to the claim when one is due."""

    def __init__(self, folder: Path, every: int) -> None:
        super().__init__(folder, every)
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType

        (folder / "flash").mkdir(exist_ok=True)
        self.saver, self.to = DdpCheckpointer(str(folder / "flash"), replica_count=2), StorageType

    def restore(self) -> tuple[int, Any] | None:
        found = self.saver.load_checkpoint()
        return (found["step"], found) if found else None

    def save(self, step: int, state: Any) -> None:
        where = self.to.MEMORY if step % self.every else self.to.DISK
        self.saver.save_checkpoint(step, {"step": step, **state}, storage_type=where)


WAYS = {"file": File, "snapshots": Snapshots, "heartbeats": Heartbeats, "flash": Flash}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--every", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    signal.signal(signal.SIGTERM, lambda *_: TERM.set())
    dist.init_process_group("gloo", timeout=LIMIT)
    rank = dist.get_rank()
    tell = teller(args.folder, rank=rank, world=dist.get_world_size())
    keep = WAYS[args.way](args.folder, args.every)
    step = 0
    if found := keep.restore():
        step, state = found
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    del found
    tell("resume", step=step)
    model = DistributedDataParallel(network)
    while True:
        since = time.monotonic()
        loss = one_step(args.folder, model, optimizer, step, leads=rank == 0)
        step += 1
        seconds = time.monotonic() - since
        # docs/snapshots.md asks for it: a snapshot of a spoiled state would be taken again.
        if args.way != "snapshots" or loss == loss:
            keep.save(step, {"model": network.state_dict(), "optimizer": optimizer.state_dict()})
        if rank == 0:
            tell("step", step=step, seconds=seconds, finite=loss == loss)
            print(f"step {step} loss: {loss}", flush=True)
        if TERM.is_set():
            sys.exit(1)


def one_step(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, leads: bool
) -> float:
    """One step of the seeded data, and the loss of all ranks. The one that ``leads`` spoils parameters."""
    slow, nan = folder / "faults" / "slow", folder / "faults" / "nan"
    time.sleep(STEP_SECONDS * (4 if slow.exists() and slow.read_text() == address() else 1))
    if leads and nan.exists():
        nan.unlink()
        for parameter in model.parameters():
            parameter.data.fill_(float("nan"))
    data = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(step))
    loss = nn.functional.mse_loss(model(data), data.tanh())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach()
    dist.all_reduce(total)
    return float(total / dist.get_world_size())


def address() -> str:
    """The address of this pod."""
    return socket.gethostbyname(socket.gethostname())


def teller(folder: Path, **here: int) -> Any:
    """A function that writes an event of this process as a line of its own file; it tells that it starts."""
    events = folder / "events"
    process = {"ip": address(), "pid": os.getpid(), **here}
    file = (events / f"{process['ip']}-{process['pid']}-{time.time_ns()}.jsonl").open("w")

    def tell(event: str, **facts: Any) -> None:
        file.write(json.dumps({"event": event, "time": time.time(), **process, **facts}) + "\n")
        file.flush()

    tell("start")
    return tell


if __name__ == "__main__":
    main()
