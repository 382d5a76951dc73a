"""The all-reduce checks of mpi-training and paddle on one rank, with stand-ins for mpi4py and paddle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHARTS = Path(__file__).parents[2] / "charts"
MPI = """
class World:
    rank, size = 0, 1
    def allreduce(self, number):
        return number
class MPI:
    COMM_WORLD = World()
    @staticmethod
    def Get_processor_name():
        return "here"
"""


PADDLE = """
import sys, types
__version__ = "3.0.0"
counted = types.SimpleNamespace(device_count=lambda: {gpus})
device = types.SimpleNamespace(cuda=counted)
class Total:
    def item(self):
        return 0.0
def is_compiled_with_cuda():
    return {cuda}
def to_tensor(numbers):
    return Total()
distributed = types.ModuleType("paddle.distributed")
distributed.init_parallel_env = distributed.all_reduce = lambda *_: None
distributed.get_rank, distributed.get_world_size = lambda: 0, lambda: 1
sys.modules["paddle.distributed"] = distributed
"""


def run_check(chart: str, modules: Path, asked: str) -> subprocess.CompletedProcess[str]:
    """The chart's check in a process that finds these modules, and no driver."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(modules), "LD_LIBRARY_PATH": str(modules)}
    command = [sys.executable, str(CHARTS / chart / "files/allreduce.py")]
    env["BIREME_ACCELERATORS"] = asked
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ("nvidia.com/gpu", 1, "this worker has GPUs, but NVIDIA's driver does not load: "),
        ("aws.amazon.com/neuron", 1, "this worker has Neuron devices, but /dev has no neuron*"),
        ("", 0, "rank 0 of 1 on here: all-reduce agrees"),
    ],
)
def test_the_check_fails_without_the_accelerators_that_were_asked_for(
    tmp_path: Path, asked: str, code: int, words: str
) -> None:
    (tmp_path / "mpi4py.py").write_text(MPI)
    # On a machine with a driver, this one comes first.
    (tmp_path / "libcuda.so.1").write_text("no library")
    done = run_check("mpi-training", tmp_path, asked)
    assert done.returncode == code, done.stderr
    assert words in done.stdout


@pytest.mark.parametrize(
    ("asked", "cuda", "gpus", "code", "words"),
    [
        ("nvidia.com/gpu", False, 0, 1, "this worker has GPUs, but paddle 3.0.0 was built without CUDA"),
        ("nvidia.com/gpu", True, 0, 1, "this worker has GPUs, but paddle 3.0.0 finds none"),
        ("nvidia.com/gpu", True, 8, 0, "rank 0 of world size 1: all-reduce agrees"),
        ("", False, 0, 0, "rank 0 of world size 1: all-reduce agrees"),
    ],
)
def test_the_check_of_paddle_fails_without_the_gpus_that_were_asked_for(
    tmp_path: Path, asked: str, cuda: bool, gpus: int, code: int, words: str
) -> None:
    (tmp_path / "paddle.py").write_text(PADDLE.format(cuda=cuda, gpus=gpus))
    done = run_check("paddle", tmp_path, asked)
    assert done.returncode == code, done.stderr
    assert words in done.stdout + done.stderr
