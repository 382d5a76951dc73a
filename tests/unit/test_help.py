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


def test_bash_completes_commands_and_options() -> None:
    script = subprocess.run(
        [BIREME],
        env={**os.environ, "_BIREME_COMPLETE": "bash_source"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    complete = f"""{script}
COMP_WORDS=(bireme {{words}}); COMP_CWORD={{at}}; _bireme_completion bireme; echo "${{{{COMPREPLY[@]}}}}"
"""
    env = {**os.environ, "PATH": f"{BIREME.parent}{os.pathsep}{os.environ['PATH']}"}

    def replies(words: str, at: int) -> list[str]:
        line = (
            complete.replace("{words}", words).replace("{at}", str(at)).replace("{{", "{").replace("}}", "}")
        )
        finished = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, check=True)
        return finished.stdout.split()

    assert replies("unin", 1) == ["uninstall"]
    assert "--previous" in replies("logs --pre", 2)
