"""Which workers try an all-reduce with each other, and which of them is to blame. with_torch has the rest."""

from __future__ import annotations

import pytest

from bireme_runtime.elastic.agent.pairs import phases, to_blame


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
