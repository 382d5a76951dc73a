"""Snapshots without torch: files in memory, keepers over TCP, and which snapshot a round goes on from."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bireme_runtime.elastic import fence
from bireme_runtime.elastic.snapshots import Rank, keeper, plan
from bireme_runtime.elastic.snapshots.files import Folder, NoRoom, Part, Torn, checksum
from bireme_runtime.process.disk import write_whole
from bireme_runtime.process.errors import Stop
from tests.runtime.etcd_servers import RUNTIME
from tests.support import waiting

MIB = 1 << 20


class Store:
    """The store of a round, as its agents use it."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, 60)
            return self._values[key].encode()


class Pod:
    """A worker with its keeper. Its board says that it may commit in each round that it meets."""

    def __init__(self, folder: Path, name: str, **env: str) -> None:
        self.said: list[str] = []
        self.board = fence.Board.new()
        self.folder = folder / name
        self.env = {
            "BIREME_SNAPSHOTS": str(self.folder), "PET_LOCAL_ADDR": "127.0.0.1", "BIREME_NODE": name,
            fence.BOARD: self.board.path, fence.RUN: "run", fence.KEY: "/round", **env,
        }  # fmt: skip
        self.service = keeper.Service(self.env, self.said.append)

    def meet(self, store: Any, rank: int, size: int, token: int) -> None:
        self.env |= {fence.TOKEN: str(token), fence.ROUND: str(token), "RANK": str(rank)}
        self.env["WORLD_SIZE"] = str(size)
        self.board.admit(token, fence.now() + 600)
        plan.meet(store, rank, size, self.env, self.said.append)
        self.rank = Rank(self.env)

    def save(self, step: int, text: bytes = b"") -> None:
        """A snapshot, and its copies."""
        rank = self.rank
        with rank.writing(step, rank.world, rank.rank, 10) as memory:
            memory[:10] = text or b"%4d of %2d" % (step, rank.rank)
        kept = Part(rank.plan.token, step, rank.world, rank.rank)
        waiting.until(lambda: "copies" in Folder(self.folder).known(kept))

    def restored(self) -> bytes:
        return bytes(self.rank.take(self.rank.rank % self.rank.plan.parts)[:10])


def meet(pods: list[Pod], token: int) -> plan.Plan:
    """A round with these pods; returns its plan."""
    store, found = Store(), queue.SimpleQueue[BaseException | None]()

    def one(rank: int) -> None:
        try:
            pods[rank].meet(store, rank, len(pods), token)
            found.put(None)
        except BaseException as error:
            found.put(error)

    for rank in range(len(pods)):
        threading.Thread(target=one, args=[rank], daemon=True).start()
    for _ in pods:
        error = found.get(timeout=60)
        if error:
            raise error
    return pods[0].rank.plan


NewPod = Callable[..., Pod]


@pytest.fixture
def pod(tmp_path: Path) -> NewPod:
    return lambda name, **env: Pod(tmp_path, name, **env)


def spoil(pod: Pod, part: Part) -> None:
    """Change one byte, of which the file's name tells nothing."""
    # In place: the keeper may have the file mapped, and reads nothing where it was cut.
    with (pod.folder / part.name).open("r+b") as file:
        file.write(b"\0")


def test_memory_is_written_again_and_a_torn_part_has_no_name(tmp_path: Path) -> None:
    folder, part = Folder(tmp_path), Part(1, 1, 1, 0)
    with folder.writing(MIB) as buffer:
        inode = os.stat(buffer._path).st_ino
        buffer.commit(part)
    folder.free(part)
    with folder.writing(MIB):
        assert folder.parts() == {}
    with folder.writing(MIB) as buffer:
        buffer.commit(part)
    assert (tmp_path / part.name).stat().st_ino == inode


def test_who_is_killed_while_it_writes_leaves_its_memory_to_the_next(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from bireme_runtime.elastic.snapshots.files import Folder\n"
        "with Folder(Path(sys.argv[1])).writing(1 << 20): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env={"PYTHONPATH": str(RUNTIME)})
    assert done.returncode == -signal.SIGKILL
    folder = Folder(tmp_path, MIB)
    assert folder.parts() == {}
    with folder.writing(MIB) as buffer:
        buffer.commit(Part(1, 1, 1, 0))


def test_what_is_read_is_not_written_again_and_the_budget_holds(tmp_path: Path) -> None:
    folder, part = Folder(tmp_path, 2 * MIB), Part(1, 1, 1, 0)
    with folder.writing(MIB) as buffer:
        buffer.memory[:3] = b"old"
        buffer.commit(part)
    memory = folder.read(part)
    folder.free(part)
    with folder.writing(MIB) as buffer:
        buffer.memory[:3] = b"new"
        buffer.commit(Part(1, 2, 1, 0))
    assert memory[:3] == b"old"
    full = "2 MiB are in use and 1 MiB more are needed, and the budget is 2 MiB"
    with pytest.raises(NoRoom, match=full), folder.writing(MIB):
        pass
    del memory
    with folder.writing(MIB):
        pass


def test_a_folder_smaller_than_the_budget_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(
        Stop, match=r"has \d+ MiB and recovery.snapshots.budgetMiB is 900000000: raise pod.shm"
    ):
        Pod(tmp_path, "a", BIREME_SNAPSHOT_BUDGET_MIB="900000000")


def of(token: int, step: int, *parts: int, world: int = 2) -> list[Part]:
    return [Part(token, step, world, part) for part in parts]


NONE, TWO = plan.Plan(), {0: [0], 1: [0]}
CHOICES = {
    "nothing": ({}, NONE, None, {}),
    "a part is missing": ({0: of(1, 5, 0)}, NONE, None, {}),
    "the step before": ({0: of(1, 5, 0) + of(1, 4, 0), 1: of(1, 4, 1)}, NONE, (1, 4), {0: [0], 1: [1]}),
    "copies": ({0: of(1, 5, 0, 1), 1: of(1, 5, 1)}, NONE, (1, 5), {0: [0], 1: [0, 1]}),
    "the claim is last": ({-1: of(1, 5, 0, 1), 2: of(1, 5, 1)}, NONE, (1, 5), {0: [-1], 1: [2, -1]}),
    "a newer round's": ({0: of(1, 9, 0, 1) + of(2, 6, 0, 1)}, NONE, (2, 6), TWO),
    "later steps of a world that others have left": (
        {0: of(1, 9, 0, 1) + of(1, 5, 0, 1)}, plan.Plan(2, ends={1: 5}), (1, 5), TWO,
    ),
    "the same after a newer world": (
        {0: of(1, 9, 0, 1) + of(1, 5, 0, 1) + of(2, 6, 0)}, plan.Plan(3, ends={1: 5, 2: 6}), (1, 5), TWO,
    ),
    "what the round before did not find": ({0: of(1, 9, 0, 1)}, plan.Plan(2), None, {}),
    "another world": ({0: of(1, 9, 0, 1), 1: of(1, 9, 2, world=3)}, NONE, (1, 9), TWO),
}  # fmt: skip


@pytest.mark.parametrize(("held", "last", "made", "places"), CHOICES.values(), ids=CHOICES)
def test_the_newest_snapshot_of_which_all_parts_are_somewhere(
    held: Mapping[int, list[Part]], last: plan.Plan, made: Any, places: Any
) -> None:
    found, parts, where = plan.newest(held, last)
    assert (found, where) == (made, places)
    assert parts == len(where)


def test_copies_go_to_other_nodes_near_by_rank() -> None:
    assert plan.shifts(["a", "b", "c"], 1) == [1]
    assert plan.shifts(["a", "a", "b", "b"], 1) == [2]
    assert plan.shifts(["a", "b", "c", "d"], 2) == [1, 2]
    assert plan.shifts(["a"], 1) == []
    assert plan.shifts(["a", "a"], 1) == [1]


def test_a_lost_pod_gets_its_state_back_from_the_neighbour(pod: NewPod) -> None:
    pods = [pod(name) for name in "abc"]
    assert meet(pods, 1).made is None
    for step in (1, 2, 3):
        for each in pods:
            each.save(step)
    pods[1] = pod("new")
    assert meet(pods, 2).made == (1, 3)
    assert [each.restored() for each in pods] == [b"   3 of %2d" % rank for rank in range(3)]
    # Now it has a copy of its own, so that the next loss is none either.
    assert Part(1, 3, 3, 1) in Folder(pods[1].folder).parts()
    waiting.until(lambda: {"step": 3, "copies": 1}.items() <= pods[0].service.state().items())
    assert pods[0].service.round() == {"snapshot": {"step": 3, "parts": 3, "claim": 0}}
    assert pods[0].service.blocked > 0


def test_a_world_of_another_size_gets_what_the_ranks_before_have_saved(
    pod: NewPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bireme_runtime.elastic.snapshots._SECONDS", 600.0)
    pods = [pod(name) for name in "ab"]
    meet(pods, 1)
    for each in pods:
        each.save(7)
    pods.append(pod("c"))
    assert meet(pods, 2).made == (1, 7)
    assert [each.restored() for each in pods] == [b"   7 of  0", b"   7 of  1", b"   7 of  0"]
    # Whose part it got is not what it saves from now on, so it waits for no copies of that.
    began = time.monotonic()
    for step in range(8, 12):
        for each in pods:
            each.rank.wait_for_copies()
            each.save(step)
    assert time.monotonic() - began < 300, "it waits 600 s for each"


def test_a_copy_whose_keeper_is_slow_is_asked_for_again_and_stays(
    pod: NewPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = [pod(name) for name in "abc"]
    meet(pods, 1)
    for each in pods:
        each.save(1)
    pods[1] = pod("new")
    meet(pods, 2)
    do, pauses = keeper.Service._do, iter([2.0])

    def late(self: keeper.Service, asked: Any, *more: Any) -> None:
        time.sleep(next(pauses, 0.0) if asked["op"] == "get" else 0.0)
        do(self, asked, *more)

    monkeypatch.setattr(keeper, "_SECONDS", 0.5)
    monkeypatch.setattr(keeper.Service, "_do", late)
    assert pods[1].restored() == b"   1 of  1"
    assert next(pauses, None) is None
    assert any(Part(1, 1, 3, 1) in Folder(each.folder).parts() for each in (pods[0], pods[2]))


def test_all_parts_of_a_pod_reach_a_slow_claim(
    alone: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = write_whole

    def slowly(path: Path, content: Any) -> None:
        time.sleep(0.5)
        whole(path, content)

    monkeypatch.setattr(keeper, "write_whole", slowly)
    for part in (0, 1):
        with alone.rank.writing(1, 2, part, 10):
            pass
    for part in (0, 1):
        waiting.until((tmp_path / "claim" / Part(1, 1, 2, part).name).exists)


def test_workers_whose_claim_takes_longer_than_a_step_write_the_same_steps(
    pod: NewPod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, whole, written = tmp_path / "claim", write_whole, {0: 0, 1: 0}
    begun: set[tuple[int, int]] = set()

    def slowly(path: Path, content: Any) -> None:
        of = Part.of(path.name.removesuffix(".sum"))
        if of:
            begun.add((of.part, of.step))
            waiting.until(lambda: written[of.part] >= of.step)
        whole(path, content)

    monkeypatch.setattr(keeper, "write_whole", slowly)
    monkeypatch.setattr(fence, "check", lambda *_, **__: None)
    pods = [pod(name, BIREME_SNAPSHOT_FLUSH=str(claim)) for name in "ab"]
    meet(pods, 1)
    for step in range(1, 9):
        # The second worker's first part comes a step later, so that both would take turns for ever.
        for rank in (0, 1)[: 1 if step == 1 else 2]:
            pods[rank].save(step)
            skipped = f"step {step} is not written to the claim"
            waiting.until(lambda: (rank, step) in begun or any(skipped in each for each in pods[rank].said))  # noqa: B023
            written[rank] = step - 1
            if (rank, step - 1) in begun:
                until_written(pods[rank], claim / Part(1, step - 1, 2, rank).name)
    assert [step for step in range(1, 9) if {(0, step), (1, step)} <= begun] == [6, 8]
    # A claim that is quick again gets each step.
    written |= {0: 9, 1: 9}
    for rank, one in enumerate(pods):
        until_written(one, claim / Part(1, 8, 2, rank).name)
        one.save(9)
        until_written(one, claim / Part(1, 9, 2, rank).name)


def test_a_part_with_another_checksum_is_taken_elsewhere_and_then_the_step_before(pod: NewPod) -> None:
    pods = [pod(name) for name in "ab"]
    meet(pods, 1)
    for step in (1, 2):
        for each in pods:
            each.save(step)
    part = Part(1, 2, 2, 0)
    spoil(pods[0], part)
    meet(pods, 2)
    assert pods[0].restored() == b"   2 of  0"
    for each in pods:
        if part in Folder(each.folder).parts():
            spoil(each, part)
    meet(pods, 3)
    with pytest.raises(Torn, match="no copy of part 0 of the snapshot of step 2 is whole"):
        pods[0].restored()
    assert meet(pods, 4).made == (1, 1)
    assert [each.restored() for each in pods] == [b"   1 of  0", b"   1 of  1"]


def test_two_pods_that_hold_each_others_copies_lost_together_fall_back_to_the_claim(
    pod: NewPod, tmp_path: Path
) -> None:
    claim = {"BIREME_SNAPSHOT_FLUSH": str(tmp_path / "claim"), "BIREME_SNAPSHOT_FLUSH_EVERY": "2"}
    pods = [pod(name, **claim) for name in "ab"]
    meet(pods, 1)
    # The claim has no etcd to ask here, and this clock decides.
    for each in pods:
        each.env["PET_RDZV_ENDPOINT"] = "127.0.0.1:1"
        each.service._env = each.env
    for step in (1, 2, 3):
        for each in pods:
            each.save(step)
            if step == 2:
                name = Part(1, 2, 2, each.rank.rank).name
                waiting.until(lambda name=name: (tmp_path / "claim" / name).exists())  # type: ignore[misc]
    pods = [pod(name, **claim) for name in ("c", "d")]
    assert meet(pods, 2).made == (1, 2)
    assert [each.restored() for each in pods] == [b"   2 of  0", b"   2 of  1"]
    assert pods[0].service.round() == {"snapshot": {"step": 2, "parts": 2, "claim": 2}}
    assert "the round goes on from step 2; of 2 of its 2 parts only the claim has a copy" in pods[0].said[-1]


def test_a_fenced_process_makes_no_snapshot_and_no_copy_of_an_old_world_is_taken(pod: NewPod) -> None:
    pods = [pod(name) for name in "ab"]
    meet(pods, 1)
    for each in pods:
        each.save(1)
    cut_off = pods[1]
    pods[1] = pod("c")
    meet(pods, 2)
    with pytest.raises(Torn, match="it is of an old world"):
        keeper.put(cut_off.rank.plan.keepers[0], Part(1, 2, 2, 1), b"data", checksum(memoryview(b"data")))
    cut_off.board.expel()
    with pytest.raises(fence.Fenced, match="this worker has left round 1"):
        cut_off.save(2)
    assert Part(1, 2, 2, 1) not in Folder(cut_off.folder).parts()


def told(pod: Pod, part: Part) -> None:
    """Tell the keeper of a part once more, as a process does."""
    line = {"part": [part.token, part.step, part.parts, part.part], "blocked": 0}
    with (pod.folder / keeper.TOLD).open("w") as pipe:
        pipe.write(json.dumps(line) + "\n")


@pytest.fixture
def alone(pod: NewPod, tmp_path: Path) -> Pod:
    """A worker without others and without etcd, which writes each snapshot to a claim."""
    one = pod("a", BIREME_SNAPSHOT_FLUSH=str(tmp_path / "claim"), PET_RDZV_ENDPOINT="127.0.0.1:1")
    meet([one], 1)
    one.service._env = one.env
    return one


def until_written(pod: Pod, file: Path) -> None:
    """Until the keeper has written a part to the claim, and can write the next one."""
    waiting.until(file.exists)
    part = Part.of(file.name)
    assert part
    with pod.service._paces[part.part].free:
        pass


def test_a_script_that_chooses_its_steps_itself_reaches_the_claim_too(
    pod: NewPod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "check", lambda *_, **__: None)
    every = {"BIREME_SNAPSHOT_EVERY": "10", "BIREME_SNAPSHOT_FLUSH_EVERY": "5"}
    one = pod("a", BIREME_SNAPSHOT_FLUSH=str(tmp_path / "claim"), **every)
    meet([one], 1)
    for step in (5, 10, 15):
        one.save(step)
        until_written(one, tmp_path / "claim" / Part(1, step, 1, 0).name)


def test_a_fenced_keeper_leaves_nothing_on_the_claim(alone: Pod, tmp_path: Path) -> None:
    claim, part = tmp_path / "claim", Part(1, 1, 1, 0)
    alone.save(1)
    until_written(alone, claim / part.name)
    (claim / part.name).unlink()
    alone.board.expel()
    told(alone, part)
    waiting.until(lambda: any("step 1 is not on the claim" in each for each in alone.said))
    assert [each.name for each in claim.iterdir()] == [f"{part.name}.sum"]


def test_what_killed_writers_left_on_the_claim_goes_with_the_old_snapshots(
    alone: Pod, tmp_path: Path
) -> None:
    claim = tmp_path / "claim"
    left = [".1.1.2.0.0", "..1.1.2.0.0.partial", ".1.1.2.0.sum.partial"]
    for name in left:
        (claim / name).write_text("half")
    for step in (2, 3):
        alone.save(step)
        until_written(alone, claim / Part(1, step, 1, 0).name)
    waiting.until(lambda: not any((claim / name).exists() for name in left))
    assert sorted(each.name for each in claim.iterdir()) == [
        "1.2.1.0",
        "1.2.1.0.sum",
        "1.3.1.0",
        "1.3.1.0.sum",
    ]


def test_a_keeper_that_does_not_listen_costs_a_process_no_descriptors(pod: NewPod) -> None:
    a = pod("a")
    meet([a], 1)
    pipe = a.folder / keeper.TOLD
    pipe.unlink()
    os.mkfifo(pipe)
    full = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, b"x" * 4096)
    for part in (0, 1):
        with a.rank.writing(1, 2, part, 10):
            pass
    opened = [os.readlink(each.path) for each in os.scandir("/proc/self/fd") if os.path.lexists(each.path)]
    assert opened.count(str(pipe)) == 1
    os.close(full)


def test_a_keeper_answers_nobody_without_its_key(pod: NewPod) -> None:
    a = pod("a")
    meet([a], 1)
    a.save(1)
    own = a.rank.plan.keepers[0]
    with (
        pytest.raises(Torn, match="the connection has ended"),
        keeper.get(plan.Keeper("127.0.0.1", own.port, "guess"), Part(1, 1, 1, 0)),
    ):
        pass
    with keeper.get(own, Part(1, 1, 1, 0)) as (size, _, stream):
        assert (size, stream.read(10)) == (MIB, b"   1 of  0")


def test_strangers_who_write_slowly_are_cut_off_and_cost_a_keeper_few_threads(pod: NewPod) -> None:
    a = pod("a")
    meet([a], 1)
    a.save(1)
    own = a.rank.plan.keepers[0]
    before = threading.active_count()
    with ExitStack() as opened:
        strangers = [
            opened.enter_context(socket.create_connection(("127.0.0.1", own.port))) for _ in range(300)
        ]

        def all_are_cut() -> bool:
            for stranger in strangers[:200]:
                with contextlib.suppress(OSError):
                    stranger.send(b"x")
            # Some of the 256 may be about to end.
            assert threading.active_count() - before <= 280
            return all(_has_ended(each) for each in strangers[:200])

        waiting.until(all_are_cut)
    with keeper.get(own, Part(1, 1, 1, 0)) as (_, _, stream):
        assert stream.read(10) == b"   1 of  0"


def _has_ended(connection: socket.socket) -> bool:
    try:
        connection.setblocking(False)
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
