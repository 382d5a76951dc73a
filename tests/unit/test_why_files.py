"""`bireme why --files`: dumps and stacks of a run that Bireme did not start."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bireme.cli import cli
from bireme.core.errors import BiremeError

STACKS = """Thread 0x00007f5f99571200 (most recent call first):
  File "/app/data.py", line 8 in read_shard
  File "/app/train.py", line 18 in <module>
"""


def dump(numbers: range, pending: int = 0) -> dict[str, Any]:
    """What the recorder holds after these all-reduces, of which one may be under way."""
    entries = [
        {
            "process_group": ["0", "default_pg"], "collective_seq_id": number,
            "profiling_name": "nccl:all_reduce", "input_sizes": [[3]], "input_dtypes": ["Float"],
            "time_created_ns": number, "state": "started" if number == pending else "completed",
        }
        for number in numbers
    ]  # fmt: skip
    return {"entries": entries}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(dump(range(1, 6), pending=5)))
    (tmp_path / "rank1.json").write_text(json.dumps(dump(range(1, 5))))
    (tmp_path / "rank1.txt").write_text(STACKS)
    (tmp_path / "README.md").write_text("no rank of its own")
    return tmp_path


def test_dumps_and_stacks_of_a_rank_are_put_together(folder: Path) -> None:
    done = CliRunner().invoke(cli, ["why", "--files", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0
    said = "rank 1 has not entered all_reduce 5 of the default group, of 3 Float, where rank 0 waits"
    assert " ".join(done.stdout.split()).startswith(f"{said}: rank 1 is in read_shard (data.py:8)")


def test_a_rank_without_a_file_has_told_nothing(folder: Path) -> None:
    (folder / "rank1.json").unlink()
    (folder / "rank1.txt").unlink()
    where = ["why", "--files", str(folder), "--world", "2", "-o", "json"]
    told = json.loads(CliRunner().invoke(cli, where, catch_exceptions=False).stdout)
    assert (told["kind"], told["ranks"], told["silent"]) == ("missing", [1], [])
    assert told["remedy"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name a release or a folder"),
        (["--files", "nowhere"], "--files nowhere: there is no such folder"),
        (
            ["--files", "."],
            "its name has no rank\nrank0: it is no dump of torch's Flight Recorder",
        ),
    ],
)
def test_what_tells_of_no_rank_is_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("no rank")
    (tmp_path / "rank0").write_bytes(pickle.dumps(dump(range(1, 3)))[:-5])
    with pytest.raises(BiremeError) as error:
        CliRunner().invoke(cli, ["why", *arguments], catch_exceptions=False)
    assert sentence in str(error.value)
