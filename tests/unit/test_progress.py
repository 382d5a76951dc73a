"""What long steps print, on a terminal and elsewhere."""

from __future__ import annotations

import io
import re
import time

from rich.console import Console

from bireme.core.progress import step
from tests.support.waiting import until


def output_of(console: Console) -> str:
    """What it has printed, but for the seconds that a busy machine adds."""
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"(?m)((?<=…)|,) \d+ s$", "", console.file.getvalue())


def test_a_long_step_is_announced_while_it_runs_and_prints_its_time() -> None:
    console = Console(file=io.StringIO())
    with step(console, "building torch", short_seconds=0.05):
        until(lambda: output_of(console) == "building torch …\n", what="the first line")
    assert re.fullmatch(r"building torch …\nbuilding torch: \d+ s\n", output_of(console))


def test_a_long_step_says_again_and_again_how_far_it_is() -> None:
    console = Console(file=io.StringIO())
    packages = iter(range(100_000))
    with step(console, "building helm", 0, lambda: f"{next(packages)} packages", every_seconds=0.01):
        until(lambda: "building helm … 3 packages\n" in output_of(console), what="the fourth line")
    assert output_of(console).startswith("building helm … 0 packages\nbuilding helm … 1 packages\n")


def test_a_short_step_prints_nothing() -> None:
    console = Console(file=io.StringIO())
    with step(console, "building torch", short_seconds=60):
        time.sleep(0.01)
    assert output_of(console) == ""


def test_a_step_that_fails_prints_no_time() -> None:
    console = Console(file=io.StringIO())
    try:
        with step(console, "building torch", short_seconds=0):
            until(lambda: output_of(console) != "", what="the first line")
            raise OSError("no space left")
    except OSError:
        pass
    assert output_of(console) == "building torch …\n"
