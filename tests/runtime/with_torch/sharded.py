"""A sharded state in worlds that change: what each start restores is compared with what it must be."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from bireme_runtime.elastic import progress
from bireme_runtime.elastic.snapshots import sharded

folder, name, steps, pause = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])


def note(**facts: object) -> None:
    with (folder / f"{name}.jsonl").open("a") as log:
        log.write(json.dumps({"time": time.time(), **facts}) + "\n")


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world,))
# 61 rows: no world of 3 to 5 has shards of one size.
first = torch.arange(61 * 3, dtype=torch.float32).view(61, 3)
state = {
    "rows": distribute_tensor(first.clone(), mesh, [Shard(0)]),
    "more": {"steps": 0, "half": first.half()},
}
step = sharded.restore(state) or 0
right = torch.equal(state["rows"].full_tensor(), first + step * (step + 1) // 2)
right = right and state["more"]["steps"] == step and torch.equal(state["more"]["half"], first.half())
note(event="start", rank=rank, world=world, step=step, right=right)
while step < steps:
    step += 1
    state["rows"].add_(step)
    state["more"]["steps"] = step
    assert sharded.save(step, state)
    note(event="step", rank=rank, world=world, step=step)
    progress.step(step)
    time.sleep(pause)
dist.barrier()
note(event="done", rank=rank, step=step)
dist.destroy_process_group()
