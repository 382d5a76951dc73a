"""Folders in the cache that are made once: atomically, and by one process at a time."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path


def make_once(
    folder: Path,
    make: Callable[[Path], None],
    *,
    complete: Callable[[Path], bool] = Path.is_dir,
    waiting: Callable[[], None] = lambda: None,
) -> bool:
    """Let ``make`` fill ``folder`` unless it exists; return whether this call filled it.

    ``make`` gets an empty folder beside the final one, which is renamed into place when it returns. If it
    raises, or is interrupted, nothing stays. A second process calls ``waiting`` once and blocks until the
    first is done. A folder for which ``complete`` is false is damaged, and is made again.
    """
    if complete(folder):
        return False
    locks = folder.parent / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        lock = stack.enter_context((locks / folder.name).open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        if complete(folder):
            return False
        _make(folder, make)
        return True


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    # One name for every attempt: the holder of the lock may remove what a killed process left.
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        make(partial)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
