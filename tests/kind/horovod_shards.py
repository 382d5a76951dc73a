"""Ranks of elastic Horovod that train the shards of a dispatcher together: ``horovod_shards.py SHARDS``."""

import socket
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
    # The second worker takes the shards, because it stays until the end.
    hosts = [host[-2:] for host in hvd.allgather_object(socket.gethostname())]
    taker = hosts.index("-1")
    mine = dispatcher.shards(for_all=True) if hvd.rank() == taker else iter(())
    while True:
        shard = next(mine, None)
        # The default name is that of the type, which differs between ranks.
        name = hvd.broadcast_object(shard.name if shard else None, taker, "shard")
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
