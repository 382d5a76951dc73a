"""Synchronous training on a dispatcher's shards, as docs/dispatcher.md shows it: rank 0 gets them for all."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bireme_runtime.dispatcher import Dispatcher

folder, name, shards = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])


def note(**facts: object) -> None:
    with (folder / f"{name}.jsonl").open("a") as log:
        log.write(json.dumps({"time": time.time(), **facts}) + "\n")


def for_all(dispatcher: Dispatcher) -> Iterator[str]:
    """The same shards on all ranks."""
    mine = dispatcher.shards(prefetch=True) if dist.get_rank() == 0 else iter(())
    while True:
        shard = next(mine, None)
        names = [shard.name if shard else None]
        dist.broadcast_object_list(names)
        if names[0] is None:
            return
        yield names[0]


torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
with Dispatcher() as dispatcher:
    dispatcher.add([f"shard-{number:03d}" for number in range(shards)], failures=1000)
    for shard in for_all(dispatcher):
        note(event="begun", shard=shard, rank=dist.get_rank(), world=dist.get_world_size(), pid=os.getpid())
        for _ in range(4):
            model(torch.ones(2, 4)).sum().backward()
            time.sleep(0.05)
        note(event="trained", shard=shard)
dist.destroy_process_group()
