"""`bireme migrate`: values files follow what moved between releases."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bireme.cli import cli
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths

OLD = """\
# Our queue.
queueName: night
workers: 4
kueue:
  # Grows at night.
  admission: elastic  # and shrinks
  topology: false
"""
NEW = """\
queue:
  # Our queue.
  name: night
  # Grows at night.
  admission: elastic  # and shrinks
  topology: false
workers: 4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(OLD)
    return file


def migrate(*words: object) -> Result:
    result = CliRunner().invoke(cli, ["migrate", "torch-elastic", *map(str, words)])
    if isinstance(result.exception, Exception):
        raise result.exception
    return result


def test_values_that_moved_go_to_their_group_and_all_else_stays(file: Path) -> None:
    assert migrate(file).output.splitlines() == [
        f"{file}, line 2: queueName is queue.name since 0.3.0",
        f"{file}, line 6: kueue.admission is queue.admission since 0.3.0",
        f"{file}, line 7: kueue.topology is queue.topology since 0.3.0",
    ]
    assert file.read_text() == NEW
    assert migrate(file).output.startswith("nothing moved")
    assert file.read_text() == NEW


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"queueName": a\r\nworkers: 1\r\n', "queue:\r\n  name: a\r\nworkers: 1\r\n"),
        ("queueName: a\nqueue:\n    topology: no", "queue:\n    topology: no\n    name: a\n"),
        ("a: &a [1]\nkueue: \n  admission:\nb: *a", "a: &a [1]\nqueue:\n  admission:\nb: *a"),
        ("queueName: |-\n  a\n# b\nworkers: 1\n", "queue:\n  name: |-\n    a\n# b\nworkers: 1\n"),
        ("kueue: null\n", "kueue: null\n"),
    ],
    ids=["quotes", "group", "empty value", "block", "null"],
)
def test_a_file_keeps_the_way_it_is_written(file: Path, old: str, new: str) -> None:
    file.write_bytes(old.encode())
    migrate(file)
    assert file.read_bytes().decode() == new


def test_check_changes_nothing_and_exits_with_1(file: Path) -> None:
    assert migrate("--check", file).exit_code == 1
    assert file.read_text() == OLD


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kueue: {topology: true}", "line 1: kueue.topology is queue.topology since 0.3.0: move it by hand"),
        ("a: &a x\nqueueName: *a", "line 2: queueName is queue.name since 0.3.0: move it by hand"),
        ("queue: {name: a}\nqueueName: b", "has both queueName and queue.name: remove queueName"),
        ("autoscale:\n  weight: 2", r"line 2: autoscale\.weight is gone since 0\.3\.0: remove it"),
        ("kueue: {", "is no YAML: .*line 1"),
        ("- kueue", "must be a mapping"),
    ],
)
def test_what_cannot_follow_is_named_and_no_file_changes(
    file: Path, tmp_path: Path, text: str, sentence: str
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(text)
    with pytest.raises(BiremeError, match=sentence):
        migrate(file, other)
    assert file.read_text() == OLD
    assert other.read_text() == text


def test_a_file_that_is_not_there_or_no_text_is_named(file: Path) -> None:
    file.write_bytes(b"\xff")
    missing = file.with_name("missing")
    for given, sentence in ((file, "is not UTF-8 text"), (missing, "does not exist: check the path")):
        with pytest.raises(BiremeError, match=f"{given} {sentence}"):
            migrate(given)


def test_validate_names_the_move_and_takes_the_migrated_file(file: Path, paths: Paths) -> None:
    validate = ["validate", str(paths.charts / "torch-elastic"), "-f", str(file)]
    refused = CliRunner().invoke(cli, validate)
    said = refused.output + str(refused.exception)
    assert (
        "`queueName` is `queue.name` since 0.3.0: `bireme migrate torch-elastic` changes values files" in said
    )
    assert "`kueue` is `queue` since 0.3.0" in said
    migrate(file)
    assert CliRunner().invoke(cli, validate).exit_code == 0


def test_validate_says_what_takes_the_place_of_a_value_that_is_gone() -> None:
    gone = "elastic.autoscale.every=1,elastic.autoscale.weight=2,elastic.autoscale.timeZone=UTC"
    words = ["validate", "torch-elastic", "-o", "json", "--set", gone]
    said = CliRunner().invoke(cli, words).output
    for key, instead in {
        "every": "remove it; charts/autoscaler looks every",
        "weight": "remove it; jobs of one priority share",
        "timeZone": "give each of `elastic.autoscale.sch",
    }.items():
        assert f"`elastic.autoscale.{key}` is gone since 0.3.0: {instead}" in said
