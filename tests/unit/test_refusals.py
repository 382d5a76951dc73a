"""Bad input gets the same few sentences from every command, soon, and no traceback."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bireme.cli import cli
from bireme.core.errors import BiremeError
from bireme.helm.values import read_file

ROOT = Path(__file__).parents[2]


def refused(*words: str) -> str:
    done = CliRunner().invoke(cli, list(words), env={"COLUMNS": "500"})
    assert done.exit_code == 1
    assert isinstance(done.exception, BiremeError | SystemExit), done.exception
    return str(done.exception) if isinstance(done.exception, BiremeError) else done.stdout.strip()


def test_what_troubleshooting_quotes_is_said_in_these_words() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text().partition("## Pods stay Pending")[0]
    quotes = re.findall(r"^\| `(.+?)`.* \|", page, re.MULTILINE)
    files = [*ROOT.glob("src/bireme/**/*.py"), *ROOT.glob("charts/*/templates/*")]
    said = "".join(file.read_text() for file in files if file.is_file())
    assert quotes
    assert [each for each in quotes if not all(part in said for part in each.split("…"))] == []


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
        (
            ["image.pullPolicy=Often", "elastic.minWorkers=9", "elastic.maxWorkers=3"],
            ['`image.pullPolicy` is "Often"', "elastic.minWorkers: 9 is more"],
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
    (said,) = refused("validate", "torch-elastic", "--set", "workers=three").splitlines()
    assert said.startswith('`workers` is "three", it must be a whole number')


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
        ("a: " + "x" * 2**21, "has 2,097,155 characters: it may have at most 1 MiB"),
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
        (["../a"], "RELEASE: '../a' cannot be a name"),
        (["a" * 54], "at most 53"),
        (["a\x85b"], r"RELEASE: 'a\x85b' cannot be a name"),
        (["--nodes", ""], "--nodes is empty"),
        (["--nodes", "p4d.24xlarge=3,"], "--nodes: '' is not TYPE=NUMBER"),
        (["--nodes", "p4d.24xlarge=99999999999999999999"], "with a number from 1 to 100,000"),
    ],
)
def test_impossible_names_and_numbers_are_refused(words: list[str], sentence: str) -> None:
    assert sentence in refused("plan", "torch-elastic", *words)


@pytest.mark.parametrize(
    "words",
    [
        ["status", "run", "--namespace", "$(id)"],
        ["list", "--namespace", ""],
        ["logs", "../a"],
        ["scale", "a/b", "3"],
        ["uninstall", ""],
        ["autoscale", "--lease-namespace", "../a"],
    ],
)
def test_impossible_names_are_refused_before_a_cluster_is_asked(words: list[str]) -> None:
    said = refused(*words, "--kubeconfig", "/nowhere/there/is/none")
    assert "cannot be a name: it takes lower-case letters" in said


def test_nodes_that_cannot_be_are_refused_before_the_plan_is_printed() -> None:
    done = CliRunner().invoke(cli, ["plan", "torch-elastic", "--nodes", "p4d.24xlarg=3"])
    assert "did you mean p4d.24xlarge?" in str(done.exception)
    assert done.stdout == ""


def test_tools_without_names_are_refused() -> None:
    assert "no tool called" in refused("tools", "--get", "")


@pytest.mark.parametrize("text", ["[red]", "[/]", "^(*)?$ [bold", "a[b]c"])
def test_square_brackets_are_text(text: str) -> None:
    assert text in refused("validate", "torch-elastic", "--set-json", f"queue.name={json.dumps(text)}")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["up", "--claim", "A B"], "--claim: 'A B' cannot be a name"),
        (
            ["eksctl", "--nodes", "p4d.24xlarge=1", "--kubernetes", "x"],
            "--kubernetes 'x' is not a minor version",
        ),
        (["eksctl", "--nodes", "p4d.24xlarge=1", "--zones", ""], "name at least two zones"),
        (["eksctl", "--nodes", "p4d.24xlarge=1", "--admit", "x"], "--admit: 'x' does not appear to be"),
        (["karpenter", "--nodes", "p4d.24xlarge=1", "--zones", ""], "name at least a zone"),
        (["plan", "torch-elastik"], "there is no chart torch-elastik: name a folder, an archive, oci://…"),
        (["plan", "torch-elastik"], "did you mean torch-elastic?"),
        (["plan", "torch-elastic", "-f", "p4d.24xlage"], "neither a file nor an instance type or a workload"),
        (["plan", "torch-elastic", "-f", "p4d.24xlage"], "did you mean p4d.24xlarge?"),
        (
            ["plan", "torch-elastic", "-f", "mine.yaml"],
            "values file mine.yaml does not exist: check the path",
        ),
        (["nccl", "--file", "log", "--instance", "p4d"], "unknown type 'p4d': did you mean p4d.24xlarge?"),
        (["values", "p5.48xlrge"], "there are no values called p5.48xlrge: did you mean p5.48xlarge?"),
        (["plan", "etcd", "--script", __file__], "has no value `script`"),
        (["check", "nowhere"], "nowhere does not exist: check the path"),
        (["check", "docs"], "docs is neither a chart nor a folder of charts: it has no Chart.yaml"),
        (["audit", "nowhere.yaml"], "nowhere.yaml does not exist: check the path"),
        (["check", "x" * 5000], "File name too long"),
        (["plan", "torch-elastic", "-f", "x" * 5000], "File name too long"),
        (["plan", "efs", "--set-file", "a=/nowhere/none"], "open /nowhere/none: no such file or directory"),
    ],
)
def test_what_an_option_cannot_be_is_one_sentence(words: list[str], sentence: str) -> None:
    said = refused(*words)
    assert sentence in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
def test_a_wait_that_never_ends_or_is_none_is_refused(seconds: str) -> None:
    done = CliRunner().invoke(cli, ["install", "torch-elastic", "--timeout", seconds])
    assert done.exit_code == 2
    assert "Invalid value for '--timeout'" in done.stderr


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: " + "[" * 20000 + "]" * 20000, "is nested more than 100 deep"),
        ("a:\n" + "- b: c\n" * 300_000, "it may have at most 1 MiB"),
    ],
    ids=["deep", "huge"],
)
def test_a_file_that_cannot_be_migrated_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(text)
    assert sentence in refused("migrate", "paddle", str(file))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "9" * 5000, "[]", "{}"], ids=["deep", "long", "list", "empty"]
)
def test_a_timeline_that_is_none_is_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(text)
    said = refused("timeline", "--file", str(file))
    assert said.startswith(f"{file} is not what bireme timeline -o json prints")
    assert len(said.splitlines()) == 1


def test_what_no_terminal_can_show_is_shown_by_its_number(tmp_path: Path) -> None:
    bireme = Path(sys.executable).parent / "bireme"
    done = subprocess.run([bireme, "values", b"\xff"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(r"error: there are no values called \udcff")
    assert "Traceback" not in done.stderr


def test_settings_that_no_process_can_take_are_one_sentence() -> None:
    texts = {f"a{number}": "1" for number in range(20_000)}
    said = refused("plan", "torch-elastic", "--set-json", f"env={json.dumps(texts)}")
    assert said == "the --set options are too long together: write a values file"


@pytest.mark.parametrize(
    ("command", "depth"), [("plan", 150), ("validate", 900), ("plan", 5000), ("check", 5000)]
)
def test_what_a_foreign_chart_nests_too_deep_is_one_sentence(
    tmp_path: Path, command: str, depth: int
) -> None:
    chart = tmp_path / "deep"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: deep\nversion: 0.1.0\n")
    (chart / "templates" / "map.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: deep}\n"
        f'data: {{{{ repeat {depth} "[" }}}}{{{{ repeat {depth} "]" }}}}\n'
    )
    said = refused(command, str(chart))
    assert "deep/templates/map.yaml is nested more than 100 deep" in said
    assert len(said.splitlines()) <= 2


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (
            "--set-json=args=" + "[" * 20_000,
            f"--set-json args={'[' * 75}…: it is no JSON that Helm can read; "
            "write KEY=JSON, in quotes for your shell",
        ),
        (
            "--set-json=workers=1e400",
            "--set-json workers=1e400: it is no JSON that Helm can read; "
            "write KEY=JSON, in quotes for your shell",
        ),
        (
            "--set-json=\udcff",
            r"--set-json \xff: it is no JSON that Helm can read; write KEY=JSON, in quotes for your shell",
        ),
        ("--set=workers", '--set: key "workers" has no value'),
        ("--set=a=1,a.b=2", "--set sets a key that has a value, and keys below it: leave one of them out"),
        ("--set=a[99999999]=1", "--set: index of 99999999 is greater than maximum supported index of 65536"),
    ],
    ids=["deep", "huge", "bytes", "no value", "twice", "index"],
)
def test_a_setting_that_helm_cannot_read_is_one_short_sentence(setting: str, sentence: str) -> None:
    assert refused("plan", "torch-elastic", setting) == sentence


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "torch-elastic", "-f"],
        ["migrate", "paddle"],
        ["nccl", "--file"],
        ["timeline", "--file"],
    ],
)
def test_a_file_without_end_is_refused(words: list[str]) -> None:
    said = refused(*words, "/dev/zero")
    assert re.fullmatch(r"[a-z ]+ /dev/zero has more than 256 MiB", said)


def test_a_key_that_a_values_file_has_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("env:\n  A: b\nargs: [train.py]\nenv:\n  C: d\n")
    said = refused("validate", "torch-elastic", "-f", str(values))
    assert said.startswith(f"{values} line 4: the key env is there twice, first in line 1")


@pytest.mark.parametrize(
    ("written", "arrives"),
    [("1234567e8", "123456700000000"), ("12.10", "12.1"), ("0027", "23"), ("yes", "true"), ("1e-5", "1e-05")],
)
def test_text_that_yaml_changes_on_its_way_to_the_program_is_refused(
    written: str, arrives: str, tmp_path: Path
) -> None:
    values = tmp_path / "values.yaml"
    for text in (f"env:\n  A: {written}\n", f"args:\n- {written}\n"):
        values.write_text(text)
        said = refused("validate", "torch-elastic", "-f", str(values))
        assert said == f"{values} line 2: {written} arrives as {arrives}: put it in quotes"


def test_text_that_arrives_as_written_is_taken(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        'env: {A: 20240101, B: "0027", C: 0.1, D: true, E: 12:30:45, F: ""}\nargs: [x, 7, -1]\n'
    )
    assert read_file(values)["env"]["C"] == 0.1
