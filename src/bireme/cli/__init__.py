"""The command line: reads options, calls the harness, prints what came out."""

from __future__ import annotations

import signal
import sys

from bireme.cli import charts, checks, elastic, nodes, releases
from bireme.cli.options import cli
from bireme.core.errors import BiremeError

__all__ = ["cli", "main"]

# Importing them adds their commands to the group.
_COMMANDS = (charts, checks, elastic, nodes, releases)


def main() -> None:
    """Run the command line. An error that the user can fix is printed as one sentence, with exit code 1."""
    # SIGTERM interrupts a command as Ctrl-C does, so that it cleans up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cli(standalone_mode=True)
    except BiremeError as error:
        from rich.console import Console

        # What a terminal cannot show, such as half of a pair of surrogates, is shown by its number.
        said = str(error).encode("utf-8", "backslashreplace").decode()
        Console(stderr=True, highlight=False, markup=False).print(
            f"error: {said}", style="red", soft_wrap=True
        )
        sys.exit(1)
