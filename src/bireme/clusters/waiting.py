"""Waiting for a condition, and clearing up without interruption."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

from bireme.core.errors import BiremeError


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


def until(done: Callable[[], bool], seconds: float, what: str) -> None:
    """Return once ``done`` says so. Raises BiremeError, naming ``what`` was waited for, after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise BiremeError(f"after {seconds:.0f} s gave up waiting for {what}")
        time.sleep(0.1)
