"""Check that all ranks form one world: the all-reduced sum of the ranks must be that of the world size.

Where accelerators were asked for, each rank also looks whether their driver is there.
"""

import ctypes
import glob
import os
import sys

from mpi4py import MPI


def lacks():
    """Why this worker cannot use the accelerators that it asked for; empty if it can."""
    asked = os.environ.get("BIREME_ACCELERATORS", "")
    if asked == "aws.amazon.com/neuron" and not glob.glob("/dev/neuron*"):
        return "this worker has Neuron devices, but /dev has no neuron*"
    if asked != "nvidia.com/gpu":
        return ""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"this worker has GPUs, but NVIDIA's driver does not load: {error}"
    count = ctypes.c_int(0)
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "this worker has GPUs, but NVIDIA's driver finds none"
    return ""


world = MPI.COMM_WORLD
lacking = lacks()
if lacking:
    print(f"rank {world.rank} of {world.size} on {MPI.Get_processor_name()}: {lacking}", flush=True)
total = world.allreduce(world.rank + 1)
expected = world.size * (world.size + 1) // 2
verdict = "agrees" if total == expected else f"is {total}, not {expected}"
print(f"rank {world.rank} of {world.size} on {MPI.Get_processor_name()}: all-reduce {verdict}", flush=True)
sys.exit(0 if total == expected and not lacking else 1)
