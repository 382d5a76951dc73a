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
workers: 4
kueue:
  elastic: true  # grows at night
  topology: false
"""
NEW = OLD.replace("elastic: true", "admission: elastic")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(OLD)
    return file


def migrate(*words: object) -> Result:
    result = CliRunner().invoke(cli, ["migrate", *map(str, words)])
    if isinstance(result.exception, Exception):
        raise result.exception
    return result


def test_a_value_that_moved_is_renamed_and_all_else_stays(file: Path) -> None:
    assert migrate(file).output == f"{file}, line 4: kueue.elastic is kueue.admission since 0.2.0\n"
    assert file.read_text() == NEW
    assert migrate(file).output.startswith("nothing moved")
    assert file.read_text() == NEW


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "{workers: 4, kueue: {elastic: no, topology: true}}",
            "{workers: 4, kueue: {admission: whole, topology: true}}",
        ),
        ('"kueue":\r\n  "elastic": True\r\n', '"kueue":\r\n  admission: elastic\r\n'),
        ("", ""),
        ("kueue: null\n", "kueue: null\n"),
    ],
    ids=["flow", "quotes", "empty", "null"],
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
        (
            "kueue: {elastic: maybe}",
            'kueue.elastic is "maybe", and only true or false can become kueue.admission',
        ),
        ("kueue: {elastic: [true]}", r"kueue.elastic is \[true\], and only"),
        ("kueue: {elastic: true, admission: whole}", "has both kueue.elastic and kueue.admission"),
        ("a: &yes true\nkueue: {elastic: *yes}", "line 2: kueue.elastic refers to a YAML anchor"),
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


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BiremeError, match=r"missing\.yaml does not exist: check the path"):
        migrate(tmp_path / "missing.yaml")


def test_a_file_that_is_no_text_is_named(file: Path) -> None:
    file.write_bytes(b"\xff")
    with pytest.raises(BiremeError, match="is not UTF-8 text"):
        migrate(file)


def test_validate_names_the_move_and_takes_the_migrated_file(file: Path, paths: Paths) -> None:
    validate = ["validate", str(paths.charts / "torch-elastic"), "-f", str(file), "--set", "queueName=a"]
    refused = CliRunner().invoke(cli, validate)
    said = refused.output + str(refused.exception)
    assert "`kueue.elastic` is `kueue.admission` since 0.2.0: `bireme migrate` changes values files" in said
    migrate(file)
    assert "kueue" not in CliRunner().invoke(cli, validate).output


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("every=1", "`autoscale.every` is gone since 0.3.0: remove it; charts/autoscaler looks every"),
        ("weight=2", "`autoscale.weight` is gone since 0.3.0: remove it; jobs of one priority share"),
        ("timeZone=UTC", "`autoscale.timeZone` is gone since 0.3.0: give each of `autoscale.schedules` its"),
    ],
)
def test_validate_says_what_takes_the_place_of_a_value_that_is_gone(
    paths: Paths, value: str, sentence: str
) -> None:
    words = ["validate", str(paths.charts / "torch-elastic"), "--set", f"autoscale.{value}", "-o", "json"]
    assert sentence in CliRunner().invoke(cli, words).output
