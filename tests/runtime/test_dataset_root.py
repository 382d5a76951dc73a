"""A dataset at the root of a claim: complete with its manifest, or refused by its readers until a re-run."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.runtime.datasets import Content, begin, begin_code, ended, read, refused, run, settings, write

FIRST: Content = {"a/1": b"one", "a.b": b"dot", "a/2/3": b"two", "n": b"n", "gone": b"gone"}
SECOND: Content = {"a/1": b"another", "b/1": b"new", "gone/now": b"a folder", "n": b"m"}

# Ends itself, as the kernel ends a pod without memory, before one of the calls that change a file system.
KILLED = """
import os, signal, sys
from bireme_runtime.dataset.claim.__main__ import main

left = int(sys.argv[1])

def counted(call):
    def counts(*given, **named):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*given, **named)
    return counts

for name in ("rename", "replace", "unlink", "rmdir", "mkdir", "fsync"):
    setattr(os, name, counted(getattr(os, name)))
sys.exit(main(sys.argv[2:]))
"""


def source_of(folder: Path, files: Content) -> dict[str, str]:
    return {"url": f"file://{write(folder, files)}"}


def killed(step: str, calls: int, env: dict[str, str]) -> bool:
    """Whether a step was killed before it had changed the file system once more than this."""
    code, output = ended(begin_code(["-c", KILLED, str(calls)], step, env))
    assert code in (0, -signal.SIGKILL), output
    return code != 0


def names(claim: Path) -> list[str]:
    return sorted(each.name for each in claim.iterdir())


def interrupt(claim: Path, moves: int, env: dict[str, str]) -> None:
    """Kill `publish` when it has moved this number of names to the root."""
    calls = 0
    while not (claim / ".bireme.staging/MANIFEST.jsonl").exists():
        assert killed("publish", calls, env)
        calls += 1
    assert killed("publish", moves, env)
    assert len([name for name in names(claim) if name[0] != "."]) == moves + 1, "and lost+found"


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    """The root of a new file system, with what ext4 has there."""
    (tmp_path / "claim/lost+found").mkdir(parents=True)
    return tmp_path / "claim"


def test_a_dataset_is_published_at_the_root_and_copied_once(tmp_path: Path, claim: Path) -> None:
    env = settings(claim, source_of(tmp_path / "source", FIRST), root=True)
    code, output = run("copy", env)
    assert code == 0, output
    assert read(claim) == FIRST
    assert names(claim) == ["MANIFEST.jsonl", "a", "a.b", "gone", "lost+found", "n"]
    assert "is complete: 5 files" in run("verify", {}, str(claim))[1]
    assert "nothing to copy" in run("copy", env)[1]
    # It is a source, as a dataset in a folder is.
    assert run("copy", settings(tmp_path / "onward", {"url": f"file://{claim}"}))[0] == 0
    assert read(tmp_path / "onward") == FIRST


def tried(tmp_path: Path, claim: Path, calls: int, *, is_replaced: bool) -> bool:
    """Kill `publish` after this number of calls, and look at what its readers and a re-run find."""
    if is_replaced:
        assert run("copy", settings(claim, source_of(tmp_path / "first", FIRST), root=True))[0] == 0
    env = settings(claim, source_of(tmp_path / "second", SECOND), root=True, replace=True)
    assert run("stage", env)[0] == 0
    was_killed = killed("publish", calls, env)
    code, output = run("verify", {}, str(claim))
    copied, _ = run("copy", settings(tmp_path / "copy", {"url": f"file://{claim}"}))
    if code == 0:
        assert read(tmp_path / "copy") in ((FIRST, SECOND) if is_replaced else (SECOND,))
    else:
        assert "is not a dataset: it has no MANIFEST.jsonl" in output
        assert copied == 75
        assert not (tmp_path / "copy").exists()
    code, output = run("copy", env)
    assert code == 0, output
    assert run("verify", {}, str(claim))[0] == 0
    assert read(claim) == SECOND
    assert names(claim) == ["MANIFEST.jsonl", "a", "b", "gone", "lost+found", "n"]
    return was_killed


@pytest.mark.parametrize(("calls", "is_replaced"), [(4, False), (9, True), (12, True)])
def test_after_a_kill_the_root_is_refused_until_a_re_run_completes_it(
    tmp_path: Path, claim: Path, calls: int, is_replaced: bool
) -> None:
    assert tried(tmp_path, claim, calls, is_replaced=is_replaced)


@pytest.mark.whole
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_kill_before_any_change_of_the_claim_loses_nothing(tmp_path: Path, is_replaced: bool) -> None:
    was_killed, calls = True, 0
    while was_killed:
        place = tmp_path / str(calls)
        (place / "claim/lost+found").mkdir(parents=True)
        was_killed = tried(place, place / "claim", calls, is_replaced=is_replaced)
        calls += 1
    assert calls > 12


@pytest.mark.whole
@pytest.mark.parametrize("calls", range(3))
def test_a_kill_while_an_interrupted_attempt_is_taken_back_loses_nothing(
    tmp_path: Path, claim: Path, calls: int
) -> None:
    env = settings(claim, source_of(tmp_path / "second", SECOND), root=True)
    assert run("stage", env)[0] == 0
    interrupt(claim, 2, env)
    assert killed("stage", calls, env)
    assert run("copy", env)[0] == 0
    assert read(claim) == SECOND
    assert names(claim) == ["MANIFEST.jsonl", "a", "b", "gone", "lost+found", "n"]


def test_a_dataset_in_a_folder_is_back_after_a_kill_whatever_the_sources_say(tmp_path: Path) -> None:
    target = tmp_path / "claim/data"
    assert run("copy", settings(target, source_of(tmp_path / "first", FIRST)))[0] == 0
    second = source_of(tmp_path / "second", SECOND)
    env = settings(target, second, replace=True)
    assert run("stage", env)[0] == 0
    calls = 0
    while target.exists():
        # With a manifest that is written, there is less left to do.
        has_manifest = (target.parent / ".data.staging/MANIFEST.jsonl").exists()
        assert killed("publish", calls, env)
        is_new = not has_manifest and (target.parent / ".data.staging/MANIFEST.jsonl").exists()
        calls = 0 if is_new else calls + 1
    (tmp_path / "second").rename(tmp_path / "away")
    assert "second does not exist" in refused("copy", env)
    assert read(target) == FIRST
    assert run("verify", {}, str(target))[0] == 0
    (tmp_path / "away").rename(tmp_path / "second")
    assert run("publish", env)[0] == 0
    assert read(target) == SECOND
    assert names(target.parent) == ["data"]


def test_what_is_left_of_a_dataset_that_was_being_deleted_does_not_come_back(tmp_path: Path) -> None:
    target, source = tmp_path / "claim/data", tmp_path / "source"
    env = settings(target, source_of(source, FIRST))
    assert run("copy", env)[0] == 0
    shutil.copytree(target, target.with_name(".data.old"))
    calls = 0
    while sum(len(read(folder)) for folder in target.parent.glob(".data.[go]*")) == len(FIRST):
        assert killed("copy", calls, env)
        calls += 1
    shutil.rmtree(target)
    shutil.rmtree(source)
    assert run("copy", env)[0] == 78
    assert not target.exists()


def test_what_is_at_the_root_already_is_named_and_left_alone(tmp_path: Path, claim: Path) -> None:
    (claim / "checkpoints").mkdir()
    env = settings(claim, source_of(tmp_path / "source", FIRST), root=True, replace=True)
    assert f"{claim} has checkpoints, which is not of a dataset there" in refused("stage", env)
    assert names(claim) == ["checkpoints", "lost+found"]


def test_what_comes_to_the_root_while_files_are_copied_is_not_overwritten(
    tmp_path: Path, claim: Path
) -> None:
    env = settings(claim, source_of(tmp_path / "source", FIRST), root=True)
    assert run("stage", env)[0] == 0
    (claim / "n").write_bytes(b"mine")
    assert f"{claim}/n has come there" in refused("publish", env)
    assert (claim / "n").read_bytes() == b"mine"
    assert run("verify", {}, str(claim))[0] == 78
    (claim / "n").unlink()
    assert run("copy", env)[0] == 0
    assert read(claim) == FIRST


def test_another_dataset_at_the_root_is_replaced_only_with_replace(tmp_path: Path, claim: Path) -> None:
    assert run("copy", settings(claim, source_of(tmp_path / "first", FIRST), root=True))[0] == 0
    second = source_of(tmp_path / "second", SECOND)
    output = refused("copy", settings(claim, second, root=True))
    assert "has another dataset, or another version of it" in output
    assert read(claim) == FIRST
    assert run("copy", settings(claim, second, root=True, replace=True))[0] == 0
    assert read(claim) == SECOND


def test_other_workers_wait_until_the_first_has_taken_an_interrupted_attempt_back(
    tmp_path: Path, claim: Path
) -> None:
    env = settings(claim, source_of(tmp_path / "source", FIRST), root=True, workers=2)
    one, other = ({**env, "JOB_COMPLETION_INDEX": index} for index in "01")
    assert run("stage", other)[0] == 0
    assert run("stage", one)[0] == 0
    interrupt(claim, 2, one)
    second = begin("stage", other)
    assert second.stderr
    assert any("waiting for worker 0" in line for line in second.stderr)
    assert run("stage", one)[0] == 0
    assert ended(second)[0] == 0
    assert run("publish", one)[0] == 0
    assert read(claim) == FIRST
