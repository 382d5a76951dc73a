"""The storage of the checkpoints stands still, and writers hang in the kernel: digits.py on real torchrun."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.with_torch.test_full_disk import events, start
from tests.support import disks, waiting

pytestmark = pytest.mark.whole


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, because one that is frozen stops all who write into it."""
    with disks.disk(tmp_path) as one:
        yield one.folder


@contextmanager
def frozen(folder: Path) -> Iterator[None]:
    """Whoever writes into this file system is in state D, and does not end on SIGKILL."""
    subprocess.run(["fsfreeze", "--freeze", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", folder], check=True)


def test_a_writer_that_hangs_in_the_kernel_ends_its_worker_and_loses_no_saved_step(
    job: Callable[..., Any], disk: Path
) -> None:
    run = job(PET_NNODES="1:2", BIREME_HANG_SECONDS="15", BIREME_FIRST_STEP_SECONDS="120")
    start(run, disk)
    waiting.until(lambda: 40 in events(run, "checkpoint"), 240, lambda: run.words("a")[-3000:])

    def stuck() -> list[str]:
        return [name for name in "ab" if run.workers[name].poll() is not None]

    with frozen(disk):
        waiting.until(stuck, 240, lambda: run.words("a")[-3000:] + run.words("b")[-3000:])
        saved = max(events(run, "checkpoint"))
    # The writer printed no stacks, and the kernel told why.
    words = run.words("a") + run.words("b")
    assert re.search(r"all wait for rank \d on node-[ab] in state D \(disk sleep\)", words), words[-6000:]
    for name in stuck():
        # Its pod ends with its process, and the Job makes it again.
        assert run.end(name) == 75
        run.start(name, "ab".index(name), BIREME_NODE=f"node-{name}", HOME="/tmp")
    assert [run.end(name, 400) for name in "ab"] == [0, 0]
    assert min(events(run, "resume")) >= saved
    assert max(events(run, "step")) == 200
