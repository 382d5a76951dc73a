"""The commands of a document, as its reader types them.

Each line of a ``sh`` block is a command; it may go on after a backslash. A comment at its end says what it
needs beyond a cluster and this clone (``# needs AWS``), or how it ends (``# exits with 1``). The ``text``
block after a ``sh`` block is what the reader should see: each of its lines is in what the block prints, and …
stands for anything.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[2]
NEEDS = ("AWS", "GPUs", "containers", "internet")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NEEDS = re.compile(r"# needs (.*)$")
_EXITS = re.compile(r"# exits with (\d+)$")


@dataclass(frozen=True)
class Command:
    """A command: where it is, its text, what it needs beyond a cluster, and the code with which it ends."""

    document: str
    line: int
    text: str
    needs: str = ""
    code: int = 0

    def __str__(self) -> str:
        return f"{self.document}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Block:
    """The commands of one block, and the lines that the reader should see."""

    commands: tuple[Command, ...]
    shown: tuple[str, ...]

    def missing(self, printed: str) -> list[str]:
        """The shown lines that are not in ``printed``, whatever the number of spaces."""
        lines = "\n".join(_folded(line) for line in printed.splitlines())
        return [line for line in self.shown if not re.search(_pattern(line), lines, re.MULTILINE)]


def blocks(document: Path, other: Mapping[str, str] = MappingProxyType({})) -> list[Block]:
    """The blocks of commands in ``document``, in which the texts of ``other`` are replaced, in that order.

    Raises ValueError for a marker that nobody knows.
    """
    text, name = document.read_text(), str(document.relative_to(ROOT))
    for old, new in other.items():
        if old not in text:
            raise ValueError(f"{name} does not have the text {old!r}")
        text = text.replace(old, new)
    fences = [(each[1], text.count("\n", 0, each.start(2)) + 1, each[2]) for each in _FENCE.finditer(text)]
    return [
        Block(tuple(_commands(name, line, body)), _shown(fences[index + 1 : index + 2]))
        for index, (kind, line, body) in enumerate(fences)
        if kind == "sh"
    ]


def syntax_error(command: Command) -> str:
    """What bash says to the command without running it; empty if it is right."""
    return subprocess.run(
        ["bash", "-n", "-c", command.text], capture_output=True, text=True, check=False
    ).stderr


def _commands(document: str, line: int, body: str) -> Iterator[Command]:
    number, text = line, ""
    for index, row in enumerate(body.splitlines()):
        number = number if text else line + index
        text = f"{text}\n{row}" if text else row
        if not text.strip():
            text = ""
        elif not text.endswith("\\"):
            yield _command(document, number, text)
            text = ""
    if text:
        raise ValueError(f"{document}:{number}: the command does not end")


def _command(document: str, line: int, text: str) -> Command:
    needs, exits = _NEEDS.search(text), _EXITS.search(text)
    if needs and needs[1] not in NEEDS:
        raise ValueError(f"{document}:{line}: what is '# needs {needs[1]}'? Known are {', '.join(NEEDS)}")
    return Command(document, line, text, needs[1] if needs else "", int(exits[1]) if exits else 0)


def _shown(following: list[tuple[str, int, str]]) -> tuple[str, ...]:
    return tuple(line for kind, _, body in following if kind == "text" for line in body.splitlines() if line)


def _folded(line: str) -> str:
    return re.sub(r"\s+", " ", line).strip()


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in _folded(line).split("…"))
