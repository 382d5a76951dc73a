"""Train a small network on scikit-learn's handwritten digits with Keras and Horovod.

Rank 0 writes checkpoints, and event files for TensorBoard. Another start goes on after the last checkpoint,
also with another number of processes. SIGTERM to one of them ends all after their step, which is saved.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow import broadcast_variables
from sklearn.datasets import load_digits

TRAINING_SAMPLES = 1437
"""Samples to train with, of 1797; the others measure the accuracy."""


class Run(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """The progress of this process: its log, its checkpoints, and what happens after each step."""

    def __init__(self, args: argparse.Namespace, model: Any) -> None:
        super().__init__()
        self._args, self._term = args, False
        self.step, self.epoch, self.seen = (tf.Variable(0, dtype=tf.int64) for _ in range(3))
        state = tf.train.Checkpoint(
            model=model, optimizer=model.optimizer, step=self.step, epoch=self.epoch, seen=self.seen
        )
        self._checkpoints = tf.train.CheckpointManager(state, str(args.checkpoints), max_to_keep=2)
        self._leads = hvd.rank() == 0
        if self._leads:
            self._events = tf.summary.create_file_writer(
                str(args.tensorboard or args.checkpoints / "tensorboard")
            )
        signal.signal(signal.SIGTERM, self._terminated)

    def log(self, event: str, **facts: Any) -> None:
        """Print one JSON line."""
        process = {"time": round(time.time(), 3), "rank": hvd.rank(), "world_size": hvd.size()}
        print(json.dumps({"event": event} | process | facts), flush=True)

    def restore(self, variables: list[Any]) -> None:
        """Take the last checkpoint, if there is one: rank 0 reads it, and the others get it from there."""
        if self._leads:
            self._checkpoints.restore_or_initialize()
        broadcast_variables([*variables, self.step, self.epoch, self.seen], root_rank=0)
        if self.step:
            self.log("resume", step=int(self.step), epoch=int(self.epoch))

    def save(self) -> None:
        if self._leads:
            self._checkpoints.save(checkpoint_number=self.step)
            self.log("checkpoint", step=int(self.step))

    def record(self, **scalars: float) -> None:
        """Write values of this step for TensorBoard."""
        if self._leads:
            with self._events.as_default(step=int(self.step)):
                for name, value in scalars.items():
                    tf.summary.scalar(name, value)
            self._events.flush()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.step.assign_add(1)
        self.seen.assign_add(self._args.batch_size * hvd.size())
        time.sleep(self._args.step_seconds)
        # Keras's loss is the mean of the epoch so far.
        loss, leaving = (float(each) for each in hvd.allreduce(np.array([(logs or {})["loss"], self._term])))
        if self._leads:
            self.log("step", step=int(self.step), epoch=int(self.epoch), loss=round(loss, 6))
        self.record(loss=loss)
        if leaving or int(self.step) % self._args.checkpoint_every == 0:
            self.save()
        if leaving:
            # All ranks wait until rank 0 has written: when one ends, mpirun kills the others.
            hvd.allreduce(np.array([0.0]))
            self.log("stop", step=int(self.step))
            raise SystemExit(128 + signal.SIGTERM)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.epoch.assign_add(1)
        self.seen.assign(0)

    def _terminated(self, *_: object) -> None:
        self._term = True


def main() -> None:
    args = arguments()
    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    tf.keras.utils.set_random_seed(args.seed)
    done = args.checkpoints / "done"
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(64, activation="tanh", input_shape=(64,)), tf.keras.layers.Dense(10)]
    )
    sgd = tf.keras.optimizers.SGD(momentum=0.9)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hvd.DistributedOptimizer(sgd), loss, metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)
    run = Run(args, model)
    if done.exists():
        run.log(
            "done", message=f"{done} says that this run is done; remove {args.checkpoints} to train again"
        )
        return
    run.log("start", host=socket.gethostname(), pid=os.getpid(), tensorflow=tf.__version__)
    run.restore([*model.variables, *model.optimizer.variables])
    # The rate follows the global batch, which may not be that of the checkpoint.
    model.optimizer.learning_rate = args.learning_rate * hvd.size()
    (images, labels), test = digits(args.seed)
    while int(run.epoch) < args.epochs:
        mine = share(args, int(run.epoch), int(run.seen))
        if not mine.size:  # the checkpoint is of the last step of its epoch
            run.on_epoch_end(int(run.epoch))
            continue
        model.fit(
            images[mine],
            labels[mine],
            args.batch_size,
            initial_epoch=int(run.epoch),
            epochs=int(run.epoch) + 1,
            shuffle=False,
            verbose=0,
            callbacks=[hvd.callbacks.MetricAverageCallback(), run],
        )
    run.save()
    _, accuracy = model.evaluate(*test, verbose=0)
    run.record(accuracy=accuracy)
    if hvd.rank() == 0:
        done.write_text(json.dumps({"step": int(run.step), "accuracy": round(accuracy, 4)}) + "\n")
    hvd.allreduce(0.0)  # nobody ends before that is written
    run.log("done", step=int(run.step), accuracy=round(accuracy, 4))


def share(args: argparse.Namespace, epoch: int, seen: int) -> Any:
    """The samples of this process in the rest of an epoch, of which all together have ``seen`` some."""
    order = np.random.default_rng([args.seed, epoch]).permutation(TRAINING_SAMPLES)[seen:]
    global_batch = args.batch_size * hvd.size()
    if global_batch > TRAINING_SAMPLES:
        raise SystemExit(
            f"error: a global batch of {global_batch} is more than the {TRAINING_SAMPLES} samples: "
            "lower --batch-size"
        )
    whole = order[: len(order) - len(order) % global_batch]
    return whole.reshape(-1, hvd.size(), args.batch_size)[:, hvd.rank()].ravel()


def digits(seed: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Images (64 numbers from 0 to 1) and labels: those to train with, and those to test with."""
    data = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.target))
    images, labels = data.data[order].astype("float32") / 16, data.target[order]
    training, test = slice(None, TRAINING_SAMPLES), slice(TRAINING_SAMPLES, None)
    return (images[training], labels[training]), (images[test], labels[test])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder that all workers share")
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--tensorboard", type=Path, help="folder of event files (default: in --checkpoints)")
    parser.add_argument("--epochs", type=int, default=20, help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="samples of a step, of each process")
    parser.add_argument("--learning-rate", type=float, default=0.025, help="of one process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=0, help="sleep so long in every step")
    return parser.parse_args()


if __name__ == "__main__":
    main()
    hvd.shutdown()
