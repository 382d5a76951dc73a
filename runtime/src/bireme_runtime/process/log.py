"""The lines that the runtime itself writes to a pod's log."""

from __future__ import annotations

import sys
from collections.abc import Callable

Say = Callable[[str], None]


def log_of(part: str) -> Say:
    """The function that logs for one part of the runtime: `bireme PART: SENTENCE`, on standard error."""

    def say(sentence: str) -> None:
        print(f"bireme {part}: {sentence}", file=sys.stderr, flush=True)

    return say
