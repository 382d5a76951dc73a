"""The folder of the checkpoints is full: images/torch/digits.py on real torchrun and etcd."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import waiting

pytestmark = pytest.mark.whole

IMAGE = Path(__file__).parents[3] / "images" / "torch"
KIB = 512


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    options = f"size={KIB}k,mode=1777"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "small", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def start(run: Any, small: Path, **env: str) -> None:
    """Two workers with digits.py, which saves every 20 steps."""
    for name in ("digits.py", "elastic.py"):
        shutil.copy(IMAGE / name, run.folder)
    (run.folder / "checkpoints").mkdir(exist_ok=True)
    enter = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"']
    run.script = [
        "/mnt/digits.py",
        "--checkpoints=/mnt/checkpoints/run",
        "--steps=200",
        "--step-seconds=0.05",
    ]
    run.script += ["--checkpoint-every=20", "--tensorboard=/tmp/events"]
    for index, name in enumerate("ab"):
        run.networks[name] = [*enter, str(small), str(run.folder / "checkpoints")]
        run.start(name, index, BIREME_NODE=f"node-{name}", HOME="/tmp", **env)


def fill(path: Path) -> None:
    """Write this file until nothing more fits into its file system."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(file, b"x" * 1024):
            pass
    os.close(file)


def events(run: Any, name: str) -> list[int]:
    """The steps of the events with this name, of both workers."""
    lines = [line for worker in "ab" for line in run.words(worker).splitlines() if line.startswith("{")]
    return [event["step"] for event in map(json.loads, lines) if event["event"] == name]


def test_a_full_disk_ends_the_job_with_the_reason_and_costs_no_saved_step(
    job: Callable[..., Any], small: Path
) -> None:
    run = job(BIREME_FAILURES_WITHOUT_PROGRESS="2", PET_NNODES="1:2")
    start(run, small)
    waiting.until(lambda: 40 in events(run, "checkpoint"), 180, lambda: run.words("a")[-3000:])
    fill(small / "ballast")
    codes = {run.end(name, 300) for name in "ab"}
    assert 70 in codes
    assert codes <= {70, 75}
    assert "No space left on device" in run.words("a") + run.words("b")
    saved = max(events(run, "checkpoint"))
    assert not list((small / "run").glob(".*.pt.*")), "what could not be saved takes no space"

    (small / "ballast").unlink()
    start(run, small, PET_RDZV_ID="another-run")
    assert [run.end(name, 300) for name in "ab"] == [0, 0]
    assert min(events(run, "resume")[-2:]) >= saved
