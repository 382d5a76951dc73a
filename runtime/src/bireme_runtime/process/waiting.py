"""Waiting for what others have to do first, with a limit."""

from __future__ import annotations

import select
import socket
import time

from bireme_runtime.process.log import Say

_PROGRESS_SECONDS = 10.0


class BoundedWait:
    """A wait of at most so many ``seconds`` that says now and then what it waits for."""

    def __init__(self, seconds: float, say: Say, pause: float = 0.5) -> None:
        self._seconds, self._say, self._pause = seconds, say, pause
        self._deadline = time.monotonic() + seconds
        self._what, self._say_again = "", 0.0

    def a_moment(self, what: str, why: str = "") -> bool:
        """Wait a moment for something; False at the end of the limit. A new ``what`` is said at once."""
        now, is_new, self._what = time.monotonic(), what != self._what, what
        left = max(0.0, self._deadline - now)
        if is_new or now >= self._say_again:
            self._say_again = now + _PROGRESS_SECONDS
            self._say(f"waiting, {left:.0f} s at most, for {what}{why}")
        if not left:
            return False
        time.sleep(min(self._pause, left))
        return True

    @property
    def in_vain(self) -> str:
        """What was waited for, for how long."""
        return f"gave up after waiting {self._seconds:.0f} s for {self._what}"


def readable(file: int | socket.socket, seconds: float = 0.0) -> bool:
    """Whether something can be read, or the other end is closed, within so many seconds."""
    # Unlike select, poll takes descriptors above 1023.
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
