"""Which workers try an all-reduce with each other, and which of them is to blame. with_torch has the rest."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bireme_runtime.elastic import progress
from bireme_runtime.elastic.agent import pairs
from bireme_runtime.elastic.agent.pairs import phases, to_blame
from tests.runtime.etcd_servers import RUNTIME


@pytest.mark.parametrize("world", [2, 3, 4, 5, 8, 9, 128])
def test_all_new_workers_meet_both_neighbours_and_one_at_a_time(world: int) -> None:
    found = phases(world, range(world))
    assert len(found) == (1 if world == 2 else 2 + world % 2)
    for phase in found:
        ranks = [rank for pair in phase for rank in pair]
        assert len(ranks) == len(set(ranks))
    pairs = [pair for phase in found for pair in phase]
    assert len(pairs) == len(set(pairs)) == (1 if world == 2 else world)


def test_only_newcomers_and_their_neighbours_try() -> None:
    assert phases(8, []) == []
    assert phases(1, [0]) == []
    assert phases(8, [7]) == [[(6, 7)], [(7, 0)]]
    assert phases(2, [1]) == [[(0, 1)]]


RING = [(0, 1), (1, 2), (2, 3), (3, 0)]


@pytest.mark.parametrize(
    ("tried", "failed", "new", "guilty"),
    [
        (RING, [], range(4), set()),
        (RING, [(0, 1), (1, 2)], range(4), {1}),
        (RING, [(2, 3), (3, 0)], range(4), {3}),
        (RING, [(0, 1)], range(4), set()),
        (RING, RING, range(4), set()),
        ([(0, 1), (1, 2), (2, 0)], [(0, 1), (1, 2)], range(3), {1}),
        ([(0, 1)], [(0, 1)], [1], {1}),
        ([(0, 1)], [(0, 1)], [0, 1], set()),
        ([(0, 1)], [], [1], set()),
        ([(6, 7), (7, 0)], [(6, 7), (7, 0)], [7], {7}),
        ([(6, 7), (7, 0)], [(7, 0)], [7], set()),
    ],
)
def test_the_worker_that_failing_pairs_have_in_common_is_to_blame(
    tried: list[tuple[int, int]], failed: list[tuple[int, int]], new: list[int], guilty: set[int]
) -> None:
    assert to_blame(tried, failed, new) == guilty


# As much of torch as one rank of a pair uses. Its all-reduce is wrong, or does not end.
TORCH = """
import sys, time
class Data:
    def min(self): return self
    max = min
    def item(self): return {item}
    def __itruediv__(self, world): return self
def all_reduce(data): time.sleep({seconds})
ones = lambda *size, device: Data()
TCPStore = init_process_group = barrier = lambda *_, **more: None
sys.modules["torch.distributed"] = sys.modules[__name__]
"""


class Store:
    """A store in which the other worker of the pair has done its part."""

    def __init__(self) -> None:
        self.lines = {"new": "1;", "failed": ";"}

    def append(self, key: str, line: str) -> None:
        self.lines[key.rpartition("/")[2]] += line

    def get(self, key: str) -> bytes:
        return self.lines[key.rpartition("/")[2]].encode()

    def add(self, *_: Any) -> int:
        return 2

    def set(self, *_: Any) -> None:
        pass

    wait = set


@pytest.mark.parametrize(
    ("item", "seconds", "why"),
    [("2 / 3", 0, "fails"), ("1", 600, "does not end within 180 s"), ("1", 0, "")],
)
def test_a_pair_fails_when_its_sum_is_wrong_or_after_180_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, item: str, seconds: int, why: str
) -> None:
    (tmp_path / "torch.py").write_text(TORCH.format(item=item, seconds=seconds))
    board = progress.StepBoard.new()
    env = {pairs.ASKED: "true", progress.BOARD: board.path, "PYTHONPATH": f"{RUNTIME}:{tmp_path}"}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    if seconds:
        clock = itertools.count(step=20)
        monkeypatch.setattr(pairs, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: 0))
    said: list[str] = []
    pairs.check(Store(), 0, 2, lambda: False, said.append)
    assert (f"preflight: the all-reduce of workers 0 and 1 {why}" in said) == bool(why)
    assert board.passed == (not why), "one that failed is tried again in the next round"
