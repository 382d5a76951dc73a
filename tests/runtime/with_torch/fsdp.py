"""A deterministic FSDP2 training of images/torch/llm.py's model, whose only checkpoints are snapshots."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import llm  # type: ignore[import-not-found]
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from bireme_runtime.elastic import progress
from bireme_runtime.elastic.snapshots import sharded

folder, name, steps, pause = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])


def note(**facts: object) -> None:
    with (folder / f"{name}.jsonl").open("a") as log:
        log.write(json.dumps({"time": time.time(), **facts}) + "\n")


def state() -> dict[str, object]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = llm.shard(llm.GPT(32, 2, 32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
kept = state()
step = sharded.restore(kept) or 0
if step:
    set_state_dict(model, optimizer, model_state_dict=kept["model"], optim_state_dict=kept["optimizer"])
note(event="start", rank=rank, world=world, step=step, pid=os.getpid())
while step < steps:
    step += 1
    # Step and rank alone decide the data.
    torch.manual_seed(1000 * step + rank)
    optimizer.zero_grad()
    llm.loss_of(model, torch.randint(llm.TOKENS, (4, 33))).backward()
    optimizer.step()
    assert sharded.save(step, state())
    note(event="step", rank=rank, world=world, step=step)
    progress.step(step)
    time.sleep(pause)
parts = [part.full_tensor().detach().numpy().tobytes() for part in model.parameters()]
dist.barrier()
note(event="done", rank=rank, step=step, digest=hashlib.sha256(b"".join(parts)).hexdigest())
dist.destroy_process_group()
