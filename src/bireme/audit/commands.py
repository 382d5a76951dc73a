"""The command of a container taken apart: its launcher, the launcher's options, what the shell exports."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_LAUNCHERS = {name: name for name in ("torchrun", "mpirun", "mpiexec", "horovodrun", "deepspeed")} | {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "paddle.distributed.launch": "paddle",
    "accelerate launch": "accelerate",
    "accelerate.commands.launch": "accelerate",
}
_LONGEST = 100_000  # characters of a command that are read
_SHELLS = ("bash", "sh", "dash", "zsh")
_OTHERS = {"python": "python", "python3": "python", "sleep": "sleep", "sshd": "sshd"}
# What stands before a program; a launcher's name elsewhere, as in `pip install deepspeed`, is none.
_BEFORE = re.compile(r"|[;&|\n]+|exec|time|then|do|else|-m|.*=.*|\d+|.*\.sh")
# Options that the word after them is no value of: torchrun's, mpirun's, accelerate's, deepspeed's.
_WITHOUT_VALUE = re.compile(
    "standalone|no-python|m|module|run-path|use-env|"
    "allow-run-as-root|(no)?oversubscribe|use-hwthread-cpus|nolocal|noprefix|pernode|bynode|byslot|q|quiet|v|verbose|"
    "(tag|timestamp)-output|report-bindings|display-(map|allocation)|l|prepend-rank|g?envall|"
    "multi-gpu|cpu|tpu|mps|ipex|use-(xpu|deepspeed|fsdp|megatron-lm)|same-network|debug|"
    "no-ssh(-check)?|no-local-rank|force-multi|bind-cores-to-rank"
)
_ASSIGNMENT = re.compile(
    r"^[ \t]*(export[ \t]+)?([A-Za-z_]\w*)=(\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|]*)", re.MULTILINE
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|\((\w+)\)|(\w+))")


@dataclass(frozen=True)
class Command:
    """What a container runs. ``program`` is its first launcher, else "python", "sleep" or "sshd", else "".

    ``options`` are the launcher's, by their names with dashes and without leading ones. ``exports`` are
    variables that the shell or mpirun's -x sets. ``text`` is all of it, with known variables filled in.
    """

    text: str
    program: str
    launchers: int
    options: Mapping[str, str]
    exports: Mapping[str, str]


def take_apart(words: Sequence[str], variables: Mapping[str, str]) -> Command:
    """The command in ``words`` (command and args), with the container's ``variables`` filled in."""
    flagged = (word for flag, word in pairwise(words) if flag[:1] == "-" and flag[-1] == "c")
    script = next(flagged, "") if words and words[0].rpartition("/")[2] in _SHELLS else ""
    exports: dict[str, str] = {}
    text = script.replace("\\\n", " ") or shlex.join(words)
    known = dict(variables)
    for exported, name, value in _ASSIGNMENT.findall(script):
        known[name] = value.strip("\"'")
        exports |= {name: known[name]} if exported else {}
    text = _VARIABLE.sub(lambda each: known.get(each[1] or each[2] or each[3], each[0]), text)
    lexer = shlex.shlex(text[:_LONGEST], posix=True, punctuation_chars=";&|\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, "#"
    try:
        parts = list(lexer)
    except ValueError:  # a quote that never ends
        parts = text[:_LONGEST].replace("\n", " \n ").split(" ")
    found = list(_launchers(parts))
    if not found:
        programs = [_OTHERS[name] for part in parts if (name := part.rpartition("/")[2]) in _OTHERS]
        return Command(text, programs[0] if programs else "", 0, {}, exports)
    program, start = found[0]
    return Command(text, program, len(found), _options(parts[start:], exports), exports)


def _launchers(parts: Sequence[str]) -> Iterator[tuple[str, int]]:
    """The launchers among ``parts``, each with where its options begin."""
    for at, part in enumerate(parts):
        name, length = part.rpartition("/")[2], 1
        if name == "accelerate" and parts[at + 1 : at + 2] == ["launch"]:
            name, length = "accelerate launch", 2
        if name in _LAUNCHERS and _BEFORE.fullmatch(parts[at - 1] if at else ""):
            yield _LAUNCHERS[name], at + length


def _options(parts: Sequence[str], exports: dict[str, str]) -> dict[str, str]:
    """The options until the program begins; what mpirun exports by -x goes into ``exports``."""
    found: dict[str, str] = {}
    for name, value, _ in options_of(parts):
        if name == "x" and "=" in value:
            variable, _, exports[variable] = value.partition("=")
        found[name] = value
    return found


def options_of(parts: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """The options until the program begins: name with dashes and without leading ones, value, and words."""
    at = 0
    while at < len(parts) and parts[at].startswith("-"):
        name, equals, value = parts[at].lstrip("-").partition("=")
        name, following = name.replace("_", "-"), parts[at + 1] if at + 1 < len(parts) else "-"
        words = 1
        if not equals and not _WITHOUT_VALUE.fullmatch(name) and not re.match(r"[-;&|\n]", following):
            value, words = following, (3 if name.endswith(("mca", "env")) else 2)
        yield name, value, words
        at += words
