"""Bad input gets the same few sentences from every command, soon, and no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bireme.cli import cli
from bireme.errors import BiremeError
from bireme.helm.values import read_file


def refused(*words: str) -> str:
    done = CliRunner().invoke(cli, list(words), env={"COLUMNS": "500"})
    assert done.exit_code == 1
    assert isinstance(done.exception, BiremeError | SystemExit), done.exception
    return str(done.exception) if isinstance(done.exception, BiremeError) else done.stdout.strip()


@pytest.mark.parametrize(
    ("sets", "sentences"),
    [
        (
            ["wrokers=3", "instance.type=p4d.24xlarge", "accelerators=9"],
            [
                "`wrokers` is not a value of torch-elastic: did you mean `workers`?",
                "accelerators: 9 is more than the 8 A100 of a p4d.24xlarge",
            ],
        ),
        (["workers=three"], ['`workers` is "three", it must be a whole number']),
        (
            ["image.pullPolicy=Often", "minWorkers=9", "maxWorkers=3"],
            ['`image.pullPolicy` is "Often"', "minWorkers: 9 is more"],
        ),
    ],
)
@pytest.mark.parametrize("command", ["validate", "render", "plan"])
def test_every_command_says_all_that_schema_and_rules_refuse(
    command: str, sets: list[str], sentences: list[str]
) -> None:
    said = refused(command, "torch-elastic", *(f"--set={each}" for each in sets)).splitlines()
    assert len(said) >= len(sentences)
    for sentence in sentences:
        assert any(line.startswith(sentence) for line in said), said
    assert not [line for line in said if "got string, want" in line or "nil pointer" in line]


def test_a_key_that_the_schema_refuses_is_not_judged_by_the_rules_too() -> None:
    assert len(refused("validate", "torch-elastic", "--set", "workers=three").splitlines()) == 1


def test_of_many_sentences_ten_are_said(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"args": [[] for _ in range(5000)]}))
    said = refused("plan", "torch-elastic", "-f", str(values)).splitlines()
    assert len(said) == 11
    assert said[-1] == "and 4,990 more"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: " + "[" * 5000 + "]" * 5000, "is nested more than 100 deep"),
        ("a:\n  " + "- " * 5000 + "1", "is nested more than 100 deep"),
        ("".join(f"{'  ' * depth}a:\n" for depth in range(300)), "is nested more than 100 deep"),
        (
            "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
            + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)),
            "has more than 1,000,000 values",
        ),
        ("a: " + "x" * 2**21, "has 2,097,155 characters"),
    ],
    ids=["flow lists", "dashes", "mappings", "anchors", "size"],
)
def test_a_values_file_that_would_take_for_ever_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(text)
    with pytest.raises(BiremeError, match=sentence):
        read_file(file)


def test_anchors_and_many_lists_are_fine(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("a: &a {b: [1, 2]}\nc: [*a, *a]\nd:\n" + "- [[]]\n" * 500)
    assert read_file(file)["c"] == [{"b": [1, 2]}] * 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--namespace", "$(id)"], "--namespace: '$(id)' cannot be a name"),
        (["--namespace", ""], "--namespace: '' cannot be a name"),
        (["--release", "../a"], "--release: '../a' cannot be a name"),
        (["--release", "a" * 54], "at most 53"),
        (["--nodes", ""], "--nodes is empty"),
        (["--nodes", "p4d.24xlarge=3,"], "--nodes: '' is not TYPE=NUMBER"),
        (["--nodes", "p4d.24xlarge=99999999999999999999"], "with a number from 1 to 100,000"),
    ],
)
def test_impossible_names_and_numbers_are_refused(words: list[str], sentence: str) -> None:
    assert sentence in refused("plan", "torch-elastic", *words)


def test_tools_without_names_are_refused() -> None:
    assert "--get names no tool" in refused("tools", "--get", "")


@pytest.mark.parametrize("text", ["[red]", "[/]", "^(*)?$ [bold", "a[b]c"])
def test_square_brackets_are_text(text: str) -> None:
    assert text in refused("validate", "torch-elastic", "--set-json", f"queueName={json.dumps(text)}")
