"""What comes before the script of docs/dispatcher.md for ranks that make each step together.

shards.py FOLDER NAME SHARDS: each rank notes what it trains in FOLDER/NAME.jsonl.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

folder, worker = Path(sys.argv[1]), sys.argv[2]
names = [f"shard-{number:03d}" for number in range(int(sys.argv[3]))]


def note(**facts: object) -> None:
    with (folder / f"{worker}.jsonl").open("a") as log:
        log.write(json.dumps({"time": time.time(), **facts}) + "\n")


torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))


def train(shard: str, rank: int, world: int) -> None:
    who = {"rank": rank, "world": world, "host": socket.gethostname(), "pid": os.getpid()}
    note(event="begun", shard=shard, **who)
    if (rank, shard) == (1, os.environ.get("BAD_SHARD")):
        raise ValueError(f"{shard} cannot be read")
    for _ in range(4):
        model(torch.ones(2, 4)).sum().backward()
        time.sleep(0.05)
    note(event="trained", shard=shard, **who)
