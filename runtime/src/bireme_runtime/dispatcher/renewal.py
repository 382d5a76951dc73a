"""Renews a trainer's lease for `client.py`, which starts it as a process of its own.

A thread of the trainer could not renew while a step of its program holds the interpreter.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from bireme_runtime.dispatcher.client import LeaderConnection, Refused, Unavailable, parse

_LOOK_SECONDS = 0.2


def main(argv: Sequence[str]) -> int:
    """Renew until the lease or the trainer's process has ended, and write a byte after the first time."""
    addresses, path, trainer, seconds, parent = *argv[:3], float(argv[3]), int(argv[4])
    leader = LeaderConnection(parse(addresses), seconds, seconds / 4)
    due, is_first = 0.0, True
    while os.getppid() == parent:
        if time.monotonic() >= due:
            due = time.monotonic() + seconds / 3
            try:
                leader.ask("POST", path, {"trainer": trainer}, seconds / 3)
            except Refused:
                return 0
            except Unavailable:
                continue
            if is_first:
                is_first = False
                os.write(1, b"!")
        time.sleep(_LOOK_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
