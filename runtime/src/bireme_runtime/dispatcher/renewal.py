"""Renews a trainer's lease for `client.py`, which starts it as a process of its own.

A thread of the trainer could not renew while a step of its program holds the interpreter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from bireme_runtime.dispatcher.client import parse, renew


def main(argv: Sequence[str]) -> None:
    """Renew until the lease or the trainer's process has ended."""
    addresses, path, trainer, seconds, parent = *argv[:3], float(argv[3]), int(argv[4])
    renew(parse(addresses), path, trainer, seconds, lambda: os.getppid() == parent)


if __name__ == "__main__":
    main(sys.argv[1:])
