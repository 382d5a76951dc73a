"""The steps of a dataset need as much memory for many files as for few."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bireme_runtime.dataset.lists import Lists, joined
from tests.runtime.datasets import settings
from tests.runtime.etcd_servers import RUNTIME
from tests.support.tiers import core

FEW, MANY = 600, 1800
# A path and its object, as Python keeps them, are more than 500 bytes.
MOST_BYTES_PER_FILE = 150

MEASURED = """
import os, sys, tracemalloc
from bireme_runtime.dataset import lists
from bireme_runtime.dataset import __main__ as training
from bireme_runtime.dataset.claim import __main__ as claim
from bireme_runtime.sources import source

# Lists of more than 500 rows go into files, and windows and pieces are small, so what grows is seen.
lists.Lists.__init__.__defaults__ = (500,)
lists.in_order.__defaults__ = (25,)
source._CHUNK = 1 << 12
# pathlib interns names, and Python's table of those grows in steps: here it has room.
interned = [sys.intern(f"name {number}") for number in range(200_000)]
tracemalloc.start()
code = (training if sys.argv[1] == "verify" else claim).main(sys.argv[1:], os.environ)
print(code, tracemalloc.get_traced_memory()[1])
"""


def peak(env: dict[str, str], *argv: str) -> int:
    """The most bytes that Python held at a time in one step."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *argv],
        env={"PYTHONPATH": str(RUNTIME), **env},
        capture_output=True,
        text=True,
        check=True,
    )
    code, peak = done.stdout.split()
    assert code == "0", done.stderr
    return int(peak)


def source_of(folder: Path, files: int) -> Path:
    """A folder with small files, most of them links to one."""
    folder.mkdir(parents=True)
    (folder / "first").write_bytes(b"content")
    for number in range(files):
        os.link(folder / "first", folder / f"n{number:06d}.jpg")
    return folder


def published(target: Path, files: int) -> Path:
    """A dataset as `publish` leaves it."""
    source_of(target, files)
    names = sorted(["first", *(f"n{number:06d}.jpg" for number in range(files))])
    digest = hashlib.sha256(b"content").hexdigest()
    body = "".join(json.dumps({"path": name, "bytes": 7, "sha256": digest}) + "\n" for name in names)
    header = {"files": len(names), "bytes": 7 * len(names), "identity": "other"}
    header["sha256"] = hashlib.sha256(body.encode()).hexdigest()
    (target / "MANIFEST.jsonl").write_text(json.dumps(header) + "\n" + body)
    return target


def stage(folder: Path, files: int) -> int:
    return peak(settings(folder / "data", {"url": f"file://{source_of(folder / 'source', files)}"}), "stage")


def stage_a_dataset(folder: Path, files: int) -> int:
    return peak(settings(folder / "data", {"url": f"file://{published(folder / 'source', files)}"}), "stage")


def stage_again(folder: Path, files: int) -> int:
    stage(folder, files)
    return peak(settings(folder / "data", {"url": f"file://{folder}/source"}), "stage")


def publish(folder: Path, files: int) -> int:
    stage(folder, files)
    return peak(settings(folder / "data", {"url": f"file://{folder}/source"}), "publish")


def publish_prepared(folder: Path, files: int) -> int:
    source_of(folder / ".data.staging", files)
    state = folder / ".data.staging" / ".bireme"
    state.mkdir()
    (state / "share-0.json").write_text(json.dumps({"identity": "i", "files": 1, "bytes": 7}))
    return peak(settings(folder / "data", {"url": "file:///nowhere"}, prepare="script"), "publish")


def verify(folder: Path, files: int) -> int:
    return peak({}, "verify", str(published(folder / "data", files)))


@pytest.mark.parametrize(
    "step",
    core(
        stage,
        publish,
        of=[stage, stage_a_dataset, stage_again, publish, publish_prepared, verify],
    ),
)
def test_a_step_needs_no_more_memory_for_more_files(tmp_path: Path, step: Callable[[Path, int], int]) -> None:
    few, many = step(tmp_path / "few", FEW), step(tmp_path / "many", MANY)
    assert (many - few) / (MANY - FEW) < MOST_BYTES_PER_FILE


def test_lists_in_files_are_sorted_and_joined_as_those_in_memory(tmp_path: Path) -> None:
    names = [f"a{number * 7919 % 1000}" for number in range(1000)]
    with Lists(tmp_path / "lists", in_memory=64) as lists:
        rows = lists.sorted((name, [name]) for name in [*names, "a5", "a/b", "a.b"])
        assert [path for path, _ in rows] == sorted([*names, "a5", "a/b", "a.b"])
        assert list(rows) == list(rows), "they can be read again"
        found = {path: (one, other) for path, one, other in joined(rows.last(), [("a5", 1), ("b", 2)])}
        assert found["a5"] == (["a5"], 1)
        assert found["b"] == (None, 2)
        assert found["a6"] == (["a6"], None)
        assert len(found) == 1003
        assert list(lists.sorted([])) == []
    assert not list(tmp_path.iterdir())
