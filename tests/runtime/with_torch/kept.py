"""A deterministic DDP training whose only checkpoints are snapshots, one after each step."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bireme_runtime.elastic import progress, snapshots

folder, name, steps, pause = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])


def note(**facts: object) -> None:
    with (folder / f"{name}.jsonl").open("a") as log:
        log.write(json.dumps({"time": time.time(), **facts}) + "\n")


torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
# One parameter. Of several, DDP orders the buckets anew after the first step of a start: it rounds otherwise.
model = DistributedDataParallel(torch.nn.Linear(64, int(os.environ.get("WIDTH", "16")), bias=False))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
step, since = 0, time.monotonic()
found = snapshots.restore()
if found:
    step, state = found
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    del found, state
took = time.monotonic() - since
note(event="start", rank=rank, world=world, step=step, pid=os.getpid(), agent=os.getppid(), restore=took)
while step < steps:
    step += 1
    # The order of data is that of the step and the rank.
    torch.manual_seed(1000 * step + rank)
    x = torch.randn(8, 64)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    since = time.monotonic()
    snapshots.save(step, {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()})
    note(event="step", rank=rank, world=world, step=step, blocked=time.monotonic() - since)
    progress.step(step)
    time.sleep(pause)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
dist.barrier()
note(event="done", rank=rank, step=step, digest=digest)
dist.destroy_process_group()
