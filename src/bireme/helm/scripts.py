"""Programs of users as values of a job chart: a script, a folder with all that it needs, or a repository."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bireme.core.errors import BiremeError
from bireme.helm.values import files_below, read_text
from bireme.helm.yaml import Values, merge

_MOST_BYTES = 1_000_000
# Helm keeps a release in a Secret of 1 MiB, in Base64: its values, its objects and, with 270 kB, the chart.
_MOST_COMPRESSED = 250_000


def packed(given: str) -> Values:
    """The values with which a job runs ``given``: a script, a folder, or git+URL@REF.

    A folder starts with its train.py, main.py or only script. What is hidden and __pycache__ stay out. Raises
    BiremeError for what cannot run, and for more than a release holds.
    """
    if given.startswith("git+"):
        return _cloned(given)
    path = Path(given)
    if not path.exists():
        raise BiremeError(f"--script {path}: there is no such file or folder")
    if not path.is_dir() and path.suffix != ".py":
        raise BiremeError(f"--script {path}: it takes a .py file, a folder or git+URL; for others set args")
    sizes: dict[Path, int] = {}
    for file in files_below(path, r"\..*|__pycache__"):
        sizes[file] = file.stat().st_size
        if sum(sizes.values()) > _MOST_BYTES:
            break
    else:
        named = {file.relative_to(path).as_posix(): file for file in sizes}
        values = _folder(path, named) if path.is_dir() else {"script": read_text(path, "script")}
        if len(gzip.compress(json.dumps(values).encode())) <= _MOST_COMPRESSED:
            return values
    largest = max(sizes, key=sizes.__getitem__)
    raise BiremeError(
        f"--script {path}: a release holds {_MOST_BYTES // 1000} kB, and compressed "
        f"{_MOST_COMPRESSED // 1000} kB; put large files, e.g. {largest} with {sizes[largest] // 1000} kB, "
        "on a claim (claims), or all of it into an image (--image)"
    )


def applied(values: Values, program: Values, whole: bool = False) -> Values:
    """``values`` merged with ``program``. Where that has a script, files and repositories do not merge.

    Files of ``values`` stay beside a script without files, unless it is the ``whole`` program.
    """
    old, new = values.get("launch"), program.get("launch") or {}
    if "script" in program and isinstance(old, dict):
        gone = ({"git"} - new.keys()) | ({"files"} if whole else {"files"} & new.keys())
        values = {**values, "launch": {key: each for key, each in old.items() if key not in gone}}
    return merge(values, program)


def _folder(path: Path, files: Mapping[str, Path]) -> Values:
    modules = [name for name in files if name.endswith(".py")]
    scripts = [name for name in modules if "/" not in name]
    usual = [name for name in ("train.py", "main.py") if name in scripts]
    if not scripts:
        raise BiremeError(f"--script {path}: which file starts? There is no Python file (.py) at its top")
    if not usual and len(scripts) > 1:
        raise BiremeError(f"--script {path}: which file starts, {' or '.join(scripts)}? Call it train.py")
    start = (usual or scripts)[0]
    # It runs as train.py: only other modules look for it under a name of its own.
    left = {start} if start == "train.py" or len(modules) == 1 else set()
    return {
        "script": read_text(files[start], "script"),
        "launch": {"files": {name: _content(file) for name, file in files.items() if name not in left}},
    }


def _content(file: Path) -> str | dict[str, str]:
    """A text as it is; bytes, and a text with characters that YAML would change, in Base64."""
    content = file.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if all(each in "\t\n\r" or " " <= each < "\x7f" or each > "\x9f" for each in text):
        return text
    return {"base64": base64.b64encode(content).decode("ascii")}


def _cloned(given: str) -> Values:
    """The values with which a job clones and runs git+URL@REF. Raises BiremeError for what has another form,
    and for a branch or tag that the repository does not have.
    """
    found = re.fullmatch(r"git\+(https?://[^/@\s]+/[^@\s]+)(?:@([\w./-]+))?", given)
    if not found:
        raise BiremeError(
            f"--script {given}: it is git+https://HOST/PATH@REF, without a name or a password; a Secret has "
            "those (launch.git.existingSecret)"
        )
    url, ref = found[1], found[2] or ""
    return {"script": "", "launch": {"files": {}, "git": {"url": url, "ref": _commit(url, ref)}}}


def _commit(url: str, ref: str) -> str:
    """The commit at which ``ref`` is now, or ``ref`` where this machine may not ask."""
    if re.fullmatch("[0-9a-f]{40}", ref):
        return ref
    command = ["git", "ls-remote", "--", url, ref or "HEAD", f"{ref}^{{}}"]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ref
    if done.returncode:
        return ref
    there = {name: commit for commit, name in (line.split("\t") for line in done.stdout.splitlines())}
    for name in (f"refs/heads/{ref}", f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", ref or "HEAD"):
        if name in there:
            return there[name]
    raise BiremeError(f"--script: {url} has no branch or tag {ref}; a commit has all of its 40 digits")
