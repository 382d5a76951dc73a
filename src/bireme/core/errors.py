"""Errors whose text is written for the person who runs the command."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
