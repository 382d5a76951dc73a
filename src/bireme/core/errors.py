"""Errors whose text is written for the person who runs the command."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable


class BiremeError(Exception):
    """Something the user can act on: one sentence that says what, where and what to do.

    The command line prints it as ``error: <sentence>`` and exits with 1.
    """


def suggestion(name: str, known: Iterable[str]) -> str:
    """What to write instead of ``name``: the closest of ``known``, else those of its family, else all.

    The family of an instance type is what stands before its dot.
    """
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
    close = close or [each for each in choices if each.partition(".")[0] == name.partition(".")[0]][:3]
    return f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(choices)}"


def refuse_name(option: str, name: str, longest: int, inner: str = "-") -> None:
    """Raises BiremeError for a name that Kubernetes or Helm would not take.

    ``inner`` is what it may have beside letters and digits, but not at its ends.
    """
    if not re.fullmatch(rf"[a-z0-9]([a-z0-9{inner}]*[a-z0-9])?", name) or len(name) > longest:
        dots = " and dots" if "." in inner else ""
        raise BiremeError(
            f"{option}: {name!r} cannot be a name: it takes lower-case letters, digits and "
            f"inner dashes{dots}, at most {longest}"
        )


def run(main: Callable[[], object]) -> None:
    """Run ``main``. A BiremeError ends the program with its sentence and exit code 1."""
    try:
        main()
    except BiremeError as error:
        sys.exit(f"error: {error}")
