"""Train a small network on scikit-learn's handwritten digits with Horovod.

As digits.py, whose options and samples it has: any number of processes computes what one does, but for the
rounding of sums in another order.
"""

from __future__ import annotations

import horovod.torch as hvd
import horovod_run
from digits import arguments, resume, start, train


def main() -> None:
    args = arguments()
    run = horovod_run.Run(args.checkpoints)
    network, sgd = start(args, run.device)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=network.named_parameters())
    step = resume(run, network, optimizer)
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    train(run, args, network, network, optimizer, step)


if __name__ == "__main__":
    horovod_run.execute(main)
