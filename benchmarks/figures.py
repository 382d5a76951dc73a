"""What the benchmarks share to print their progress and their results."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console

# Where the progress goes; results go to stdout.
CONSOLE = Console(stderr=True)


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of some measurements."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Iterable[float], digits: int = 2) -> Spread:
        some = list(values)
        return cls(*(round(each, digits) for each in (statistics.median(some), min(some), max(some))))

    def __str__(self) -> str:
        return f"{self.median:g} ({self.lowest:g}–{self.highest:g})"


def machine() -> str:
    """The machine that ran them and its load average, which on a quiet machine is mostly theirs."""
    loads = ", ".join(f"{each:.0f}" for each in os.getloadavg())
    system = f"{platform.machine()}, {platform.system()} {platform.release()}"
    return f"{os.cpu_count()} cores, {system}, load average {loads}"
