"""Every option and argument of every command with hostile texts: taken, or refused with a sentence, soon."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bireme.cli import cli
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths

SLICE = 120
SECONDS = 5
TEXTS = (
    *("", " ", "-", "--", "-x", "\t", "a\nb", "0", "-1", "1.5", "nan", "inf", "1e400", "9" * 30, "9" * 5000),
    *("$(id)", "`id`", "../a", "/", "/dev/null", "a/../../b", "~", "*", "x" * 5000, "C:\\x", "@a", "%s%n"),
    *("[red]", "[/]", "[bold", "\x1b[31m", "\x85", "\udcff", "é\u2028", "\U0001f600", "{{ . }}", "zq9; x"),
    *("null", "true", "010", "=", ",", "a=", "=a", "a=1,", "a[99999999]=1", "a.b=1", "{", "[" * 5000),
    *('"', "'"),
    *("p4d.24xlarge=3,", "p4d.24xlarge=99999999999999999999", "oci://", "oci://localhost:1/x", "https://["),
)
# What the other arguments and required options of a command are while one of them is tried.
USUAL = {
    "chart": "efs",
    "release": "none",
    "name": "efs-volume",
    "workers": "2",
    "files": "none.yaml",
    "charts": "none",
    "trace": "none.csv",
    "nodes": "p4d.24xlarge=1",
    "as": "Job",
}
# It has no container engine here, so that `up` never starts a cluster.
ALWAYS = {"up": ["--provider", "kind"]}


@dataclass(frozen=True)
class Line:
    """A command line with one hostile text."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(f"{word!r:.120}" for word in self.words)


def lines() -> list[Line]:
    """Every option and argument that takes a text, with every text."""
    return [
        Line((name, *words))
        for name, command in cli.commands.items()
        for tried in command.params
        if not getattr(tried, "is_flag", False)
        for text in TEXTS
        for words in [_words(name, command, tried, text)]
    ]


def _words(name: str, command: click.Command, tried: click.Parameter, text: str) -> Iterator[str]:
    yield from (word for word in ALWAYS.get(name, []) if tried.name != "provider_name")
    for each in command.params:
        if isinstance(each, click.Option) and each is not tried and each.required:
            yield f"{each.opts[-1]}={USUAL[each.opts[-1].removeprefix('--')]}"
    if isinstance(tried, click.Option):
        yield f"{tried.opts[-1]}={text}"
    yield "--"
    for each in command.params:
        if isinstance(each, click.Argument) and (each is tried or each.required):
            yield text if each is tried else USUAL[str(each.name)]


@pytest.fixture
def run(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """Runs commands where there is no cluster, no container engine and nothing to write over."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BIREME_CACHE", str(paths.cache))
    monkeypatch.setenv("BIREME_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-cluster"))
    return CliRunner()


def fault(run: CliRunner, line: Line) -> str | None:
    """What is wrong with how the command ends, if anything is."""
    before = _seconds()
    done = run.invoke(cli, list(line.words))
    spent = _seconds() - before
    if spent > SECONDS:
        return f"{line}: took {spent:.1f} seconds of a processor"
    if isinstance(done.exception, BiremeError):
        said = str(done.exception)
        return (
            None if 0 < len(said.splitlines()) <= 11 and len(said) < 20_000 else f"{line}: says {said!r:.300}"
        )
    if done.exit_code in (0, 2) or (done.exit_code == 1 and isinstance(done.exception, SystemExit)):
        return None if done.output.strip() else f"{line}: says nothing"
    return f"{line}: ends in {done.exception!r:.300}"


def _seconds() -> float:
    """Seconds of a processor that this process and those that it waited for have had."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def test_hostile_texts_are_taken_or_refused_with_a_sentence(run: CliRunner) -> None:
    chosen = sorted(lines(), key=lambda line: hashlib.sha256(str(line).encode()).digest())[:SLICE]
    assert [found for line in chosen if (found := fault(run, line))] == []


@pytest.mark.whole
@pytest.mark.parametrize("command", sorted(cli.commands))
def test_every_option_takes_or_refuses_every_text(run: CliRunner, command: str) -> None:
    of_it = [line for line in lines() if line.words[0] == command]
    assert [found for line in of_it if (found := fault(run, line))] == []


@pytest.mark.parametrize("seconds", [0.02, 0.1])
def test_ctrl_c_while_the_command_starts_is_a_word_and_no_traceback(paths: Paths, seconds: float) -> None:
    # It says that it begins when the first of its own modules is read.
    program = """
import sys
from bireme.__main__ import main
class Begins:
    def find_spec(self, name, *_):
        if name == "bireme.cli":
            print("begins", flush=True)
sys.meta_path.insert(0, Begins())
main()
"""
    command = [sys.executable, "-c", program, "plan", "charts/torch-elastic"]
    with subprocess.Popen(
        command, cwd=paths.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        run.stdout.readline()
        time.sleep(seconds)
        run.send_signal(signal.SIGINT)
        printed, said = run.communicate(timeout=120)
    # A machine that is fast has answered before, and Python that ends no longer catches the signal.
    answered = run.returncode == 0 or (run.returncode == -signal.SIGINT and printed and not said)
    assert answered or said.endswith("Aborted!\n")
    assert "Traceback" not in said


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_home_that_cannot_be_written_names_the_variables_for_other_folders(
    run: CliRunner, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def mkdir(path: Path, *_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setenv("BIREME_CACHE", str(tmp_path / "cache"))
    with pytest.raises(BiremeError, match="BIREME_CACHE and BIREME_STATE name folders for the cache"):
        run.invoke(cli, ["plan", str(paths.charts / "torch-elastic")], catch_exceptions=False)


def test_a_home_in_which_nothing_can_be_made_names_them_too(
    run: CliRunner, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BIREME_CACHE", "BIREME_STATE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/proc")
    with pytest.raises(BiremeError, match=r"^/proc/.*BIREME_CACHE and BIREME_STATE name folders"):
        run.invoke(cli, ["plan", str(paths.charts / "torch-elastic")], catch_exceptions=False)
