"""The rendezvous, the lock, the fence and the etcd client under faults that a seed chooses, in virtual time.

`make simulate` runs thousands of seeds; `--trace SEED` prints what happened with one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from bireme_runtime.elastic import fence
from bireme_runtime.elastic.rendezvous.rules import View
from bireme_runtime.elastic.snapshots import plan
from bireme_runtime.elastic.snapshots.files import Part
from tests.runtime.simulation.network import Etcd
from tests.runtime.simulation.run import Job
from tests.runtime.simulation.scheduler import Broken, Scheduler, Stuck


@pytest.mark.parametrize("first", [10, 20])
def test_no_two_worlds_can_commit_and_every_job_succeeds(first: int) -> None:
    for seed in range(first, first + 10):
        job = Job(seed)
        try:
            job.simulate()
        except AssertionError as error:
            error.add_note(f"seed {seed}, after: {'; '.join(job.faults)}")
            raise


def test_a_seed_means_one_course_of_events() -> None:
    first, second = Job(5), Job(5)
    first.simulate()
    second.simulate()
    assert first.sim.trace == second.sim.trace
    assert first.commits


def test_what_is_written_after_a_restore_is_not_in_the_snapshot() -> None:
    etcd = Etcd(Scheduler(0))
    snapshot = etcd.copied()
    etcd.restore(snapshot, 0)
    etcd.answer("/v3/kv/put", {"key": "bmFtZQ==", "value": ""})
    assert snapshot == Etcd(Scheduler(0)).copied()


def what_breaks(seeds: int) -> str:
    """What must never happen, and happened with one of so many seeds."""
    for seed in range(seeds):
        try:
            Job(seed).simulate()
        except Broken as broken:
            return str(broken)
        except Stuck:
            continue
    return "nothing"


@pytest.mark.whole
def test_the_simulation_finds_a_fence_that_is_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STOP_SHARE", "KILL_SHARE"):
        monkeypatch.setattr(fence, name, 3.0)
    assert "may commit in" in what_breaks(1000)


def test_the_simulation_finds_a_success_before_all_have_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(View, "all_finished", lambda self, told: True)
    assert "is a success, but" in what_breaks(100)


def test_the_simulation_finds_a_snapshot_of_which_a_part_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def newest(held: Mapping[int, Iterable[Part]], last: plan.Plan) -> Any:
        found = [part for parts in held.values() for part in parts if last.allows(part)]
        made = max((part.made, part.parts) for part in found) if found else (None, 0)
        return (*made, {part: [0] for part in range(made[1])})

    monkeypatch.setattr(plan, "newest", newest)
    assert "of which a part is nowhere" in what_breaks(100)
