"""File descriptors of any number."""

from __future__ import annotations

import select
from typing import Protocol


class HasDescriptor(Protocol):
    """A socket or a file."""

    def fileno(self) -> int:
        """Its descriptor."""


def readable(file: int | HasDescriptor, seconds: float = 0.0) -> bool:
    """Whether something can be read, or the other end is closed, within so many seconds."""
    # Unlike select, poll takes descriptors above 1023.
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
