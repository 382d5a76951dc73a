"""Errors whose text is written for the person who runs the command."""

from __future__ import annotations


class BiremeError(Exception):
    """Something the user can act on: one sentence that says what, where and what to do.

    The command line prints it as ``error: <sentence>`` and exits with 1.
    """
