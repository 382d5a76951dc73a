"""Newcomers join right after a checkpoint, where the job asks for that."""

from __future__ import annotations

import time

from bireme_runtime.elastic import progress
from tests.runtime.workers import Start

# Says which worlds there were, and commits checkpoints as soon as it is told to.
TRAIN = """
from bireme_runtime.elastic import progress
folder = pathlib.Path(sys.argv[0]).parent
(folder / ('world-' + os.environ['WORLD_SIZE'])).write_text('x')
while True:
    if (folder / 'save').exists():
        progress.checkpoint()
    time.sleep(0.02)
"""


def test_a_newcomer_waits_for_the_next_checkpoint(start: Start, on_etcd: dict[str, str]) -> None:
    on_etcd["BIREME_JOIN"] = "checkpoint"
    first = start(TRAIN, **on_etcd)
    first.file("world-1")
    second = start(TRAIN, **on_etcd)
    # It waits as a member; without the setting the world of two comes within a second.
    time.sleep(3)
    assert not (second.folder / "world-2").exists()
    assert not (first.folder / "world-2").exists()
    (first.folder / "save").touch()
    first.file("world-2")
    second.file("world-2")


# Saves only when it is asked to.
SAVES_WHEN_ASKED = """
from bireme_runtime.elastic import progress
folder = pathlib.Path(sys.argv[0]).parent
(folder / ('world-' + os.environ['WORLD_SIZE'])).write_text('x')
while True:
    if progress.save_wanted():
        (folder / ('saved-' + os.environ['WORLD_SIZE'])).write_text('x')
        progress.checkpoint()
    time.sleep(0.02)
"""


def test_a_checkpoint_is_asked_for_when_a_newcomer_waits_for_it(
    start: Start, on_etcd: dict[str, str]
) -> None:
    on_etcd["BIREME_JOIN"] = "checkpoint"
    first = start(SAVES_WHEN_ASKED, **on_etcd)
    first.file("world-1")
    second = start(SAVES_WHEN_ASKED, **on_etcd)
    first.file("saved-1")
    second.file("world-2")
    assert not (second.folder / "saved-1").exists()
    assert not (first.folder / "saved-2").exists(), "nobody waits any more"


def test_newcomers_do_not_wait_for_ever(start: Start, on_etcd: dict[str, str]) -> None:
    on_etcd.update(BIREME_JOIN="checkpoint", BIREME_JOIN_WAIT_SECONDS="1")
    first = start(TRAIN, **on_etcd)
    first.file("world-1")
    start(TRAIN, **on_etcd)
    first.file("world-2")


def test_a_checkpoint_counts_when_newcomers_wait_already() -> None:
    board = progress.StepBoard.new()
    board.save()
    now = time.monotonic() + 1
    moment = progress.Moment(board, 60, lambda: now)
    assert not moment.is_now()
    now += 1
    time.sleep(2)
    board.save()
    assert moment.is_now()


def test_those_that_wait_longest_decide_how_long_newcomers_wait() -> None:
    now = 1000.0
    moment = progress.Moment(progress.StepBoard.new(), 30, lambda: now)
    assert not moment.is_now()
    # Nobody asked for a while: those newcomers have gone, and others have their own time.
    now += 31
    assert not moment.is_now()
    now += 9
    assert not moment.is_now()
    now += 9
    assert not moment.is_now()
    now += 9
    assert not moment.is_now()
    now += 9
    assert moment.is_now()


def test_without_the_setting_they_join_at_once() -> None:
    assert progress.Moment.from_env({}).is_now()
