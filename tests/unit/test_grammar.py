"""The words of a command line: charts first, releases second, and a hint for what was written otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bireme.cli import cli
from tests.unit.conftest import MakeChart


def said(*words: str) -> str:
    done = CliRunner().invoke(cli, list(words))
    assert done.exit_code != 0
    return done.output + str(done.exception)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("install torch-elastic --release a", "install [OPTIONS] CHART [RELEASE]"),
        ("status --release a", "status [OPTIONS] RELEASE"),
        ("install imagenet torch-elastic", "did you mean torch-elastic imagenet?"),
        ("plan torch-elastic --reuse-values", "there are values to keep only with --against"),
    ],
)
def test_what_other_tools_or_earlier_releases_take_gets_a_hint(line: str, sentence: str) -> None:
    assert sentence in said(*line.split())


def test_a_key_that_a_chart_does_not_have_gets_a_hint() -> None:
    assert "torch-elastic has no value pod.shm.siz: did you mean size?" in said(
        "explain", "torch-elastic", "pod.shm.siz"
    )


def test_a_key_of_the_values_is_explained_with_its_type_and_its_default() -> None:
    text = CliRunner().invoke(cli, ["explain", "torch-elastic", "pod.shm.size"]).stdout
    assert "Size of the memory-backed /dev/shm" in text
    assert "type: string" in text
    assert 'default: ""' in text
    assert "keys: size" in CliRunner().invoke(cli, ["explain", "torch-elastic", "pod.shm"]).stdout


def test_a_chart_without_a_schema_is_explained_by_its_values(make_chart: MakeChart) -> None:
    chart = make_chart("web", values="web:\n  # -- How many\n  replicas: 2\n")
    done = CliRunner().invoke(cli, ["explain", str(chart), "web.replicas", "-o", "json"])
    assert json.loads(done.stdout) == {"key": "web.replicas", "text": "How many", "type": "any", "default": 2}


def test_lint_looks_at_the_charts_of_the_folder_where_it_runs(
    make_chart: MakeChart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert "there is no chart in this folder" in said("check")
    chart = make_chart("web", within=tmp_path, templates={"a.yaml": "kind: [\n"})
    for folder in (tmp_path, tmp_path / "charts", chart):
        monkeypatch.chdir(folder)
        found = CliRunner().invoke(cli, ["check", "-o", "json"])
        assert found.exit_code == 1
        assert "web" in found.stdout


def test_the_version_is_that_of_bireme_and_of_what_it_brings() -> None:
    lines = CliRunner().invoke(cli, ["version"]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["bireme", "helm", "helm3", "kube-apiserver"]
