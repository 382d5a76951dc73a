"""Before training: an all-reduce between each two neighbours in a ring of the workers, with a lower limit.

A worker that its neighbours cannot reach, or reach slowly, holds up all others. It has two neighbours, so two
pairs fail that have it in common; it ends, and its pod is replaced. Workers that have passed are not asked
again but as neighbours of new ones.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

from bireme_runtime.elastic import progress
from bireme_runtime.elastic.agent import torch_handler
from bireme_runtime.process import environment
from bireme_runtime.process.errors import TEMPORARY, Stop
from bireme_runtime.process.log import Say

Pair = tuple[int, int]
ASKED, FLOOR = "BIREME_PREFLIGHT_PAIRS", "BIREME_PREFLIGHT_BANDWIDTH"
_ROOT = "bireme/pairs/"
# Importing torch and opening all devices takes most of it.
_TRY_SECONDS, _WAIT_SECONDS = 180.0, 900.0
_MIB_ON_GPUS, _MIB_ON_CPUS, _TIMES = 256, 4, 5


def phases(world: int, new: Collection[int]) -> list[list[Pair]]:
    """The pairs of neighbours with a new worker; in a phase each worker has one pair at most."""
    found: list[list[Pair]] = [[], [], []]
    for rank in range(world if world > 2 else world - 1):
        pair = rank, (rank + 1) % world
        if rank in new or pair[1] in new:
            found[2 if world % 2 and rank == world - 1 else rank % 2].append(pair)
    return [phase for phase in found if phase]


def to_blame(tried: Collection[Pair], failed: Collection[Pair], new: Collection[int]) -> set[int]:
    """The workers that failing pairs have in common. Where all fail, it is not one worker's fault.

    Of two workers only one that is new can be told from the other.
    """
    left, found = set(failed), set()
    if len(tried) == 1:
        newcomers = {rank for pair in left for rank in pair if rank in new}
        return newcomers if len(newcomers) == 1 else set()
    while left and not (len(tried) > 2 and len(failed) == len(tried)):
        counts = Counter(rank for pair in left for rank in pair)
        rank = min(counts, key=lambda each: (-counts[each], each not in new, each))
        if counts[rank] < 2:
            break
        found.add(rank)
        left = {pair for pair in left if rank not in pair}
    return found


def check(store: Any, rank: int, world: int, over: Callable[[], bool], say: Say) -> None:
    """Try the pairs of this worker with the others. Raises Stop when it is to blame for one that fails.

    ``store``: of this round, with all its workers. ``over``: whether the round has lost a member.
    """
    env = os.environ
    if env.get(ASKED) != "true" or progress.BOARD not in env:
        return
    board = progress.StepBoard.at(env[progress.BOARD])
    if world < 2:
        # It trains, so that a newcomer is to blame where the two cannot reach each other.
        board.passed = True
        return
    try:
        store.append(f"{_ROOT}failed", ";")
        store.append(f"{_ROOT}new", "" if board.passed else f"{rank};")
        torch_handler.together(store, f"{_ROOT}begun", 1, world, over, _WAIT_SECONDS)
        new = {int(each) for each in store.get(f"{_ROOT}new").decode().split(";") if each}
        tried = phases(world, new)
        failed: set[Pair] = set()
        guilty: set[int] = set()
        mine = [pair for phase in tried for pair in phase if rank in pair]
        for pair in mine:
            why = _try(store, pair, rank, over, say)
            if why:
                store.append(f"{_ROOT}failed", f"{pair[0]}-{pair[1]};")
                say(f"preflight: the all-reduce of workers {pair[0]} and {pair[1]} {why}")
        if mine:
            both = 2 * sum(map(len, tried))
            torch_handler.together(store, f"{_ROOT}ended", len(mine), both, over, _WAIT_SECONDS)
            names = {each for each in store.get(f"{_ROOT}failed").decode().split(";") if each}
            failed = {(int(one), int(other)) for one, other in (name.split("-") for name in names)}
            guilty = to_blame([pair for phase in tried for pair in phase], failed, new)
            if rank in guilty:
                others = " and ".join(str(other) for pair in mine for other in pair if other != rank)
                node = env.get("BIREME_NODE", "this node")
                what = f"{node} cannot train: the all-reduce of worker {rank} with {others} fails"
                advice = "recovery.preflight.pairs=false leaves this out"
                raise Stop(TEMPORARY, f"preflight: {what}; {advice}")
            if failed and not guilty:
                say(f"preflight: {', '.join(sorted(names))} have no bad worker in common; training begins")
        # Whom nobody could tell from its neighbour is asked again when there are more workers.
        board.passed = not any(rank in pair and guilty.isdisjoint(pair) for pair in failed)
    except (RuntimeError, OSError) as error:
        say(f"preflight: the pairs are not tried to the end: {error}")


def _try(store: Any, pair: Pair, rank: int, over: Callable[[], bool], say: Say) -> str:
    """Why the all-reduce of a pair fails, "" if it does not."""
    env, side, key = os.environ, pair.index(rank), f"{_ROOT}{pair[0]}-{pair[1]}/"
    gpus = environment.integer(env, "BIREME_PREFLIGHT_ACCELERATORS", 0)
    floor = float(env.get(FLOOR) or 0)
    if side == 0:
        address = f"{env.get('PET_LOCAL_ADDR') or '127.0.0.1'} {torch_handler.free_port()}"
        store.set(f"{key}0", address)
    else:
        torch_handler.wait_for(store, f"{key}0", over, _WAIT_SECONDS)
        address = store.get(f"{key}0").decode()
        store.set(f"{key}1", "here")
    # Now both are here; the other one may have had to wait for its other neighbour.
    torch_handler.wait_for(store, f"{key}1", over, _WAIT_SECONDS)
    count = max(1, gpus)
    arguments = [*address.split(), str(2 * count), "cuda" if gpus else "cpu"]
    command = [sys.executable, "-m", "bireme_runtime.elastic.agent.pairs", *arguments]
    started = [
        subprocess.Popen([*command, str(side * count + local), str(local)], stdout=subprocess.PIPE)
        for local in range(count)
    ]
    deadline = time.monotonic() + _TRY_SECONDS
    try:
        while any(each.poll() is None for each in started):
            if any(each.poll() for each in started) or time.monotonic() > deadline:
                break
            if over():
                raise RuntimeError("a worker was lost")
            time.sleep(0.05)
        codes = [each.poll() for each in started]
    finally:
        for each in started:
            each.kill()
            each.wait()
    if any(codes):
        return "fails"
    if None in codes:
        return f"does not end within {_TRY_SECONDS:.0f} s"
    rate = min(float(each.stdout.read()) for each in started if each.stdout)
    if rate < floor:
        return f"has {rate:.3g} GB/s, {floor:g} are needed"
    say(f"preflight: workers {pair[0]} and {pair[1]} all-reduce at {rate:.3g} GB/s")
    return ""


def measure(host: str, port: int, world: int, kind: str, rank: int, local: int) -> float:
    """The bus bandwidth of an all-reduce, in GB/s, as nccl-tests compute it. Raises RuntimeError."""
    torch = importlib.import_module("torch")
    dist = importlib.import_module("torch.distributed")
    limit = timedelta(seconds=_TRY_SECONDS)
    on_gpus = kind == "cuda"
    if on_gpus:
        torch.cuda.set_device(local)
    store = torch_handler.tcp_store(host, port, rank == 0, limit)
    dist.init_process_group(
        "nccl" if on_gpus else "gloo", store=store, rank=rank, world_size=world, timeout=limit
    )
    size = (_MIB_ON_GPUS if on_gpus else _MIB_ON_CPUS) << 20
    data = torch.ones(size // 4, device=kind)
    for warm in (True, False):
        if not warm:
            dist.barrier()
        since = time.monotonic()
        for _ in range(1 if warm else _TIMES):
            dist.all_reduce(data)
            data /= world
        if on_gpus:
            torch.cuda.synchronize()
        seconds = time.monotonic() - since
    if data.min().item() != 1 or data.max().item() != 1:
        raise RuntimeError(f"the sum over {world} ranks is wrong")
    # Nobody leaves while another one still needs the store.
    dist.barrier()
    return _TIMES * size / seconds * 2 * (world - 1) / world / 1e9


def main(arguments: Sequence[str]) -> None:
    """One rank of a pair: prints what it has measured."""
    host, port, world, kind, rank, local = arguments
    print(measure(host, int(port), int(world), kind, int(rank), int(local)), flush=True)
    # gloo may hang at a normal exit.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
