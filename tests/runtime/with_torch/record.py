"""Records what the ranks of a script with a fault tell.

Run python -m tests.runtime.with_torch.record ROOT [NAME…], where ROOT is a root file system with torch 2.14
(hack/images/build.py rootfs torch-2.14). It writes traces/NAME.json.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from bireme_runtime.elastic.monitor import hang, why
from bireme_runtime.process import children

HERE = Path(__file__).parent
TRACES = HERE.parent / "traces"
NAMES = re.findall(r"^def (\w+)\(\) -> None", (HERE / "faults.py").read_text(), re.MULTILINE)
WORLD = 4


def record(root: Path, name: str, port: int) -> list[why.RankState]:
    """Run one fault with four ranks, and ask them while they hang."""
    folder = root / "faults"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "records").mkdir(parents=True)
    shutil.copy(HERE / "faults.py", folder / "train.py")
    shutil.copytree(hang.SITE, folder / "site")
    env = {
        "PATH": "/usr/bin:/bin", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "USE_LIBUV": "0",
        "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(WORLD), "PYTHONUNBUFFERED": "1",
        **hang.environment({}, "/faults/records"), "PYTHONPATH": "/faults/site",
    }  # fmt: skip
    ranks = {}
    for rank in range(WORLD):
        with (folder / f"{rank}.err").open("wb") as errors:
            ranks[rank] = subprocess.Popen(
                ["chroot", str(root), "env", "-i", *(f"{key}={value}" for key, value in env.items()),
                 f"RANK={rank}", f"LOCAL_RANK={rank}", "python3", "/faults/train.py", name],
                stdout=errors, stderr=errors,
            )  # fmt: skip
    try:
        settle(folder / "records", ranks)
        return [state_of(folder, rank, process) for rank, process in ranks.items() if process.poll() is None]
    finally:
        for process in ranks.values():
            process.kill()
            process.wait()


def settle(records: Path, ranks: dict[int, subprocess.Popen[bytes]]) -> None:
    """Wait until no rank makes another collective for six seconds."""
    deadline, seen, since = time.monotonic() + 90, -1, time.monotonic()
    while time.monotonic() < deadline and (seen < 3 * WORLD or time.monotonic() - since < 6):
        dumps = hang.dumps(str(records), [process.pid for process in ranks.values()])
        made = sum(len(why.recorded(dump)[0]) for dump in dumps.values() if dump)
        if made > seen:
            seen, since = made, time.monotonic()


def state_of(folder: Path, rank: int, process: subprocess.Popen[bytes]) -> why.RankState:
    """What a rank tells."""
    dump = hang.dumps(str(folder / "records"), [process.pid]).get(process.pid, b"")
    calls, groups = why.recorded(dump) if dump else ([], {})
    frames = frames_of(folder / f"{rank}.err", process.pid)
    if why.place_of(frames) == "data":
        loaders = (frames_of(folder / f"{rank}.err", pid) for pid in children.descendants(process.pid))
        frames = next(filter(why.loads, loaders), frames)
    return why.RankState(rank, "", None, frames, calls, groups)


def frames_of(file: Path, pid: int) -> list[str]:
    """The calls of a process that prints to this file."""
    before = len(file.read_text(errors="replace").splitlines())

    def lines() -> list[str]:
        return file.read_text(errors="replace").splitlines()[before:]

    return hang.frames_of(hang.print_stacks(pid, lines)) or hang.held(pid)


def main() -> None:
    root = Path(sys.argv[1])
    TRACES.mkdir(exist_ok=True)
    for number, name in enumerate(sys.argv[2:] or NAMES):
        if name in ("step", "main", "evaluate_for_ever", "wait_for_the_next_epoch", "compute_much"):
            continue
        states = record(root, name, 29600 + number + os.getpid() % 1000)
        (TRACES / f"{name}.json").write_text(json.dumps([asdict(each) for each in states]) + "\n")
        cause = why.explain(states, WORLD)
        print(f"{name}: {cause.kind}, {cause.sentence}", flush=True)


main()
