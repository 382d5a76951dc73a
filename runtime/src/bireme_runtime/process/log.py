"""The lines that the runtime itself writes to a pod's log, and a container's last words."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

Say = Callable[[str], None]

# Kubernetes keeps no more of one container.
_MOST_BYTES = 4096


def log_of(part: str) -> Say:
    """The function that logs for one part of the runtime: `bireme PART: SENTENCE`, on standard error."""

    def say(sentence: str) -> None:
        print(f"bireme {part}: {sentence}", file=sys.stderr, flush=True)

    return say


def last_words(text: str, env: Mapping[str, str] = os.environ) -> None:
    """Leave in the pod's status why this container ends, where Kubernetes has mounted a file for that."""
    path = Path(env.get("BIREME_TERMINATION_LOG", "/dev/termination-log"))
    with contextlib.suppress(OSError):
        if path.is_file():
            path.write_bytes(text.encode()[-_MOST_BYTES:])
