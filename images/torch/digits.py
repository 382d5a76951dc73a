"""Train a small network on scikit-learn's handwritten digits, on any number of workers.

The order of the samples follows from seed, epoch and step alone: each global batch is divided among the
processes there are, and every sample weighs the same. So any number of processes, restarted at any time,
computes what one uninterrupted process does, but for the rounding of sums in another order.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import elastic
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TRAINING_SAMPLES = 1437
"""Samples to train with, of 1797; the others measure the accuracy."""


def main() -> None:
    args = arguments()
    run = elastic.Run(args.checkpoints)
    network, optimizer = start(args, run.device)
    step = resume(run, network, optimizer)
    train(run, args, network, DistributedDataParallel(network), optimizer, step)


def start(args: argparse.Namespace, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The network before its first step, and its optimizer."""
    torch.manual_seed(args.seed)
    network = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)).to(device)
    return network, torch.optim.SGD(network.parameters(), lr=args.learning_rate, momentum=0.9)


def resume(run: elastic.Run, network: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Restore both from the last checkpoint, if there is one; returns its number of steps."""
    restored = run.restore()
    if not restored:
        return 0
    network.load_state_dict(restored["model"])
    optimizer.load_state_dict(restored["optimizer"])
    return int(restored["step"])


def train(
    run: elastic.Run,
    args: argparse.Namespace,
    network: nn.Module,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
) -> None:
    """Train from ``step`` to the end. ``model`` is ``network`` as the processes share it.

    DDP's model or Horovod's optimizer: one of them takes the mean of gradients over the processes.
    """
    (inputs, labels), test = digits(args.seed, run.device)
    events = elastic.EventFiles(run, args.tensorboard or args.checkpoints / "tensorboard", step)

    def state() -> elastic.State:
        return {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step}

    steps_per_epoch = TRAINING_SAMPLES // args.batch_size
    steps = args.steps or args.epochs * steps_per_epoch
    while step < steps:
        started = time.monotonic()
        epoch, position = divmod(step, steps_per_epoch)
        # The processes share the samples of a step, so a step is the same with any number of processes.
        batch = order(args.seed, epoch)[position * args.batch_size :][: args.batch_size]
        mine = batch[run.rank :: run.world_size].to(run.device)
        losses = nn.functional.cross_entropy(model(inputs[mine]), labels[mine], reduction="sum")
        optimizer.zero_grad()
        # The processes average this; the factor makes it the mean over the samples of the global batch.
        (losses * run.world_size / len(batch)).backward()
        optimizer.step()
        step += 1
        time.sleep(args.step_seconds)
        # All processes end with the same step, so one of them looks for the file.
        asked = run.leads and args.stop_file is not None and args.stop_file.exists()
        loss, stop = run.sum(losses.item() / len(batch), float(asked))
        if stop:
            steps = step
        if run.leads:
            rate = len(batch) / (time.monotonic() - started)
            run.log("step", step=step, epoch=epoch, loss=round(loss, 6), samples_per_second=round(rate, 1))
            events.record(step, {"loss": loss, "samples_per_second": rate, "world_size": run.world_size})
        run.step_done(step, state, due=step % args.checkpoint_every == 0)

    accuracy = measure(network, *test)
    events.record(step, {"accuracy": accuracy})
    run.finish(step, state, accuracy=round(accuracy, 4))


def arguments() -> argparse.Namespace:
    parser = elastic.arguments(__doc__)
    parser.add_argument("--steps", type=int, help="train so many steps, whatever --epochs says")
    parser.add_argument(
        "--batch-size", type=int, default=64, help="samples of a step, of all workers together"
    )
    parser.add_argument("--stop-file", type=Path, help="end after the step in which this file is found")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.set_defaults(epochs=20, checkpoint_every=20)
    args = parser.parse_args()
    if not 1 <= args.batch_size <= TRAINING_SAMPLES:
        parser.error(f"--batch-size {args.batch_size}: there are {TRAINING_SAMPLES} samples to train with")
    return args


def digits(seed: int, device: torch.device) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Images (64 numbers from 0 to 1) and labels: those to train with, and those to test with."""
    data = load_digits()
    shuffled = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(seed))
    images = torch.tensor(data.data, dtype=torch.float32)[shuffled].to(device) / 16
    labels = torch.tensor(data.target)[shuffled].to(device)
    training, test = slice(None, TRAINING_SAMPLES), slice(TRAINING_SAMPLES, None)
    return (images[training], labels[training]), (images[test], labels[test])


def order(seed: int, epoch: int) -> torch.Tensor:
    """The samples of one epoch, in the order in which they are used."""
    return torch.randperm(TRAINING_SAMPLES, generator=torch.Generator().manual_seed(seed * 100_003 + epoch))


@torch.no_grad()
def measure(network: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    """The fraction of ``inputs`` that ``network`` labels right."""
    return float((network(inputs).argmax(1) == labels).float().mean())


if __name__ == "__main__":
    elastic.execute(main)
