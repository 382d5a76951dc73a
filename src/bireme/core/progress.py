"""What a long step prints while it runs: a spinner on a terminal, lines elsewhere, for example in CI."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_SHORT_SECONDS = 5.0


def note(console: Console | None, text: str) -> None:
    """Print one line about the progress, if there is a console."""
    if console:
        console.print(text, style="dim", highlight=False)


@contextlib.contextmanager
def step(console: Console | None, text: str, short_seconds: float = _SHORT_SECONDS) -> Iterator[None]:
    """Show ``text`` on the console, if there is one, while the block runs.

    A block that takes longer than ``short_seconds`` prints its time at the end. Where the console is no
    terminal, it also prints a line as soon as it has taken so long.
    """
    if console is None:
        yield
        return
    started = time.monotonic()
    shown = console.status(f"{text} …") if console.is_terminal else _announced(console, text, short_seconds)
    with shown:
        yield
    if (seconds := time.monotonic() - started) > short_seconds:
        note(console, f"{text}: {seconds:.0f} s")


@contextlib.contextmanager
def _announced(console: Console, text: str, seconds: float) -> Iterator[None]:
    announcement = threading.Timer(seconds, note, (console, f"{text} …"))
    announcement.daemon = True
    announcement.start()
    try:
        yield
    finally:
        announcement.cancel()
