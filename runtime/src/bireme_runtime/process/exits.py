"""The exit codes of the runtime. 64 and above are those of sysexits.h, which the charts' Jobs act on."""

from __future__ import annotations

FAILED, USAGE, UNCOUNTED, GIVEN_UP, TEMPORARY, NO_PERMISSION, CONFIG = 1, 64, 69, 70, 75, 77, 78


def as_shell(code: int) -> int:
    """The exit code that a shell reports: ``-N``, for a process killed by signal N, becomes 128 + N."""
    return code if code >= 0 else 128 - code
