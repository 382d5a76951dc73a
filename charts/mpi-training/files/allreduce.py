"""Check that all ranks form one world: the all-reduced sum of the ranks must be that of the world size."""

import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
expected = world.size * (world.size + 1) // 2
verdict = "agrees" if total == expected else f"is {total}, not {expected}"
print(f"rank {world.rank} of {world.size} on {MPI.Get_processor_name()}: all-reduce {verdict}", flush=True)
sys.exit(0 if total == expected else 1)
