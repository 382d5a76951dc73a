"""Every command's help has an example that its own options accept, and shells complete the commands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from bireme.cli import cli

BIREME = Path(sys.executable).with_name("bireme")


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_the_example_in_a_command_s_help_is_one_it_accepts(name: str) -> None:
    command = cli.commands[name]
    examples = re.findall(r"Example: (bireme .*)", command.help or "")
    assert examples, f"bireme {name} --help has no example"
    for example in examples:
        _, called, *arguments = shlex.split(example.partition(" >")[0])
        assert called == name
        # Reads the arguments, and does not run the command. Raises click.UsageError for one it does not know.
        command.make_context(name, arguments, parent=click.Context(cli))


def test_the_list_of_commands_has_a_whole_sentence_for_each_on_80_columns() -> None:
    printed = CliRunner().invoke(cli, ["--help"], terminal_width=80).stdout
    rows = [line.split(maxsplit=1) for line in printed.splitlines() if re.match("  [a-z]", line)]
    assert sorted(name for name, _ in rows) == sorted(cli.commands)
    assert (
        printed.index("Charts and values") < printed.index("  plan ") < printed.index("Releases on a cluster")
    )
    assert [text for _, text in rows if text.endswith("...") or not text.endswith(".")] == []


def test_the_line_of_the_documents_completes_in_bash(tmp_path: Path) -> None:
    document = (Path(__file__).parents[2] / "docs/commands.md").read_text()
    (line,) = re.findall(r'`(eval "[^`]*bash_source[^`]*)`', document)
    typed = 'COMP_WORDS=(bireme unin); COMP_CWORD=1; _bireme_completion bireme; echo "${COMPREPLY[@]}"'
    assert output(["bash", "-ec", f"{line}\n{typed}"], tmp_path) == "uninstall\n"


def test_the_lines_of_the_documents_complete_in_zsh(tmp_path: Path) -> None:
    document = (Path(__file__).parents[2] / "docs/commands.md").read_text()
    asked = re.search(
        r'`autoload -Uz compinit && compinit` and then `eval "\$\((\w+)=(\w+) bireme\)"`', document
    )
    assert asked, "the function of compinit comes first"
    lines = output([str(BIREME)], tmp_path, **{asked[1]: asked[2]})
    assert "compdef _bireme_completion bireme" in lines
    assert "_BIREME_COMPLETE=zsh_complete bireme" in lines
    typed = {"_BIREME_COMPLETE": "zsh_complete", "COMP_WORDS": "bireme unin", "COMP_CWORD": "1"}
    assert output([str(BIREME)], tmp_path, **typed).splitlines()[:2] == ["plain", "uninstall"]


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("logs --prev", "--previous"),
        ("plan tor", "torch-elastic"),
        ("diff a pad", "paddle"),
        ("plan torch-elastic -f p5.48", "p5.48xlarge"),
        ("install torch-elastic -f imagenet-e", "imagenet-efa"),
        ("explain torch-elastic pod.shm.", "pod.shm.size"),
        ("values imagenet-f", "imagenet-fsx"),
        ("doctor mpi-t", "mpi-training"),
    ],
)
def test_shells_are_told_how_a_word_goes_on(typed: str, completed: str) -> None:
    *words, begun = typed.split()
    found = ShellComplete(cli, {}, "bireme", "_BIREME_COMPLETE").get_completions(words, begun)
    assert completed in [each.value for each in found]


# Each takes longer to load than all that the list of commands needs.
SLOW = {
    *("asyncio", "cel", "http.client", "jsonschema", "kubernetes", "pyhelm3", "ssl", "urllib3"),
    *("bireme.adopt.jobs", "bireme.audit.rules", "bireme.autoscale.controller", "bireme.check.checker"),
    *("bireme.clusters.api", "bireme.live.deploy", "bireme.plan.instances", "bireme.provision.groups"),
}


@pytest.mark.parametrize("words", ["--help", "values imagenet-efa", "install --help", "COMPLETE"])
def test_a_command_starts_without_what_only_others_need(words: str, tmp_path: Path) -> None:
    variables = {"COMP_WORDS": "bireme plan tor", "COMP_CWORD": "2", "_BIREME_COMPLETE": "bash_complete"}
    words, asked = ("", variables) if words == "COMPLETE" else (words, {})
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **asked}
    command = [sys.executable, "-X", "importtime", str(BIREME), *words.split()]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    loaded = set(re.findall(r"^import time:.*\| +([\w.]+)$", told, re.MULTILINE))
    assert {"bireme.cli.options", "click"} <= loaded
    assert loaded & SLOW == set()


def output(command: list[str], home: Path, **variables: str) -> str:
    """What a command prints that finds bireme."""
    path = f"{BIREME.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", **variables}
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
