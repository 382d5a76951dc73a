"""Train on scikit-learn's handwritten digits without parameter servers: workers average their gradients.

For `mode: collective`; by itself it trains in one process. Each worker takes its part of every batch, and the
first one keeps the parameters of the last pass in DIR, from where all begin again.

    collective.py --checkpoints DIR
"""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path

import digits
import network
import numpy as np
import paddle
from paddle import distributed as dist
from paddle import nn

CHECKPOINT = "last.pdparams"


def main() -> None:
    args = arguments()
    dist.init_parallel_env()
    rank, size = dist.get_rank(), dist.get_world_size()
    paddle.seed(1)
    model = nn.Sequential(nn.Linear(digits.PIXELS, 64), nn.Tanh(), nn.Linear(64, digits.SHAPE.classes))
    trained = load(model, args.checkpoints)
    replica = paddle.DataParallel(model)
    optimizer = paddle.optimizer.Adam(args.learning_rate, parameters=model.parameters())
    training, test = digits.split()
    network.log("start", rank=rank, size=size, trained=trained)
    for number in range(trained, args.passes):
        for rows in network.batches(training, args.batch_size, number):
            # A last batch that cannot be divided evenly would leave some workers waiting for the others.
            if len(rows) < size:
                continue
            loss = measure(replica, rows[rank::size])
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
        network.log("pass", rank=rank, **{"pass": number}, loss=round(float(loss), 5))
        if rank == 0:
            save(model, args.checkpoints, number + 1)
    network.log("done", rank=rank, loss=round(float(measure(model, test)), 4), sum=checksum(model))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=96, help="of all workers together")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    return parser.parse_args()


def measure(model: nn.Layer, rows: network.Rows) -> paddle.Tensor:
    """The loss on these rows."""
    brightness = (rows[:, :-1] - digits.LEVELS * np.arange(digits.PIXELS)) / (digits.LEVELS - 1)
    answer = model(paddle.to_tensor(brightness.astype("float32")))
    return nn.functional.cross_entropy(answer, paddle.to_tensor(rows[:, -1]))


def load(model: nn.Layer, folder: Path) -> int:
    """Restore the checkpoint, if there is one; returns its number of passes."""
    if not (folder / CHECKPOINT).exists():
        return 0
    kept = paddle.load(str(folder / CHECKPOINT))
    model.set_state_dict(kept["model"])
    return int(kept["passes"])


def save(model: nn.Layer, folder: Path, passes: int) -> None:
    """Replace the checkpoint; a loss of power leaves the old one or the new one."""
    folder.mkdir(parents=True, exist_ok=True)
    # Of a killed process, or of an attempt that is over, which then replaces nothing.
    for abandoned in folder.glob(f".{CHECKPOINT}.*"):
        abandoned.unlink(missing_ok=True)
    partial = folder / f".{CHECKPOINT}.{socket.gethostname()}.{os.getpid()}"
    paddle.save({"model": model.state_dict(), "passes": passes}, str(partial))
    to_disk(partial)
    partial.replace(folder / CHECKPOINT)
    to_disk(folder)


def to_disk(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def checksum(model: nn.Layer) -> float:
    """A checksum of the parameters, to compare workers."""
    return round(sum(float(each.sum()) for each in model.parameters()), 3)


if __name__ == "__main__":
    main()
