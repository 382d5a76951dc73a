"""Check that pservers and trainers work together: they fit the parity of numbers with a sparse table."""

import os

import numpy as np
import paddle
from paddle.distributed import fleet

paddle.enable_static()
fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
words = paddle.static.data("words", [-1, 1], "int64")
target = paddle.static.data("target", [-1, 1], "float32")
embedded = paddle.static.nn.sparse_embedding(words, [100, 8], param_attr=paddle.ParamAttr(name="signs"))
loss = paddle.mean((paddle.static.nn.fc(paddle.reshape(embedded, [-1, 8]), 1) - target) ** 2)
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
fleet.distributed_optimizer(paddle.optimizer.Adam(0.02), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    from bireme_runtime.paddle.job import Job

    job = Job()
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    fleet.init_worker()
    random = np.random.default_rng(job.index)
    losses = []
    for _ in job.shards([f"part-{part}" for part in range(12)], passes=1):
        for _ in range(20):
            ids = random.integers(0, 100, (64, 1))
            batch = {"words": ids, "target": (ids % 2).astype("float32")}
            losses += executor.run(feed=batch, fetch_list=[loss])
            job.step()
    fleet.stop_worker()
    host, first, last = os.uname().nodename, float(losses[0]), float(losses[-1])
    print(f"trainer {job.index} on {host}: loss {first:.3f} to {last:.3f}", flush=True)
