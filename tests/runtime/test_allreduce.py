"""The all-reduce check of mpi-training on one rank, with a stand-in for mpi4py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / "charts/mpi-training/files/allreduce.py"
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
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, CHECK],
        env={**env, "BIREME_ACCELERATORS": asked},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert words in done.stdout
