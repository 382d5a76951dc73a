"""What a long step prints while it runs: a spinner on a terminal, lines elsewhere, for example in CI."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console

_SHORT_SECONDS = 5.0
_EVERY_SECONDS = 15.0


def note(console: Console | None, text: str) -> None:
    """Print one line about the progress, if there is a console."""
    if console:
        console.print(text, style="dim", highlight=False)


@contextlib.contextmanager
def step(
    console: Console | None,
    text: str,
    short_seconds: float = _SHORT_SECONDS,
    detail: Callable[[], str] = lambda: "",
    every_seconds: float = _EVERY_SECONDS,
) -> Iterator[None]:
    """Show ``text``, what ``detail`` says and the time so far on the console while the block runs.

    A block that takes longer than ``short_seconds`` prints its time at the end. Where the console is no
    terminal, it also prints a line as soon as it has taken so long, and one every ``every_seconds`` after it.
    """
    if console is None:
        yield
        return
    started = time.monotonic()
    spinner = console.status(f"{text} …") if console.is_terminal else None
    ended = threading.Event()

    def tell() -> None:
        wait = 1.0 if spinner else short_seconds
        while not ended.wait(wait):
            seconds = time.monotonic() - started
            facts = ", ".join(filter(None, (detail(), f"{seconds:.0f} s" if seconds >= 1 else "")))
            line = f"{text} … {facts}".rstrip()
            if spinner:
                spinner.update(line)
            else:
                note(console, line)
                wait = every_seconds

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        with spinner or contextlib.nullcontext():
            yield
    finally:
        ended.set()
        teller.join()
    if (seconds := time.monotonic() - started) > short_seconds:
        note(console, f"{text}: {seconds:.0f} s")
