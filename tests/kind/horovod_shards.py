"""Ranks of elastic Horovod that train the shards of a dispatcher together: ``horovod_shards.py SHARDS``."""

import sys
import time
from typing import Any

import horovod.torch as hvd
import torch

from bireme_runtime.dispatcher import Dispatcher

hvd.init()
dispatcher = Dispatcher()
dispatcher.add([f"shard-{number}" for number in range(int(sys.argv[1]))], failures=1)


@hvd.elastic.run  # type: ignore[untyped-decorator, unused-ignore]
def train(state: Any) -> None:
    mine = dispatcher.shards(for_all=True) if hvd.rank() == 0 else iter(())
    while True:
        shard = next(mine, None)
        name = hvd.broadcast_object(shard.name if shard else None, 0)
        if name is None:
            return
        for _ in range(5):
            hvd.allreduce(torch.ones(1))
            time.sleep(0.1)
        if shard:
            print(f"trained {name} in a world of {hvd.size()}", flush=True)
            shard.done()
        state.commit()


train(hvd.elastic.TorchState())
dispatcher.close()
