"""What was said to be complete is so after a loss of power: checkpoints, and datasets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.datasets import run as dataset
from tests.runtime.datasets import settings
from tests.runtime.with_torch.test_full_disk import start
from tests.support import disks

pytestmark = pytest.mark.whole

PADDLE_IMAGE = Path(__file__).parents[3] / "images" / "paddle"
# Paddle and what else the script imports are not installed here; a stand-in writes the file as Paddle does.
SAVE = """
import pickle, sys
from pathlib import Path
from unittest.mock import MagicMock
for name in ("numpy", "paddle", "sklearn", "sklearn.datasets"):
    sys.modules[name] = MagicMock()
sys.modules["paddle"].save = lambda state, path: Path(path).write_bytes(pickle.dumps(state))
import collective
model = MagicMock()
model.state_dict = lambda: "x" * 100_000
collective.save(model, Path(sys.argv[1]), 7)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[disks.Disk]:
    with disks.disk(tmp_path) as one:
        yield one


def test_a_finished_run_has_its_last_checkpoint_after_a_loss_of_power(
    job: Callable[..., Any], disk: disks.Disk
) -> None:
    run = job(PET_NNODES="1:2")
    start(run, disk.folder)
    assert [run.end(name, 300) for name in "ab"] == [0, 0]
    with disk.after_a_loss_of_power() as left:
        assert json.loads((left / "run" / "done").read_text())["step"] == 200
        assert (left / "run" / "checkpoint-000000200.pt").stat().st_size > 1000


def test_the_checkpoint_of_collective_py_is_there_after_a_loss_of_power(disk: disks.Disk) -> None:
    folder = disk.folder / "checkpoints"
    env = os.environ | {"PYTHONPATH": str(PADDLE_IMAGE)}
    subprocess.run([sys.executable, "-c", SAVE, folder], env=env, check=True)
    with disk.after_a_loss_of_power() as left:
        assert (left / "checkpoints" / "last.pdparams").stat().st_size > 100_000


def test_a_published_dataset_is_complete_after_a_loss_of_power(disk: disks.Disk, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "words").write_text("".join(f"line {number}\n" for number in range(100_000)))
    (source / "other").write_text("other")
    shards = [{"file": "words", "count": 4}]
    env = settings(disk.folder / "data", {"url": f"file://{source}"}, shards=shards)
    code, said = dataset("copy", env)
    assert code == 0, said
    with disk.after_a_loss_of_power() as left:
        code, said = dataset("verify", {}, str(left / "data"))
    assert code == 0, said
