"""Snapshots of torch states: how long a rank is blocked, and how fast a replaced pod has its state again.

    BIREME_TORCH_ROOT=$(python hack/images/build.py rootfs torch-2.6) python benchmarks/snapshots.py \\
        [--mib 256] [--workers 3]

Workers on this machine, each with a keeper of its own, copy over TCP on loopback. Beside a snapshot stand a
bare copy of the same state in memory that is kept, and `torch.save` with fsync to a folder of this machine.
All workers together need seven times the state of one for each. Of a large state the parts are the same 256
MiB again and again, except for `torch.save`, which would write them once. So each worker saves that memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TIMES = 5
TENSOR_MIB, DISTINCT = 16, 16


def main(mib: int, workers: int) -> None:
    """Run keepers and ranks inside the root file system, in two rounds, and print what they measured."""
    sys.path.insert(0, str(ROOT / "hack/images"))
    from figures import machine
    from rootfs import enter

    env = {"PYTHONPATH": "/srv", "OMP_NUM_THREADS": "1", "USE_LIBUV": "0"}
    # Freed tensors go back to the system.
    env["MALLOC_MMAP_THRESHOLD_"] = str(1 << 20)
    command = ["python3", "/bench/snapshots.py", "inside", str(mib), str(workers)]
    binds = {ROOT / "runtime/src": "/srv", ROOT / "benchmarks": "/bench"}
    root = Path(os.environ["BIREME_TORCH_ROOT"])
    claim = {Path(os.environ.get("TMPDIR", "/tmp")): "/mnt"}
    print(f"{machine()}; {workers} workers with {mib} MiB each", flush=True)
    subprocess.run(enter(root, command, {**binds, **claim}, env), check=True)


def inside(mib: int, workers: int) -> None:
    """The two rounds: all save, then worker 1 is a new pod and all restore."""
    names = [str(rank) for rank in range(workers)]
    room = f"remount,size={(6 * workers * mib + 64) << 20}"
    subprocess.run(["mount", "-o", room, "/dev/shm"], check=True)
    keepers: dict[str, subprocess.Popen[bytes]] = {}
    for token, pods in ((1, names), (2, [names[0], "new", *names[2:]])):
        for name in keepers.keys() - {*pods}:
            # Its pod is deleted.
            keepers[name].kill()
            shutil.rmtree(f"/dev/shm/{name}")
        for name in {*pods} - keepers.keys():
            started = subprocess.Popen([sys.executable, __file__, "keeper", name], stdout=subprocess.PIPE)
            assert started.stdout
            started.stdout.readline()
            keepers[name] = started
        ranks = [
            subprocess.Popen([sys.executable, __file__, "rank", name, *map(str, (mib, rank, workers, token))])
            for rank, name in enumerate(pods)
        ]
        codes = [each.wait() for each in ranks]
        assert not any(codes), codes


def environment(name: str) -> dict[str, str]:
    """What the chart sets for this pod."""
    own = {"BIREME_SNAPSHOTS": f"/dev/shm/{name}", "BIREME_NODE": name, "PET_LOCAL_ADDR": "127.0.0.1"}
    return {**os.environ, **own}


def keep(name: str) -> None:
    """The keeper of one pod, until this benchmark ends."""
    from bireme_runtime.elastic.snapshots import keeper

    keeper.Service(environment(name), print)
    print("ready", flush=True)
    while os.getppid() > 1:
        time.sleep(1)


def measure(name: str, mib: int, rank: int, workers: int, token: int) -> None:
    """One rank of one round."""
    import torch
    from torch.distributed import TCPStore

    from bireme_runtime.elastic import fence, snapshots
    from bireme_runtime.elastic.snapshots import plan

    os.environ.update(environment(name))
    board = fence.Board.new()
    board.admit(token, fence.now() + 3600)
    os.environ.update({fence.RUN: "bench", fence.ROUND: "1", fence.TOKEN: str(token), fence.KEY: "/round"})
    os.environ.update({fence.BOARD: board.path, "RANK": str(rank), "WORLD_SIZE": str(workers)})
    store = TCPStore("127.0.0.1", 29700 + token, workers, rank == 0, timedelta(minutes=10), use_libuv=False)
    plan.meet(store, rank, workers, os.environ, lambda words: print(words, flush=True))
    count = mib // TENSOR_MIB
    tensors = [torch.rand(TENSOR_MIB << 18) for _ in range(count if token == 1 else min(count, DISTINCT))]
    together = 0

    def timed(act: Callable[[], Any]) -> float:
        nonlocal together
        together += 1
        if store.add(f"at/{together}", 1) == workers:
            store.set(f"all/{together}", "1")
        store.wait([f"all/{together}"])
        since = time.monotonic()
        act()
        return time.monotonic() - since

    def save() -> None:
        with open(f"/mnt/bireme-bench-{rank}.pt", "wb") as file:
            torch.save({"model": tensors}, file)
            file.flush()
            os.fsync(file.fileno())
        os.unlink(file.name)

    saved = timed(save) if token == 1 else 0.0
    tensors = (tensors[:DISTINCT] * count)[:count]
    if token > 1:

        def restore() -> None:
            found = snapshots.restore()
            assert found
            for mine, kept in zip(tensors, found[1]["model"], strict=True):
                mine.copy_(kept)

        took = timed(restore)
        step = timed(lambda: [each.mul_(0.9) for each in tensors])
        print(json.dumps({"rank": rank, "pod": name, "restore": round(took, 3), "step": round(step, 3)}))
        return
    memory = [torch.zeros_like(each) for each in tensors]

    def copy() -> None:
        for there, here in zip(memory, tensors, strict=True):
            there.copy_(here)

    bare = [timed(copy) for _ in range(TIMES)]
    memory.clear()
    blocked, copied = [], []
    for step in range(1, TIMES + 4):
        blocked.append(timed(lambda step=step: snapshots.save(step, {"model": tensors})))  # type: ignore[misc]
        # A step of training in which the copies are made.
        copied.append(timed(lambda: snapshots.here().wait_for_copies()))

    waited, copy_took = statistics.median(blocked[3:]), statistics.median(bare)
    figures = {
        "bareCopy": copy_took,
        "blocked": waited,
        "ratio": waited / copy_took,
        "first": max(blocked[:3]),
    }
    figures |= {"copies": statistics.median(copied[3:]), "torchSave": saved, "ofTorchSave": waited / saved}
    rounded = {name: round(value, 3) for name, value in figures.items()}
    print(json.dumps({"rank": rank, **rounded}), flush=True)


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or [""]
    if what == "inside":
        inside(*map(int, rest))
    elif what == "keeper":
        keep(*rest)
    elif what == "rank":
        measure(rest[0], *map(int, rest[1:]))
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("--mib", type=int, default=256)
        parser.add_argument("--workers", type=int, default=3)
        main(**vars(parser.parse_args()))
