"""The lines that the runtime itself writes to a pod's log, and a container's last words."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

Say = Callable[[str], None]

# Kubernetes keeps no more of one container.
_MOST_BYTES = 4096


# What a pipe takes as a whole when it is writable.
_PIECE_BYTES = 4096
_LONGEST_WAIT_SECONDS = 0.5


def log_of(part: str) -> Say:
    """The function that logs for one part of the runtime: `bireme PART: SENTENCE`, on standard error.

    A log that nobody reads, as on a node whose disk is full, costs a moment and the sentence: whoever speaks
    has a fence and a grace period to keep.
    """

    def say(sentence: str) -> None:
        line = f"bireme {part}: {sentence}\n"
        try:
            target = sys.stderr.fileno()
        except (OSError, AttributeError):
            print(line, end="", file=sys.stderr, flush=True)
            return
        rest = line.encode("utf-8", "backslashreplace")
        with contextlib.suppress(OSError):
            while rest and select.select([], [target], [], _LONGEST_WAIT_SECONDS)[1]:
                rest = rest[os.write(target, rest[:_PIECE_BYTES]) :]

    return say


def last_words(text: str, env: Mapping[str, str] = os.environ) -> None:
    """Leave in the pod's status why this container ends, where Kubernetes has mounted a file for that."""
    path = Path(env.get("BIREME_TERMINATION_LOG", "/dev/termination-log"))
    with contextlib.suppress(OSError):
        if path.is_file():
            path.write_bytes(text.encode()[-_MOST_BYTES:])
