"""The program `bireme`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it with a word, also while its modules are read."""
    try:
        from bireme.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit("Aborted!")


if __name__ == "__main__":
    main()
