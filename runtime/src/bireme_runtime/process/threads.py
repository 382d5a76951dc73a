"""Threads that the end of the process does not wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def in_thread(act: Callable[[], Result], name: str = "bireme-act") -> Future[Result]:
    """Call ``act`` in a thread of its own. What it returns or raises is in the result."""
    future: Future[Result] = Future()
    # Who waits may give up, and the thread still ends in silence.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def in_one_thread(before: Future[Result] | None, act: Callable[[], Result]) -> Future[Result]:
    """The call ``before`` while it runs, otherwise a new one of ``act``. So what hangs holds one thread."""
    return before if before and not before.done() else in_thread(act)
