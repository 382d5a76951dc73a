"""The last rank hangs before its third all_reduce, on the first start only. TRAIN_DEVICE as in train.py."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def load_batch() -> None:
    time.sleep(600)


dist.init_process_group("gloo")
rank, device = dist.get_rank(), os.environ.get("TRAIN_DEVICE", "cpu")
mark = Path(sys.argv[1], f"again-{rank}")
again = mark.exists()
mark.touch()
for step in range(1, 6):
    if step == 3 and rank == dist.get_world_size() - 1 and not again:
        load_batch()
    dist.all_reduce(torch.ones(1, device=device))
    if rank == 0:
        print(f"step {step}", flush=True)
dist.barrier()
os._exit(0)
