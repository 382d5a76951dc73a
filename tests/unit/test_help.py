"""Every command's help has an example that its own options accept, and shells complete the commands."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

import click
import pytest
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


# zsh is tested where it is installed.
SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "--no-rcs", "--no-globalrcs", "-i"],
}


@pytest.mark.parametrize("shell", [name for name in SHELLS if name == "bash" or shutil.which(name)])
@pytest.mark.parametrize(
    ("typed", "completed"),
    [("bireme unin", "bireme uninstall"), ("bireme logs --prev", "bireme logs --previous")],
)
def test_a_shell_with_the_lines_of_the_readme_completes(
    shell: str, typed: str, completed: str, tmp_path: Path
) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    lines = re.findall(rf'`({"autoload|" * (shell == "zsh")}eval "[^`]*{shell}_source)([^`]*)`', readme)
    printed = in_terminal(SHELLS[shell], [*map("".join, lines), "echo loa''ded"], typed, completed, tmp_path)
    assert completed in printed


def in_terminal(shell: list[str], lines: list[str], typed: str, awaited: str, home: Path) -> str:
    """What a shell shows after ``lines`` have run and someone has typed ``typed`` and a tab."""
    pid, terminal = pty.fork()
    if pid == 0:
        path = f"{BIREME.parent}{os.pathsep}{os.environ['PATH']}"
        os.execvpe(shell[0], shell, {"PATH": path, "HOME": str(home), "TERM": "dumb", "LANG": "C.UTF-8"})
    try:
        os.write(terminal, "".join(f"{line}\n" for line in lines).encode())
        shown(terminal, "loaded")
        os.write(terminal, f"{typed}\t".encode())
        return shown(terminal, awaited)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def shown(terminal: int, awaited: str) -> str:
    """What appears on the terminal until ``awaited`` does, or for 30 seconds."""
    printed, end = "", time.monotonic() + 30
    while awaited not in printed and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            printed += os.read(terminal, 4096).decode(errors="replace")
    return printed
