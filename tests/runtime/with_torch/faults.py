"""Plain torch scripts that hang, each by one fault: python faults.py NAME, with the variables of torchrun.

Each makes three good steps first. Nothing here knows of what looks for the fault.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
NAME = sys.argv[1]


class Batches:
    """Its third sample never comes on rank 2."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if RANK == 2 and index == 2:
            time.sleep(600)
        return torch.ones(3)


def step(size: int = 3) -> None:
    dist.all_reduce(torch.ones(size))


def stuck_in_the_loader() -> None:
    for _ in torch.utils.data.DataLoader(Batches(), num_workers=1):
        step()


def stuck_in_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    if RANK == 1:
        lock.acquire()
    step()


def stuck_in_a_queue() -> None:
    if RANK == 3:
        queue.Queue[int]().get()
    step()


def stuck_in_a_checkpoint() -> None:
    os.makedirs("/tmp/faults", exist_ok=True)
    path = f"/tmp/faults/{os.getpid()}.pt"
    if RANK == 0:
        os.mkfifo(path)
        torch.save({"weight": torch.ones(3)}, path)
    step()


def stuck_in_user_code() -> None:
    if RANK == 1:
        evaluate_for_ever()
    step()


def evaluate_for_ever() -> None:
    while True:
        time.sleep(0.01)


def stuck_in_a_pipe() -> None:
    if RANK == 2:
        reading, _ = os.pipe()
        os.read(reading, 1)
    step()


def a_collective_is_left_out() -> None:
    for number in range(3):
        if not (RANK == 3 and number == 1):
            dist.all_reduce(torch.ones(5 + number))


def one_collective_more() -> None:
    if RANK == 1:
        dist.all_reduce(torch.ones(11))
    step()
    step()


def only_the_first_rank_reduces_its_loss() -> None:
    if RANK == 0:
        dist.all_reduce(torch.ones(1))
    step(1)


def another_shape() -> None:
    step(7 if RANK == 2 else 3)
    step()


def another_type() -> None:
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if RANK == 1 else torch.float32))
    step()


def another_collective() -> None:
    tensor = torch.ones(3)
    if RANK == 3:
        dist.broadcast(tensor, 0)
    else:
        dist.all_reduce(tensor)
    step()


def another_order() -> None:
    one, two = torch.ones(8), torch.ones(9)
    for tensor in (two, one) if RANK == 2 else (one, two):
        dist.all_reduce(tensor)
    step()


def a_barrier_that_others_do_not_make() -> None:
    if RANK == 0:
        dist.barrier()
    step()
    step()


def an_early_end() -> None:
    if RANK == 2:
        os._exit(0)
    step()


def an_exception_that_is_swallowed() -> None:
    try:
        if RANK == 1:
            raise ValueError("a bad sample")
        step()
    except ValueError:
        wait_for_the_next_epoch()


def wait_for_the_next_epoch() -> None:
    time.sleep(600)


def a_stopped_process() -> None:
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    step()


def a_group_without_one_rank() -> None:
    group = dist.new_group([1, 2, 3])
    if RANK:
        dist.all_reduce(torch.ones(2), group=group)
    if RANK == 3:
        time.sleep(600)
    if RANK:
        dist.all_reduce(torch.ones(2), group=group)
    step()


def two_groups_in_two_orders() -> None:
    groups = [dist.new_group([0, 1, 2, 3]), dist.new_group([0, 1, 2, 3])]
    for group in groups:
        dist.all_reduce(torch.ones(2), group=group)
    for group in groups if RANK < 2 else groups[::-1]:
        dist.all_reduce(torch.ones(2), group=group)


def nothing_is_sent() -> None:
    if RANK == 1:
        dist.recv(torch.ones(3), 0)
    if RANK == 0:
        time.sleep(600)
    step()


def a_skipped_step_after_nan() -> None:
    for number in range(4):
        loss = float("nan") if RANK == 2 and number == 1 else 1.0
        if loss != loss:
            continue
        step(2)
        step(6)


def all_wait_for_storage() -> None:
    reading, _ = os.pipe()
    read_shard(reading)


def read_shard(descriptor: int) -> None:
    os.read(descriptor, 1)


def one_rank_is_slow() -> None:
    for _ in range(12):
        time.sleep(0.4 if RANK == 3 else 0.05)
        step()
    if RANK == 3:
        compute_much()
    step()


def compute_much() -> None:
    while True:
        sum(range(1000))


def a_deep_call() -> None:
    if RANK == 0:
        torch.ones(1).apply_(wait_in_a_callback)
    step()


def wait_in_a_callback(value: float) -> float:
    time.sleep(600)
    return value


def main() -> None:
    dist.init_process_group("gloo")
    for number in range(3):
        step()
        if RANK == 0:
            print(f"step {number}", flush=True)
    try:
        globals()[NAME]()
    except RuntimeError as error:
        # gloo checks some sizes. NCCL lets all ranks hang, as here.
        print(error, flush=True)
    wait_for_the_next_epoch()


if __name__ == "__main__":
    main()
