"""A dataset under kills, failing servers, changed objects and a full disk: all of it or nothing."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import random
import resource
import signal
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.runtime.datasets import begin, ended, read, refused, run, settings, stage_and_publish
from tests.runtime.faulty_servers import Faults, FaultyServer, error, faulty_server, flipped
from tests.support.tiers import core
from tests.support.waiting import until

SEEDS = 300
OBJECTS = {f"data/n{number}": b"%d" % number * 1000 for number in range(12)}


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with faulty_server(dict(OBJECTS)) as found:
        yield found


def contents(server: FaultyServer) -> dict[str, bytes]:
    return {key.removeprefix("data/"): content for key, content in server.objects.items()}


def change(server: FaultyServer) -> None:
    """Change, add and delete objects."""
    server.objects.update({"data/n1": b"changed", "data/new": b"new", "data/n5": b"other"})
    server.objects.pop("data/n2", None)


def test_a_bucket_that_changes_after_one_worker_has_ended_is_staged(
    server: FaultyServer, tmp_path: Path
) -> None:
    env = {**server.env, **settings(tmp_path / "data", {"url": "s3://b/data"}, workers=2)}
    assert run("stage", {**env, "JOB_COMPLETION_INDEX": "1"})[0] == 0
    change(server)
    code, output = run("stage", {**env, "JOB_COMPLETION_INDEX": "0"})
    assert code == 0, output
    assert "the sources changed after worker 1 had listed them" in output
    assert run("publish", env)[0] == 0
    assert read(tmp_path / "data") == contents(server)


def test_a_bucket_that_changes_before_another_worker_lists_it_is_staged(
    server: FaultyServer, tmp_path: Path
) -> None:
    env = {**server.env, **settings(tmp_path / "data", {"url": "s3://b/data"}, workers=2)}
    first = begin("stage", {**env, "JOB_COMPLETION_INDEX": "0"})
    until((tmp_path / ".data.staging/.bireme/share-0.json").exists)
    change(server)
    assert run("stage", {**env, "JOB_COMPLETION_INDEX": "1"})[0] == 0
    code, output = ended(first)
    # Its own objects are others now, so the next attempt of the Job lists them again.
    assert code == 75, output
    assert run("stage", {**env, "JOB_COMPLETION_INDEX": "0"})[0] == 0
    assert run("publish", env)[0] == 0
    assert read(tmp_path / "data") == contents(server)


def no_file_above(most: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def test_a_full_disk_is_reported_and_nothing_is_published(server: FaultyServer, tmp_path: Path) -> None:
    server.objects["data/large"] = bytes(3 << 20)
    env = {**server.env, **settings(tmp_path / "data", {"url": "s3://b/data"})}
    code, output = ended(begin("copy", env, preexec_fn=lambda: no_file_above(1 << 20)))
    assert code == 75
    assert "cannot be" in output
    assert not (tmp_path / "data").exists()
    stage_and_publish(env)
    assert read(tmp_path / "data") == contents(server)


def run_with(fault: str, part: str, env: Mapping[str, str], step: str, *arguments: str) -> tuple[int, str]:
    """Run a step in which calls on files fail, as on a node whose disk or file server fails.

    They are those whose path contains `part`.
    """
    code = getattr(errno, fault)

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def fails(path: object, *given: Any, **named: Any) -> Any:
            if part in str(path):
                raise OSError(code, os.strerror(code), str(path))
            return call(path, *given, **named)

        return fails

    with contextlib.ExitStack() as stack:
        for place, name in [
            (io, "open"),
            (builtins, "open"),
            (os, "stat"),
            (os, "scandir"),
            (os, "makedirs"),
        ]:
            stack.enter_context(mock.patch.object(place, name, failing(getattr(place, name))))
        return run(step, env, *arguments)


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    """A claim with a file and an archive."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/a").write_bytes(b"one")
    with zipfile.ZipFile(tmp_path / "source/b.zip", "w") as archive:
        archive.writestr("c", b"two")
    return tmp_path / "source"


@pytest.mark.parametrize("fault", ["EACCES", "EIO", "ESTALE"])
def test_a_failing_node_or_file_server_says_nothing_of_a_published_dataset(
    tmp_path: Path, claim: Path, fault: str
) -> None:
    stage_and_publish(settings(tmp_path / "data", {"url": f"file://{claim}"}))
    for part in ("data/MANIFEST.jsonl", "data/a"):
        code, output = run_with(fault, part, {}, "verify", str(tmp_path / "data"))
        assert (code, part in output) == (75, True), output
        assert os.strerror(getattr(errno, fault)) in output


@pytest.mark.parametrize(
    ("step", "fault", "part"),
    [
        ("stage", "ESTALE", "/source"),
        ("stage", "EROFS", "/.data.staging"),
        ("stage", "EDQUOT", "parts/0-"),
        ("stage", "EIO", "staging/b.zip"),
        ("stage", "ENOSPC", "staging/c"),
        ("publish", "EIO", "share-0.json"),
        ("publish", "EACCES", "unpacked.json"),
        ("publish", "EIO", "staging/a"),
    ],
)
def test_a_failing_node_or_file_server_leaves_another_attempt(
    tmp_path: Path, claim: Path, step: str, fault: str, part: str
) -> None:
    env = settings(tmp_path / "data", {"url": f"file://{claim}", "extract": True}, prepare="arrange")
    if step == "publish":
        assert run("stage", env)[0] == 0
    code, output = run_with(fault, part, env, step)
    assert code == 75, output
    assert output.splitlines()[-1].startswith("bireme dataset: ")
    assert not (tmp_path / "data").exists()
    stage_and_publish(env)
    assert read(tmp_path / "data") == {"a": b"one", "c": b"two"}


def test_an_object_that_was_overwritten_by_one_of_its_size_is_copied_again(
    server: FaultyServer, tmp_path: Path
) -> None:
    env = {**server.env, **settings(tmp_path / "data", {"url": "s3://b/data"})}
    assert run("stage", env)[0] == 0
    server.objects["data/n7"] = server.objects["data/n7"][::-1].replace(b"7", b"8")
    stage_and_publish(env)
    assert read(tmp_path / "data") == contents(server)


def test_a_file_that_vanishes_before_it_is_published_is_copied_by_the_next_attempt(
    server: FaultyServer, tmp_path: Path
) -> None:
    env = {**server.env, **settings(tmp_path / "data", {"url": "s3://b/data"})}
    assert run("stage", env)[0] == 0
    for is_cut in (False, True):
        (tmp_path / ".data.staging/n7").unlink()
        if is_cut:
            (tmp_path / ".data.staging/n7").write_bytes(b"cut")
        assert "are staged, the sources have 12 with" in refused("publish", env, code=75)
        assert not (tmp_path / "data").exists()
        assert run("stage", env)[0] == 0
    assert run("publish", env)[0] == 0
    assert read(tmp_path / "data") == contents(server)


def fail_after(server: FaultyServer, parts: int, env: dict[str, str]) -> None:
    """Stage until this number of parts of data/large has been copied."""
    server.faults = [Faults("GET /b/data/large", error(403, "AccessDenied"), first=parts)]
    code, output = run("stage", env)
    assert code == 78, output


def test_parts_of_a_version_that_is_gone_are_deleted(server: FaultyServer, tmp_path: Path) -> None:
    env = {**server.env, **settings(tmp_path / "data", {"url": "s3://b/data"}, parallel=1)}
    unfinished = tmp_path / ".data.staging/.bireme/parts"
    for byte in b"12":
        server.objects["data/large"] = bytes([byte]) * (4 << 20)
        fail_after(server, 2, env)
        fail_after(server, 1, env)
    # One file of the first version, one of the second.
    assert len(list(unfinished.iterdir())) == 1
    before = server.count("GET /b/data/large")
    stage_and_publish(env)
    assert server.count("GET /b/data/large") == before + 1, "parts of this version are kept"
    assert read(tmp_path / "data") == contents(server)


def test_parts_of_a_file_that_was_deleted_are_copied_again(server: FaultyServer, tmp_path: Path) -> None:
    env = {**server.env, **settings(tmp_path / "data", {"url": "s3://b/data"}, parallel=1)}
    content = bytes(range(256)) * (4 << 12)
    for objects in ({"data/large": content}, {}, {"data/large": content}):
        server.objects = {"data/small": b"small", **objects}
        if objects and (tmp_path / ".data.staging").exists():
            fail_after(server, 1, env)
        assert run("stage", env)[0] == 0
    stage_and_publish(env)
    assert read(tmp_path / "data") == contents(server)


def half(body: bytes) -> bytes:
    return body[: len(body) // 2]


def fault(chance: random.Random) -> Faults:
    """One thing that may go wrong with a request."""
    pattern = chance.choice(["list-type", "GET /b/data", "HEAD /b/data"])
    answers = [error(500, "InternalError"), error(503, "SlowDown"), error(400, "RequestTimeout"), (200, b"")]
    return chance.choice(
        [
            *(Faults(pattern, answer) for answer in answers),
            Faults(pattern, seconds=chance.uniform(0, 2)),
            Faults(pattern, sent=half),
            Faults("GET /b/data", sent=flipped),
        ]
    )


def torment(server: FaultyServer, chance: random.Random, over: threading.Event) -> None:
    """Faults and changes until the event is set."""
    while not over.wait(chance.uniform(0.05, 0.3)):
        # A few: a program that meets many in a row waits long.
        if len(server.faults) < 4 and not any(each.times for each in server.faults):
            server.faults.append(fault(chance))
        if chance.random() < 0.15:
            server.objects[f"data/n{chance.randrange(20)}"] = chance.randbytes(chance.randrange(5000))
        if chance.random() < 0.05:
            server.objects["data/large"] = large(server, chance)


def large(server: FaultyServer, chance: random.Random) -> bytes:
    """An object of several parts here, which may have been uploaded in others."""
    size = chance.randrange(3 << 20, 5 << 20)
    first = chance.randrange(1 << 20, size)
    server.parts = {"data/large": (first, size - first)} if chance.random() < 0.5 else {}
    return chance.randbytes(size)


def attempt(env: dict[str, str], chance: random.Random) -> list[tuple[int, str]]:
    """One run, or two at once; each may be killed, or find the disk full."""
    runs = [started(env, chance) for _ in range(1 if chance.random() < 0.8 else 2)]
    for process in runs:
        if chance.random() < 0.6:
            time.sleep(chance.uniform(0.1, 1.5))
            process.send_signal(signal.SIGKILL)
    return [ended(process) for process in runs]


def started(env: dict[str, str], chance: random.Random) -> subprocess.Popen[str]:
    is_full = chance.random() < 0.2
    most = chance.randrange(100, 4 << 20) if is_full else resource.RLIM_INFINITY
    return begin("copy", env, preexec_fn=lambda: no_file_above(most))


def outlive(server: FaultyServer, folder: Path, seed: int) -> None:
    """Copy a dataset under the faults of a seed: all of it is there then, or nothing and a sentence."""
    chance, over = random.Random(seed), threading.Event()
    server.objects["data/large"] = large(server, chance)
    env = {**server.env, **settings(folder / "data", {"url": "s3://b/data"})}
    faults = threading.Thread(target=torment, args=(server, random.Random(seed), over), daemon=True)
    faults.start()
    try:
        for _ in range(chance.randrange(1, 5)):
            for code, output in attempt(env, chance):
                assert code in (0, 75, 78, -signal.SIGKILL), output
                assert code == -signal.SIGKILL or output.splitlines()[-1].startswith("bireme dataset: ")
                assert (folder / "data").exists() or code != 0
            if (folder / "data").exists():
                assert run("verify", {}, str(folder / "data"))[0] == 0
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise
    finally:
        over.set()
        faults.join()


@pytest.mark.parametrize("seed", core(*range(5), of=range(SEEDS)))
def test_random_faults_leave_a_complete_dataset_or_none_and_a_sentence(
    server: FaultyServer, tmp_path: Path, seed: int
) -> None:
    outlive(server, tmp_path, seed)
