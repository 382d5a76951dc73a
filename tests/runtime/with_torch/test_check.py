"""The all-reduce check of torch-elastic on a torch without CUDA, as where driver or image are wrong."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.runtime.with_torch.conftest import ROOT

CHECK = Path(__file__).parents[3] / "charts/torch-elastic/files/allreduce.py"


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ("nvidia.com/gpu", 1, "which was built without CUDA, finds none"),
        pytest.param("aws.amazon.com/neuron", 1, "the image has no torch_neuronx", marks=pytest.mark.whole),
        pytest.param("", 0, "rank 0 of world size 1 on cpu: all-reduce agrees", marks=pytest.mark.whole),
    ],
)
def test_the_check_takes_gloo_only_where_no_accelerator_was_asked_for(
    asked: str, code: int, words: str
) -> None:
    variables = {
        "PATH": "/usr/bin:/bin", "BIREME_ACCELERATORS": asked, "RANK": "0", "WORLD_SIZE": "1",
        "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "USE_LIBUV": "0",
    }  # fmt: skip
    env = [f"{name}={value}" for name, value in variables.items()]
    command = ["chroot", ROOT, "env", "-i", *env, "python3", "-c", CHECK.read_text()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stderr
    assert words in done.stdout + done.stderr
