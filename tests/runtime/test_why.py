"""The analysis of a hang, by what ranks of torch 2.14 told in planted faults (with_torch/record.py)."""

from __future__ import annotations

import json
import pickle
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bireme_runtime.elastic.monitor.why import Call, Cause, RankState, explain, loads, recorded
from tests.runtime.planted_hangs import FAULTS, GROUPED
from tests.support.tiers import core

TRACES = Path(__file__).with_name("traces")
WORLD = 4


def told(name: str) -> list[RankState]:
    return [RankState(**each) for each in json.loads((TRACES / f"{name}.json").read_text())]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_with_its_rank_and_place(name: str) -> None:
    kind, ranks, words = FAULTS[name]
    cause = explain(told(name), WORLD)
    assert (cause.kind, cause.ranks) == (kind, ranks), cause.sentence
    assert words in cause.sentence


def test_ranks_that_call_other_collectives_have_met_a_bug_which_no_node_explains() -> None:
    bugs = {name: explain(told(name), WORLD).bug for name in FAULTS}
    of_the_code = {name for name, (kind, _, _) in FAULTS.items() if kind in ("mismatch", "deadlock")}
    assert {name for name, bug in bugs.items() if bug} == of_the_code
    assert bugs["one_collective_more"] == "mismatch at train.py:92"


def made(rank: int, numbers: Sequence[int], pending: int = 0, group: str = "the default group") -> RankState:
    """A rank that has made these collectives, and waits in the last where ``pending`` is set."""
    calls = [
        [group, number, "all_reduce", [[1024]], ["Float"], number != pending, float(number), "train.py:9", -1]
        for number in numbers
    ]
    return RankState(rank, f"node-{rank // 8}", None, ["<module> (/app/train.py:9)"], calls)


def test_a_thousand_ranks_are_analysed_in_ten_seconds() -> None:
    numbers = list(range(960, 1000))
    states = [made(rank, numbers, pending=999) for rank in range(1024)]
    states[5] = made(5, numbers[:-1])
    began = time.process_time()
    cause = explain(states)
    assert time.process_time() - began < 10
    assert cause.ranks == (5,)
    assert cause.certain


@pytest.mark.parametrize("world", core(256, of=[256, 1024]))
def test_a_thousand_ranks_take_less_than_500_mib(world: int) -> None:
    tracemalloc.start()
    try:
        states = [made(rank, range(960, 1000), pending=999) for rank in range(world)]
        explain(states)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 500 * 2**20 * world / 1024


@pytest.mark.parametrize("name", sorted({*FAULTS} - GROUPED))
def test_a_planted_fault_is_named_among_sixteen_ranks(name: str) -> None:
    """Twelve more ranks tell what one that is not at fault has told."""
    kind, ranks, words = FAULTS[name]
    there = told(name)
    good = next(each for each in there if each.rank not in ranks)
    cause = explain([*there, *(replace(good, rank=rank) for rank in range(WORLD, 16))], 16)
    assert (cause.kind, cause.ranks) == (kind, ranks), cause.sentence
    assert words in cause.sentence


def test_where_all_have_entered_the_network_is_at_fault_and_nobody_is_blamed() -> None:
    cause = explain([made(rank, [1, 2, 3], pending=3) for rank in range(4)])
    assert (cause.kind, cause.ranks, cause.certain) == ("network", (), False)
    assert "none came out" in cause.sentence


def test_what_speaks_against_a_node_is_evidence_and_the_most_of_it_stands_in_the_sentence() -> None:
    states = [made(rank, [1, 2, 3], pending=3) for rank in range(16)]
    signs = [{"eth0 rx_dropped rose by 2": 2}, {"rdmap0 retrans_pkts rose by 40": 40}]
    states = [replace(each, signs=signs[each.rank // 8]) for each in states]
    cause = explain(states)
    assert (cause.kind, cause.ranks, cause.certain) == ("network", (), False)
    assert cause.sentence.endswith("none came out of it; node-1: rdmap0 retrans_pkts rose by 40")
    assert cause.evidence[-2:] == (
        "node-1: rdmap0 retrans_pkts rose by 40", "node-0: eth0 rx_dropped rose by 2"
    )  # fmt: skip
    states[12] = replace(made(12, [1, 2]), signs=signs[1])
    assert [each for each in explain(states).evidence if "rose" in each] == list(cause.evidence[-2:-1])


def test_a_data_loader_that_waits_to_be_asked_does_not_tell_where_its_rank_is() -> None:
    loop = ["<module> (/app/train.py:9)", "_worker_loop (/usr/lib/python3/dist-packages/torch/worker.py:3)"]
    assert not loads([*loop, "get (/usr/lib/python3.14/queues.py:9)"])
    assert loads([*loop, "__getitem__ (/app/train.py:4)", "read (/usr/lib/python3.14/io.py:9)"])


def test_a_rank_that_comes_last_to_all_collectives_is_slow() -> None:
    states = [made(rank, range(1, 11)) for rank in range(4)]
    late = [[*call[:6], call[6] + 0.5, *call[7:]] for call in states[3].calls]
    states[3] = RankState(3, "node-0", None, states[3].frames, late)
    cause = explain(states)
    assert (cause.kind, cause.ranks) == ("slow", (3,))
    assert "by 0.5 s" in cause.sentence


def test_ranks_that_work_are_not_blamed() -> None:
    cause = explain([made(rank, range(1, 11)) for rank in range(4)])
    assert (cause.ranks, cause.certain) == ((), False)


def test_ranks_that_make_the_same_in_another_order_are_told_so() -> None:
    states = [made(rank, [1, 2, 3], pending=3) for rank in range(4)]
    other = [states[3].calls[0], *([*call[:3], [[7]], *call[4:]] for call in states[3].calls[1:])]
    swapped = [[*other[1][:1], 3, *other[1][2:]], [*states[0].calls[1]]]
    states = [RankState(rank, "", None, (), [*other[:2], states[0].calls[2]]) for rank in range(3)]
    states.append(RankState(3, "", None, (), [other[0], swapped[1], swapped[0]]))
    cause = explain(states)
    assert (cause.kind, cause.ranks) == ("order", (3,))


def test_nobody_has_told_anything() -> None:
    assert explain([]) == Cause("unknown", "no rank can be told from the others")


ENTRY: dict[str, Any] = {
    "process_group": ("0", "default_pg"), "collective_seq_id": 7, "p2p_seq_id": 0, "is_p2p": False,
    "profiling_name": "nccl:all_reduce", "input_sizes": [[3, 4]], "input_dtypes": ["BFloat16"],
    "state": "completed", "time_created_ns": 5_000_000_000,
    "frames": [
        {"name": "all_reduce", "filename": "/usr/lib/python3/dist-packages/torch/d.py", "line": 3},
        {"name": "step", "filename": "/app/train.py", "line": 18},
    ],
}  # fmt: skip


def test_a_dump_is_read_pickled_and_as_json() -> None:
    dump = {"entries": [ENTRY], "pg_config": {"1": {"desc": "mesh_fsdp", "ranks": "[0, 3]"}}}
    expected = Call("the default group", 7, "all_reduce", [[3, 4]], ["BFloat16"], True, 5.0, "train.py:18")
    for data in (pickle.dumps(dump), json.dumps(dump).encode()):
        calls, groups = recorded(data)
        assert [Call(*each) for each in calls] == [expected]
        assert groups == {"group 1 (mesh_fsdp)": [0, 3]}
    assert expected.text == "all_reduce 7 of the default group, of 3×4 BFloat16 at train.py:18"


def test_of_many_calls_the_last_that_are_over_and_the_first_that_wait_are_kept() -> None:
    entries = [
        {**ENTRY, "collective_seq_id": number, "state": "completed" if number < 500 else "scheduled"}
        for number in range(1, 901)
    ]
    calls, _ = recorded(pickle.dumps({"entries": entries}))
    assert [Call(*each).number for each in calls] == list(range(488, 512))


@pytest.mark.parametrize("data", [b"", b"{}", b"not a dump", pickle.dumps([1]), pickle.dumps(Path("/"))])
def test_what_is_no_dump_is_refused_and_runs_nothing(data: bytes) -> None:
    with pytest.raises(ValueError, match="no dump of torch's Flight Recorder"):
        recorded(data)
