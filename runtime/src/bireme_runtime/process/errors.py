"""The errors of the runtime, whose messages are sentences for people, and the exit codes of its programs."""

from __future__ import annotations

import os
import signal

# 64 and above are those of sysexits.h, which the charts' Jobs act on.
FAILED, USAGE, UNCOUNTED, GIVEN_UP, TEMPORARY, NO_PERMISSION, CONFIG = 1, 64, 69, 70, 75, 77, 78


class BiremeError(Exception):
    """Base of the runtime's errors. The message says what is wrong and, where that helps, what to do.

    `code` is the exit code of a program that it ends.
    """

    code = CONFIG


class Stop(BiremeError):
    """Ends the program with an exit code."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class SettingError(Stop, ValueError):
    """An environment variable is missing or has a value that cannot be used."""

    def __init__(self, sentence: str) -> None:
        super().__init__(CONFIG, sentence)


class Unreachable(BiremeError):
    """Another process did not answer. A later attempt may succeed."""

    code = TEMPORARY


def as_shell(code: int) -> int:
    """The exit code that a shell reports: ``-N``, for a process killed by signal N, becomes 128 + N."""
    return code if code >= 0 else 128 - code


def end_on_sigterm() -> None:
    """Let SIGTERM end this program at once, as it ends others. Process 1 of a container would ignore it."""
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(as_shell(-number)))
