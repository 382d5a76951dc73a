"""The pure parts of benchmarks: the faults of a seed, what steps are worth, and what recovery misses."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from goodput import Fault, account, fault_list, longest_pause
from recovery import BIREME, DELETE, KILL_AGENT, Recovery, missed, report_of


def steps(*made: tuple[float, int], world: int = 3) -> list[dict[str, Any]]:
    """Steps by their moment and number, with a loss that is a number."""
    return [{"time": time, "step": step, "world": world, "finite": True} for time, step in made]


def a_second_each(numbers: Iterable[int], since: float = 0.0) -> list[dict[str, Any]]:
    return steps(*((since + index, number) for index, number in enumerate(numbers, 1)))


@pytest.mark.parametrize("seed", range(3))
def test_each_kind_comes_as_often_as_wanted_in_windows_that_follow_each_other(seed: int) -> None:
    faults = fault_list(seed, ["kill", "delete", "node"], 3)
    assert faults == fault_list(seed, ["kill", "delete", "node"], 3)
    assert faults != fault_list(seed + 1, ["kill", "delete", "node"], 3)
    assert sorted(fault.kind for fault in faults) == ["delete"] * 3 + ["kill"] * 3 + ["node"] * 3
    begin = 0.0
    for fault in faults:
        assert begin + 2 <= fault.at <= begin + 10 < fault.end
        assert fault.end - begin == {"node": 180}.get(fault.kind, 60)
        assert fault.worker in range(3)
        begin = fault.end
    assert isinstance(faults[0], Fault)


def test_steps_after_a_return_to_a_checkpoint_count_once() -> None:
    made = a_second_each([1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8])
    found = account(made, 0, 11, ideal=1)
    assert (found.useful, found.again) == (8, 3)
    assert found.goodput == pytest.approx(8 / 11, abs=1e-4)


def test_a_step_of_two_of_three_workers_counts_two_thirds() -> None:
    made = [*a_second_each([1, 2]), *steps((3, 3), (4, 4), (5, 5), world=2)]
    assert account(made, 0, 5, ideal=1).useful == 4


def test_what_was_made_before_a_window_is_not_new_in_it() -> None:
    made = a_second_each([1, 2, 3, 4, 3, 4, 5])
    found = account(made, 4, 7, ideal=1)
    assert (found.useful, found.again) == (1, 2)


def test_a_step_whose_loss_is_no_number_is_useful_only_when_it_is_made_again() -> None:
    made = a_second_each([1, 2, 3, 4, 3, 4])
    made[2]["finite"] = made[3]["finite"] = False
    found = account(made, 0, 6, ideal=1)
    assert (found.useful, found.again) == (4, 2)


def test_a_pause_lasts_until_a_step_that_is_new() -> None:
    made = steps((1, 1), (2, 2), (3, 3), (10, 2), (11, 3), (12, 4), (13, 5))
    assert longest_pause(made, 2.5, 13) == 9
    assert longest_pause(made, 2.5, 40) == 27


def test_recovery_fails_above_the_seconds_of_the_document() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs/measured.md").read_text().split())
    limits = re.search(
        r"than ([\d.]+) s to a new world after a deleted pod, or ([\d.]+) s after SIGKILL of", page
    )
    assert limits
    for event, seconds in zip((DELETE, KILL_AGENT), map(float, limits.groups()), strict=True):
        losses = [loss for loss in BIREME if loss.event == event]
        assert len(losses) == 3
        for world, too_long in ((seconds, 0), (seconds + 0.1, 3)):
            found = {loss: [Recovery(world, 100, 1)] for loss in losses}
            assert len(missed(report_of(found, [1.0]))) == too_long
