"""A network with a sparse table of embeddings and dense layers, alone or on parameter servers.

What the scripts beside it have in common: they say what the words and the labels are.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Shape:
    """A sample has `slots` words of a vocabulary of `words`, embedded in `width` numbers each."""

    words: int
    slots: int
    width: int
    hidden: int
    classes: int


Rows = np.ndarray
"""A sample in each row: its words, then its label."""


def main(description: str, shape: Shape, split: Callable[[], tuple[Rows, Rows]], name: str) -> None:
    """Prepare the data, serve, or train, depending on the arguments and the job's environment."""
    args = arguments(description)
    if args.prepare:
        prepare(args.prepare, *split(), name, int(os.environ.get("SPLIT_COUNT", "3")))
        return
    role = os.environ.get("TRAINING_ROLE", "")
    network = Network(shape, args.learning_rate, distributed=bool(role))
    if role == "PSERVER":
        network.serve()
    elif role:
        train_in_job(network, args)
    else:
        train_alone(network, args, *split())


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prepare", type=Path, help="write the data here and end")
    parser.add_argument("--data", type=Path, help="folder of the data")
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--step-seconds", type=float, default=0, help="sleep so long after each step")
    parser.add_argument("--poison", default="", help="fail on the shard of this name")
    return parser.parse_args()


def log(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, "time": round(time.time(), 3), **facts}), flush=True)


TABLE = "words"


class Network:
    """The network as a static graph, with its executor."""

    def __init__(self, shape: Shape, learning_rate: float, distributed: bool) -> None:
        import paddle
        from paddle.distributed import fleet

        self.fleet, self.static = fleet, paddle.static
        paddle.enable_static()
        paddle.seed(1)
        if distributed:
            fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
        self.ids = paddle.static.data("ids", [-1, 1], "int64")
        self.label = paddle.static.data("label", [-1, 1], "int64")
        table = paddle.ParamAttr(name=TABLE, initializer=paddle.nn.initializer.Uniform(-0.1, 0.1))
        embed = paddle.static.nn.sparse_embedding if distributed else paddle.static.nn.embedding
        embedded = embed(self.ids, [shape.words, shape.width], param_attr=table)
        flat = paddle.reshape(embedded, [-1, shape.slots * shape.width])
        hidden = paddle.static.nn.fc(flat, shape.hidden, activation="tanh")
        answer = paddle.static.nn.fc(hidden, shape.classes, activation="softmax")
        self.loss = paddle.mean(paddle.nn.functional.cross_entropy(answer, self.label, use_softmax=False))
        self.accuracy = paddle.static.accuracy(answer, self.label)
        self._minimize(paddle.optimizer.Adam(learning_rate), distributed)
        self.program = paddle.static.default_main_program()
        self.measuring = without_training(self.program)
        self.executor = paddle.static.Executor(paddle.CPUPlace())

    def _minimize(self, optimizer: Any, distributed: bool) -> None:
        if distributed:
            strategy = self.fleet.DistributedStrategy()
            # Paddle 3.0's barrier for synchronous training crashes; job.step() waits for the others instead.
            strategy.a_sync = True
            # The number of files that a save has of this table on each server; the default is 1000.
            strategy.sparse_table_configs = {
                TABLE: {
                    f"table_parameters.{TABLE}.shard_num": 8,
                    f"table_parameters.{TABLE}.accessor.ctr_accessor_param.zero_init": False,
                }
            }
            optimizer = self.fleet.distributed_optimizer(optimizer, strategy)
        optimizer.minimize(self.loss)

    def serve(self) -> None:
        self.fleet.init_server()
        self.fleet.run_server()

    def start(self) -> None:
        self.executor.run(self.static.default_startup_program())

    def train(self, rows: Rows) -> float:
        loss, _ = self._run(self.program, rows)
        return loss

    def measure(self, rows: Rows) -> tuple[float, float]:
        """Loss and accuracy."""
        return self._run(self.measuring, rows)

    def save(self, folder: str) -> None:
        self.fleet.save_persistables(self.executor, folder)

    def _run(self, program: Any, rows: Rows) -> tuple[float, float]:
        feed = {"ids": rows[:, :-1].reshape(-1, 1), "label": rows[:, -1:]}
        loss, accuracy = self.executor.run(program, feed, fetch_list=[self.loss.name, self.accuracy.name])
        return float(loss), float(accuracy)


def without_training(program: Any) -> Any:
    """The program without the operators that change parameters, here and on the servers."""
    measuring = program.clone(for_test=True)
    block = measuring.global_block()
    for index in reversed(range(len(block.ops))):
        if block.ops[index].type in ("distributed_push_sparse", "send"):
            block._remove_op(index)
    return measuring


def train_in_job(network: Network, args: argparse.Namespace) -> None:
    from bireme_runtime.paddle.job import Job

    job = Job()
    network.start()
    network.fleet.init_worker()
    files, test_files = ((args.data / f"{part}.list").read_text().split() for part in ("train", "test"))
    step = 0
    restored = os.environ.get("BIREME_PADDLE_RESTORE", "")
    log("start", trainer=job.index, restored=restored, pid=os.getpid())
    if restored and job.index == 0:
        log("restored", loss=round(network.measure(rows_of(args.data, test_files))[0], 4))
    number: int | None = None
    for shard in job.shards(files, args.passes, network.save):
        if number not in (None, shard.pass_number):
            test(network, job, args.data, test_files, number)
        number = shard.pass_number
        if args.poison and args.poison in shard.name:
            log("poisoned", trainer=job.index, shard=shard.name)
            sys.exit(1)
        for rows in batches(rows_of(args.data, [shard.name]), args.batch_size, shard.pass_number):
            loss = network.train(rows)
            step += 1
            log(
                "step", trainer=job.index, step=step, shard=shard.name,
                **{"pass": shard.pass_number}, loss=round(loss, 5),
            )  # fmt: skip
            time.sleep(args.step_seconds)
            job.step(network.save)
        log("shard", trainer=job.index, shard=shard.name, **{"pass": shard.pass_number})
    if number is not None:
        test(network, job, args.data, test_files, number)
    if job.index == 0:
        finish(network, rows_of(args.data, test_files))
    network.fleet.stop_worker()


def test(network: Network, job: Any, folder: Path, files: list[str], number: int) -> None:
    """After a pass, measure this trainer's part of the test data."""
    if mine := job.part(files, number):
        loss, accuracy = network.measure(rows_of(folder, mine))
        log(
            "test", trainer=job.index, shards=mine,
            **{"pass": number}, loss=round(loss, 4), accuracy=round(accuracy, 4),
        )  # fmt: skip


def rows_of(folder: Path, files: list[str]) -> Rows:
    return np.concatenate([np.loadtxt(folder / each, dtype="int64", ndmin=2) for each in files])


def train_alone(network: Network, args: argparse.Namespace, training: Rows, test: Rows) -> None:
    network.start()
    for number in range(args.passes):
        for rows in batches(training, args.batch_size, number):
            network.train(rows)
    finish(network, test)


def finish(network: Network, test: Rows) -> None:
    loss, accuracy = network.measure(test)
    log("done", loss=round(loss, 4), accuracy=round(accuracy, 4))


def batches(rows: Rows, size: int, number: int) -> Iterator[Rows]:
    """Batches in the order of this pass, which follows from its number."""
    rows = rows[np.random.default_rng(number).permutation(len(rows))]
    return (rows[first : first + size] for first in range(0, len(rows), size))


def prepare(folder: Path, training: Rows, measured: Rows, name: str, count: int) -> None:
    """Write `count` files of each part. The list of those to train with comes last: who sees it finds all."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, prefix, rows in (("test", "test.txt", measured), ("train", name, training)):
        names = [f"{prefix}-{index:05d}" for index in range(count)]
        for index, each in enumerate(names):
            np.savetxt(folder / each, rows[index::count], fmt="%d")
        partial = folder / f".{part}.list"
        partial.write_text("\n".join(names) + "\n")
        partial.replace(folder / f"{part}.list")
        log("prepared", files=names)
