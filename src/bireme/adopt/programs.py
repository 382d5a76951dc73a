"""The command of a container as the charts take it: setup, launcher, the launcher's options, the program."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bireme.adopt.tables import table
from bireme.audit.commands import options_of

_SHELL = re.compile(r"(.*/)?(ba|da|z)?sh")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
# The entry point of our charts without the runtime (files/torchrun.sh).
_STOCK = 'exec "$$0" -m torch.distributed.run "$$@"'
# What only a shell understands. A quoted word may hold it, but then the words alone would not tell.
_FOR_SHELLS = re.compile(r"[;&|<>`*~]|\$\(|\$\{\w+[^\w}]|'[^']*\$")


@dataclass(frozen=True)
class Program:
    """What a container runs.

    Its ``launcher`` is "python" for a script that nothing launches, "node" where only the whole command says
    what runs, and "" for no command. The program and its arguments are ``words``, the lines before it
    ``setup``. Options of the launcher that no chart sets are ``options``. Those that it does are ``owned``.
    """

    launcher: str
    words: Sequence[str]
    setup: str = ""
    options: Sequence[str] = ()
    owned: Mapping[str, str] = field(default_factory=dict)


def program_of(words: Sequence[str], variables: Collection[str]) -> Program:
    """The program that ``words`` (command and args) are, in a container with ``variables``."""
    whole = Program("node" if words else "", words)
    if words[3:] and _STOCK in words[2]:
        return _launched([words[3], "-m", "torch.distributed.run", *words[4:]]) or whole
    if words[3:4] == ["mpirun.sh"]:
        return _launched(words[4:]) or Program("node", words[4:])
    if not words or not _SHELL.fullmatch(words[0]):
        return _launched(words) or whole
    if len(words) != 3 or not re.fullmatch(r"-\w*c", words[1]):
        return whole
    lines = words[2].replace("\\\n", " ").splitlines()
    while lines and not lines[-1].partition("#")[0].strip():
        lines.pop()
    *before, line = lines or [""]
    line = line.rstrip("; \t")
    joined = re.fullmatch(r"([^\"'(){}|]*)(?:&&|;)([^;&]*);?", line)
    if joined:
        before, line = [*before, joined[1].replace("&&", "\n").strip()], joined[2]
    if _FOR_SHELLS.search(line) or line.endswith("\\"):
        return whole
    try:
        parts = shlex.split(line, comments=True)
    except ValueError:  # a quote that never ends
        return whole
    while parts and (parts[0] in ("exec", "time") or _ASSIGNMENT.fullmatch(parts[0])):
        name, equals, value = parts.pop(0).partition("=")
        quoted = f'"{value}"' if "$" in value else shlex.quote(value)
        before += [f"export {name}={quoted}"] if equals else []
    found = _launched(parts)
    used = _VARIABLE.findall(" ".join([*found.options, *found.words])) if found else ()
    if found is None or not {one or other for one, other in used} <= {*variables}:
        return whole

    # Kubernetes fills in $(NAME) of arguments, and nothing in the lines of a setup.
    program, options = (
        [_VARIABLE.sub(lambda each: f"$({each[1] or each[2]})", word) for word in part]
        for part in (found.words, found.options)
    )
    setup = "\n".join(before)
    for name in variables:
        setup = setup.replace(f"$({name})", f"${{{name}}}")
    return replace(found, words=program, setup=setup, options=options)


def _launched(words: Sequence[str]) -> Program | None:
    """The launcher that ``words`` begin with and what it runs; None where they begin with none."""
    name, at, module = words[0].rpartition("/")[2] if words else "", 1, ""
    launcher = table("launchers").get(name)
    if re.fullmatch(r"python[0-9.]*", name):
        at += words[1:2] == ["-u"]
        module = words[at + 1] if words[at : at + 1] == ["-m"] and len(words) > at + 1 else ""
        launcher = table("launchers").get(module, "python" if words[at : at + 1] != ["-c"] else None)
        at += 2 if module in table("launchers") else 0
    if module.startswith("bireme_runtime.") and "--" in words:
        at = words.index("--")
        launcher = "node" if "--as-is" in words[:at] else launcher
    at += (launcher == "accelerate") + (words[at : at + 1] == ["--"])
    if launcher is None or at >= len(words):
        return None
    options: list[str] = []
    owned: dict[str, str] = {}
    for option, value, count in options_of(words[at:]) if launcher != "python" else ():
        if re.fullmatch(table("options")[launcher], option) or re.match(table("unneeded"), value):
            owned[option] = value
        else:
            options += words[at : at + count]
        at += count
    return Program(launcher, list(words[at:]), "", options, owned)
