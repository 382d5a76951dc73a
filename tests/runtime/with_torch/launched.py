"""A small training with the library of a launcher: accelerate, or DeepSpeed with ZeRO. Rank 3 fails once."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# DeepSpeed puts --local_rank before a script's arguments.
library, place, name, last = (each for each in sys.argv[1:] if not each.startswith("--local_rank"))
folder, steps = Path(place), int(last)
checkpoint, failed = folder / "checkpoint.json", folder / "failed"


def note(**facts: object) -> None:
    with (folder / f"{name}.jsonl").open("a") as log:
        log.write(json.dumps({"time": time.time(), **facts}) + "\n")


def train_with_accelerate(model: Any, optimizer: Any) -> Any:
    from accelerate import Accelerator, InitProcessGroupKwargs

    # On CPUs it would choose MPI, which Debian's torch has.
    accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
    model, optimizer = accelerator.prepare(model, optimizer)

    def train(x: Any) -> Any:
        loss = model(x).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return train


def train_with_deepspeed(model: Any, optimizer: Any) -> Any:
    import deepspeed

    # Its all-reduce in shared memory would be compiled here, without a compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo")
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def train(x: Any) -> Any:
        loss = engine(x).pow(2).mean()
        engine.backward(loss)
        engine.step()
        return loss

    return train


torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
start = {"accelerate": train_with_accelerate, "deepspeed": train_with_deepspeed}[library]
train = start(model, optimizer)
rank, world = dist.get_rank(), dist.get_world_size()
first = json.loads(checkpoint.read_text()) if checkpoint.exists() else 0
parent = Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")
note(event="start", rank=rank, world=world, step=first, parent=parent)
for step in range(first + 1, steps + 1):
    loss = train(torch.randn(4, 16))
    note(event="step", rank=rank, world=world, step=step, loss=loss.item())
    if rank == 0:
        part = checkpoint.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(step))
        part.replace(checkpoint)
    dist.barrier()
    if rank == 3 and step == 3 and not failed.exists():
        failed.touch()
        sys.exit(1)
note(event="done", rank=rank, step=steps)
dist.destroy_process_group()
