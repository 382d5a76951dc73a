"""How what runs in a pod ends: the exit codes that charts act on (sysexits.h), and the sentence with one."""

from __future__ import annotations

USAGE, GIVEN_UP, TEMPORARY, NO_PERMISSION, CONFIG = 64, 70, 75, 77, 78


class Stop(Exception):
    """End with this exit code and sentence."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
