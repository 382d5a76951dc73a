"""The program `bireme`."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it with a word, also while its modules are read."""
    caught = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if caught:
        signal.signal(signal.SIGINT, _abort)
    from bireme.cli import main as run

    try:
        if caught:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        sys.exit("Aborted!")


def _abort(*_: object) -> None:
    """End at once: Python's import system may swallow an exception, and nothing has begun."""
    os.write(2, b"Aborted!\n")
    os._exit(1)


if __name__ == "__main__":
    main()
