"""Waiting for a condition, with a status on the console; clearing up without interruption."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from bireme.errors import BiremeError

if TYPE_CHECKING:
    from rich.console import Console


@contextlib.contextmanager
def no_interrupts() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM until the block has ended, so that nothing is left half removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def status(console: Console | None, text: str) -> Iterator[None]:
    """Show ``text`` on the console, if there is one, while the block runs."""
    if console is None:
        yield
        return
    with console.status(text):
        yield


def until(done: Callable[[], bool], seconds: float, what: str) -> None:
    """Return once ``done`` says so. Raises BiremeError, naming ``what`` was waited for, after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise BiremeError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.1)
