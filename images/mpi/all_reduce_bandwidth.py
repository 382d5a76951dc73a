"""Measure MPI's all-reduce for a range of message sizes, on CPUs, as all_reduce_perf of nccl-tests does.

Prints the lines and columns that nccl-tests does, so that `bireme nccl` reads them. Every sum is checked;
wrong ones make the exit status 1.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
from array import array

from mpi4py import MPI

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SMALL = 1 << 20
"""Messages smaller than this are sent more often, so that their time can be measured."""


def main() -> int:
    args = arguments()
    world = MPI.COMM_WORLD
    lead = world.rank == 0

    def say(line: str) -> None:
        if lead:
            print(line, flush=True)

    say(
        f"# nThread 1 nGpus 0 minBytes {args.min_bytes} maxBytes {args.max_bytes} step: {args.factor}(factor)"
    )
    say("#\n# Using devices")
    for rank, (pid, host) in enumerate(world.gather((os.getpid(), socket.gethostname())) or []):
        say(f"#  Rank {rank:2} Group  0 Pid {pid:6} on {host:>10} device  0 [-] CPU")
    heading = f"{'time':>7} {'algbw':>7} {'busbw':>7} {'#wrong':>6}"
    say(f"#\n#{'size':>12} {'count':>12} {'type':>8} {'redop':>7} {'root':>7} {heading} {heading}")
    say(f"#{'(B)':>12} {'(elements)':>12} {'':24} {'(us)':>7} {'(GB/s)':>7} {'(GB/s)':>7}")
    bandwidths, wrong, size = [], 0, args.min_bytes
    while size <= args.max_bytes:
        columns = []
        for in_place in (False, True):
            seconds, bad = all_reduce(world, size // 4, in_place)
            algorithm = size / seconds / 1e9
            bus = algorithm * 2 * (world.size - 1) / world.size
            bandwidths.append(bus)
            wrong += bad
            columns.append(f"{seconds * 1e6:7.1f} {algorithm:7.3f} {bus:7.3f} {bad:6}")
        say(f"{size:13} {size // 4:12} {'float':>8} {'sum':>7} {-1:7} {' '.join(columns)}")
        size *= args.factor
    say(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
    say(f"# Avg bus bandwidth    : {sum(bandwidths) / len(bandwidths):g}\n#")
    return 1 if wrong else 0


def all_reduce(world: MPI.Intracomm, count: int, in_place: bool) -> tuple[float, int]:
    """Seconds of one all-reduce of ``count`` float32 on the slowest rank, and the wrong sums of all ranks."""
    mine, total = array("f", [world.rank + 1]) * count, array("f", [0]) * count

    def once() -> None:
        if in_place:
            total[:] = mine
            world.Allreduce(MPI.IN_PLACE, total)
        else:
            world.Allreduce(mine, total)

    for _ in range(2):
        once()
    times = 20 if count * 4 < SMALL else 5
    world.Barrier()
    started = MPI.Wtime()
    for _ in range(times):
        once()
    seconds = world.allreduce((MPI.Wtime() - started) / times, MPI.MAX)
    expected = array("f", [world.size * (world.size + 1) / 2]) * count
    wrong = 0 if total == expected else sum(has != right for has, right in zip(total, expected, strict=True))
    return seconds, world.allreduce(wrong)


def arguments() -> argparse.Namespace:
    """The options, with the names of all_reduce_perf."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-b", "--minbytes", dest="min_bytes", type=size_of, default="8", metavar="SIZE")
    parser.add_argument("-e", "--maxbytes", dest="max_bytes", type=size_of, default="64M", metavar="SIZE")
    parser.add_argument("-f", "--stepfactor", dest="factor", type=int, default=2, metavar="N")
    args = parser.parse_args()
    if not 4 <= args.min_bytes <= args.max_bytes or args.factor < 2:
        parser.error("give 4 <= --minbytes <= --maxbytes, and --stepfactor 2 or more")
    return args


def size_of(text: str) -> int:
    """Bytes of ``8``, ``64K``, ``32M`` or ``1G``; whole float32 values."""
    found = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if not found or (size := int(found[1]) * UNITS[found[2]]) % 4:
        raise argparse.ArgumentTypeError(f"{text} is not a size: write 8, 64K, 32M or 1G, a multiple of 4")
    return size


if __name__ == "__main__":
    sys.exit(main())
