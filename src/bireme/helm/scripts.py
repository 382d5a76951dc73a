"""Programs of users as values of a job chart: a script, or a folder with all that it needs."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from bireme.core.errors import BiremeError
from bireme.helm.values import read_text
from bireme.helm.yaml import Values

_MOST_BYTES = 1_000_000
# Helm keeps a release in a Secret of 1 MiB, in Base64: its values, its objects and, with 270 kB, the chart.
_MOST_COMPRESSED = 250_000


def packed(path: Path) -> Values:
    """The values with which a job runs ``path``: ``script``, and for a folder ``launch.files``.

    A folder starts with its train.py, main.py or only script. What is hidden and __pycache__ stay out. Raises
    BiremeError for what cannot run, and for more than a release holds.
    """
    if path.is_dir():
        files = _bounded(path, ((each.relative_to(path).as_posix(), each) for each in _files(path)))
        values = _folder(path, files)
    elif not path.exists():
        raise BiremeError(f"--script {path}: there is no such file or folder")
    elif path.suffix != ".py":
        raise BiremeError(
            f"--script {path}: it takes a Python file (.py) or a folder; for others set args or command"
        )
    else:
        files = _bounded(path, [(path.name, path)])
        values = {"script": read_text(path, "script")}
    if len(gzip.compress(json.dumps(values).encode())) > _MOST_COMPRESSED:
        raise _too_large(path, files)
    return values


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


def _bounded(path: Path, found: Iterable[tuple[str, Path]]) -> Mapping[str, Path]:
    """``found`` as a mapping, which is not read on when it is too much."""
    files: dict[str, Path] = {}
    size = 0
    for name, file in found:
        files[name] = file
        size += file.stat().st_size
        if size > _MOST_BYTES:
            raise _too_large(path, files)
    return files


def _too_large(path: Path, files: Mapping[str, Path]) -> BiremeError:
    size, name = max((file.stat().st_size, name) for name, file in files.items())
    return BiremeError(
        f"--script {path}: a release holds {_MOST_BYTES // 1000} kB, and compressed "
        f"{_MOST_COMPRESSED // 1000} kB; put large files, such as {name} with {size // 1000} kB, on a claim "
        "(claims), or all of it into an image (--image)"
    )


def _files(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    real = folder.resolve()
    if real in above:
        raise BiremeError(f"--script: {folder} links back to a folder it lies in; remove the link")
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from _files(path, above | {real})
        elif path.is_file() or path.is_symlink():
            yield path
