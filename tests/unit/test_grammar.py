"""The words of a command line: charts first, releases second, and a hint for what was written otherwise."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from bireme.cli import cli


def said(*words: str) -> str:
    done = CliRunner().invoke(cli, list(words))
    assert done.exit_code != 0
    return done.output + str(done.exception)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("install torch-elastic --release a", "did you mean bireme install CHART [RELEASE]?"),
        ("status --release a", "the release is a word: did you mean bireme status RELEASE?"),
        ("up --name a", "there is no --name: did you mean --cluster?"),
        ("eksctl --nodes cpu=1 --name a", "there is no --name: did you mean --cluster?"),
        ("install imagenet torch-elastic", "did you mean torch-elastic imagenet?"),
        ("plan torch-elastic --reuse-values", "there are values to keep only with --against"),
    ],
)
def test_what_other_tools_or_earlier_releases_take_gets_a_hint(line: str, sentence: str) -> None:
    assert sentence in said(*line.split())


def test_options_that_no_command_had_get_no_hint() -> None:
    assert "did you mean bireme" not in said("status", "--relase", "a")
