"""A small elastic DDP training: one checkpoint file for all, one log of JSON lines for each worker.

TRAIN_DEVICE and TRAIN_BACKEND choose other than CPUs and gloo. While there is a file `hold`, each start stops
a few steps after the middle of the run, so that the run does not end before the test has seen it train.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bireme_runtime.elastic import fence

folder, name, steps, pause = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
checkpoint = folder / "checkpoint.pt"
told_to_end: list[float] = []
signal.signal(signal.SIGTERM, lambda *_: told_to_end.append(time.time()))


def note(**facts: object) -> None:
    with (folder / f"{name}.jsonl").open("a") as log:
        log.write(json.dumps({"time": time.time(), **facts}) + "\n")


torch.set_num_threads(1)
note(event="imported")
device = torch.device(os.environ.get("TRAIN_DEVICE", "cpu"))
dist.init_process_group(os.environ.get("TRAIN_BACKEND", "gloo"))
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
step = 0
if checkpoint.exists():
    state = torch.load(checkpoint, map_location=device, weights_only=True)
    model.module.load_state_dict(state["model"])
    step = state["step"]
failures = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
note(event="start", rank=rank, world=world, step=step, pid=os.getpid(), agent=os.getppid(), failures=failures)


def save() -> None:
    part = checkpoint.with_suffix(f".{os.getpid()}")
    torch.save({"model": model.module.state_dict(), "step": step}, part)
    fence.check()
    part.replace(checkpoint)


def save_and_end() -> None:
    save()
    note(event="saved", step=step)
    sys.exit(1)


truth = torch.arange(16.0, device=device).unsqueeze(1) / 16
first = step
while step < steps:
    while step > max(steps // 2, first + 2) and (folder / "hold").exists():
        if told_to_end:
            # The others are held up as well, so there is no further step.
            save_and_end()
        time.sleep(0.02)
    x = torch.randn(64, 16, device=device)
    loss = torch.nn.functional.mse_loss(model(x), x @ truth)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if rank == 0:
        save()
    note(event="step", rank=rank, world=world, step=step, loss=loss.item())
    if told_to_end:
        save_and_end()
    time.sleep(pause)
dist.barrier()
note(event="done", rank=rank, step=step)
dist.destroy_process_group()
