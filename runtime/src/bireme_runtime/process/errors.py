"""The errors of the runtime: all derive from BiremeError, and their messages are sentences for people."""

from __future__ import annotations

from bireme_runtime.process.exits import CONFIG, TEMPORARY


class BiremeError(Exception):
    """Base of the runtime's errors. The message says what is wrong and, where that helps, what to do.

    `code` is the exit code of a program that it ends.
    """

    code = CONFIG


class Stop(BiremeError):
    """Ends the program with an exit code (see exits.py)."""

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
