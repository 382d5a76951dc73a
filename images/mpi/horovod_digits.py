"""Train a small network on scikit-learn's handwritten digits with Horovod.

As digits.py, whose options and samples it has: any number of processes computes what one does, but for the
rounding of sums in another order.
"""

from __future__ import annotations

import time

import elastic
import horovod.torch as hvd
import horovod_run
import torch
from digits import TRAINING_SAMPLES, arguments, digits, measure, order
from torch import nn


def main() -> None:
    args = arguments()
    run = horovod_run.Run(args.checkpoints)
    torch.manual_seed(args.seed)
    (inputs, labels), test = digits(args.seed, run.device)
    network = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)).to(run.device)
    # Samples of a step are divided among the processes, so their number does not change what a step is.
    sgd = torch.optim.SGD(network.parameters(), lr=args.learning_rate, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=network.named_parameters())
    step = 0
    if restored := run.restore():
        network.load_state_dict(restored["model"])
        optimizer.load_state_dict(restored["optimizer"])
        step = restored["step"]
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    events = elastic.EventFiles(run, args.tensorboard or args.checkpoints / "tensorboard", step)

    def state() -> elastic.State:
        return {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step}

    steps_per_epoch = TRAINING_SAMPLES // args.batch_size
    steps = args.steps or args.epochs * steps_per_epoch
    while step < steps:
        started = time.monotonic()
        epoch, position = divmod(step, steps_per_epoch)
        batch = order(args.seed, epoch)[position * args.batch_size :][: args.batch_size]
        mine = batch[run.rank :: run.world_size].to(run.device)
        losses = nn.functional.cross_entropy(network(inputs[mine]), labels[mine], reduction="sum")
        optimizer.zero_grad()
        # Horovod takes the mean over processes; this makes it the mean over the samples of the global batch.
        (losses * run.world_size / len(batch)).backward()
        optimizer.step()
        step += 1
        time.sleep(args.step_seconds)
        (loss,) = run.sum(losses.item() / len(batch))
        if run.leads:
            rate = len(batch) / (time.monotonic() - started)
            run.log("step", step=step, epoch=epoch, loss=round(loss, 6), samples_per_second=round(rate, 1))
            events.record(step, {"loss": loss, "samples_per_second": rate, "world_size": run.world_size})
        run.step_done(step, state, due=step % args.checkpoint_every == 0)

    accuracy = measure(network, *test)
    events.record(step, {"accuracy": accuracy})
    run.finish(step, state, accuracy=round(accuracy, 4))


if __name__ == "__main__":
    horovod_run.execute(main)
