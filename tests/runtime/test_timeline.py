"""What the workers of a run keep in etcd for `bireme timeline`, in bounded size."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from bireme_runtime.elastic.monitor import failures, history
from bireme_runtime.elastic.rendezvous import rules
from bireme_runtime.etcd import client as etcd
from tests.runtime.told import Told
from tests.runtime.workers import KNOWN, Start

# Rank 0 prints steps, from its checkpoint on; the file `fail` makes the process of that worker fail once. A
# restart takes two seconds, so that it costs time even if the checkpoint has the last step.
STEPS = (
    KNOWN
    + """
folder, place = pathlib.Path(sys.argv[0]).parent, os.environ['GROUP_RANK']
save = folder.parent / 'checkpoint'
time.sleep(2)
step = int(save.read_text()) if save.exists() else 0
while not (folder.parent / 'end').exists():
    step += 1
    if place == '0':
        print(f'step {step}', flush=True)
        if step % 5 == 0:
            save.with_suffix('.new').write_text(str(step))
            save.with_suffix('.new').replace(save)
    time.sleep(0.05)
    if (folder / 'fail').exists():
        (folder / 'fail').unlink()
        raise ValueError('the shape is wrong')
"""
)


def test_a_run_tells_its_worlds_with_workers_nodes_causes_and_steps(
    start: Start, on_etcd: dict[str, str], told: Told, tmp_path: Path
) -> None:
    env = {**on_etcd, "PET_MAX_RESTARTS": "9"}
    first = start(STEPS, **env, JOB_COMPLETION_INDEX="0", BIREME_NODE="node-a", **told.env)
    told.timeline(lambda run: len(run.worlds[-1].steps) > 0)
    second = start(STEPS, **env, JOB_COMPLETION_INDEX="1", BIREME_NODE="node-b")
    told.timeline(lambda run: len(run.worlds[-1].seats) == 2 and len(run.worlds[-1].steps) > 0)
    (second.folder / "fail").touch()
    told.timeline(lambda run: "failed in round" in run.worlds[-1].why and len(run.worlds[-1].steps) > 0)
    second.process.send_signal(signal.SIGTERM)
    second.end()
    run = told.timeline(lambda run: len(run.worlds[-1].seats) == 1 and len(run.worlds[-1].steps) > 1)
    began, joined, failed, lost = (next(each for each in run.worlds if words in each.why) for words in (
        "the run began", "worker 1 joined", "ValueError: the shape is wrong", "worker 1 was lost",
    ))  # fmt: skip
    assert [(seat.worker, seat.node) for seat in began.seats] == [("0", "node-a")]
    for world in (joined, failed):
        assert sorted((seat.worker, seat.node) for seat in world.seats) == [("0", "node-a"), ("1", "node-b")]
    assert "on node-b failed in round" in failed.why
    assert [(seat.worker, seat.node) for seat in lost.seats] == [("0", "node-a")]
    assert began.steps[0][1] == 1
    assert lost.steps[-1][1] > failed.steps[0][1]
    assert lost.steps_per_second > 0
    assert failed.lost_seconds > 0
    assert run.goodput is not None
    assert 0 < run.goodput < 1
    (tmp_path / "end").touch()
    assert first.end() == 0


def test_the_first_step_of_a_replaced_worker_tells_what_was_lost(
    start: Start, on_etcd: dict[str, str], told: Told
) -> None:
    env = {**on_etcd, **told.env, "JOB_COMPLETION_INDEX": "0"}
    counts = (
        KNOWN
        + """
for step in range(FIRST, 6000):
    print(f'step {step}', flush=True)
    time.sleep(0.05)
"""
    )
    killed = start(counts.replace("FIRST", "1"), **env, BIREME_NODE="node-a")
    told.timeline(lambda run: run.worlds[-1].steps[-1:] != () and run.worlds[-1].steps[-1][1] > 40)
    killed.process.send_signal(signal.SIGTERM)
    killed.end()
    start(counts.replace("FIRST", "30"), **env, BIREME_NODE="node-b")
    run = told.timeline(lambda run: len(run.worlds) == 2 and run.worlds[1].steps != ())
    assert run.worlds[1].why == "worker 0 moved to another node"
    assert run.worlds[1].steps[0][1] == 30
    assert run.worlds[1].lost_steps >= 11


@pytest.fixture
def kept(client: etcd.Client, prefix: str) -> history.History:
    """What a run keeps of its past."""
    return history.History(client, prefix, "run", failures.EtcdLedger(client, prefix, "run"))


def put_round(client: etcd.Client, prefix: str, number: int, size: int) -> None:
    names = [f"host-{rank}-abcd.1" for rank in range(size)]
    client.put(f"{prefix}run/round", rules.Round(number, tuple(names)).to_json())


def test_old_worlds_are_forgotten_and_fewer_are_kept_of_large_ones(
    client: etcd.Client, kept: history.History, prefix: str
) -> None:
    for number in range(1, 206):
        put_round(client, prefix, number, 2)
        kept.world(number, "", {})
        kept.steps(number, [(1000.0 * number, number)], {"lostSteps": 0}, last=False)
    worlds = kept.read()
    assert [each["round"] for each in worlds] == list(range(6, 206))
    assert worlds[0]["workers"] == [["host-0", "", "abcd"], ["host-1", "", "abcd"]]
    assert worlds[-1]["samples"] == [[205000.0, 205]]
    put_round(client, prefix, 206, 2000)
    kept.world(206, "", {})
    assert [each["round"] for each in kept.read()] == list(range(182, 207))
    assert client.count(f"{prefix}.history/", f"{prefix}.history0") == 49


def test_a_long_world_keeps_its_first_and_last_steps_and_some_between(
    client: etcd.Client, kept: history.History, prefix: str
) -> None:
    put_round(client, prefix, 1, 1)
    kept.world(1, "", {})
    for second in range(600):
        kept.steps(1, [(1000.0, 1), (1000.0 + second, 1 + second)], {}, last=second == 599)
    (world,) = kept.read()
    assert len(world["samples"]) <= 60
    assert world["samples"][0] == [1000.0, 1]
    assert world["samples"][-1] == [1599.0, 600]
