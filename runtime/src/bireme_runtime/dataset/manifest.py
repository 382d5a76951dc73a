"""The files of a dataset, and its manifest: a header, and a line of JSON for each file, sorted by path."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bireme_runtime.dataset.lists import Lists, in_order
from bireme_runtime.process.errors import BiremeError
from bireme_runtime.sources.source import Part, files_below

MANIFEST = "MANIFEST.jsonl"
STATE = ".bireme"
"""The folder of journals and unfinished files, while a dataset is staged."""
_CHUNK = 1 << 20


class Corrupt(BiremeError):
    """Data does not have the size or the checksum that it should have."""


def write_manifest(
    folder: Path, rows: Iterable[Mapping[str, Any]], identity: str, lists: Lists
) -> dict[str, Any]:
    """Write the manifest of a folder, all of it or nothing. Returns its header."""
    body, digest = lists.file(), hashlib.sha256()
    files = size = 0
    with body.open("wb") as out:
        for row in rows:
            line = f"{json.dumps(row)}\n".encode()
            out.write(line)
            digest.update(line)
            files, size = files + 1, size + row["bytes"]
    header = {"files": files, "bytes": size, "sha256": digest.hexdigest(), "identity": identity}
    unfinished = lists.file()
    with unfinished.open("wb") as out, body.open("rb") as lines:
        out.write(f"{json.dumps(header)}\n".encode())
        shutil.copyfileobj(lines, out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(unfinished, folder / MANIFEST)
    return header


def read_header(folder: Path) -> dict[str, Any] | None:
    """The first line of a manifest: files, bytes, sha256 of the other lines. None if there is no manifest."""
    try:
        with (folder / MANIFEST).open(encoding="utf-8") as file:
            header = json.loads(file.readline())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return header if isinstance(header, dict) and {"files", "bytes", "identity"} <= header.keys() else None


class Manifest:
    """A manifest that is as it was written. Raises Corrupt if it was changed or has another format."""

    def __init__(self, file: Path, name: str) -> None:
        self._file, self._name, digest = file, name, hashlib.sha256()
        try:
            with file.open("rb") as lines:
                self.header: dict[str, Any] = json.loads(lines.readline())
                wanted, *_ = (self.header[key] for key in ("sha256", "files", "bytes"))
                while chunk := lines.read(_CHUNK):
                    digest.update(chunk)
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{name} is not a manifest of charts/dataset, which reserves this name") from error
        if digest.hexdigest() != wanted:
            raise Corrupt(f"{name} has been changed since it was written")

    def rows(self) -> Iterator[dict[str, Any]]:
        """A file each: its path, its bytes and its sha256."""
        with self._file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if number == 1:
                    continue
                try:
                    row = json.loads(line)
                    _ = str.encode(row["path"]), int(row["bytes"]), str.encode(row["sha256"])
                except (ValueError, KeyError, TypeError) as error:
                    raise Corrupt(f"line {number} of {self._name} has no path, bytes and sha256") from error
                yield row


def manifest_of(folder: Path) -> Manifest:
    """The manifest of a folder. Raises Corrupt, also if there is none, and OSError."""
    try:
        return Manifest(folder / MANIFEST, str(folder / MANIFEST))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Corrupt(f"{folder} is not a dataset: it has no {MANIFEST}") from error


def paths_in(folder: Path) -> Iterator[str]:
    """Paths of all files of a dataset, except the manifest and the folder with the journals."""
    return (path for path in files_below(folder) if path != MANIFEST and not path.startswith(f"{STATE}/"))


def size_of(file: str) -> int | None:
    """The size of a file; None if there is none."""
    found = _stat(file)
    return found.st_size if found and stat.S_ISREG(found.st_mode) else None


def changed_at(file: str) -> int | None:
    """When a file was last written, in nanoseconds; None if there is none."""
    found = _stat(file)
    return found.st_mtime_ns if found else None


def _stat(file: str) -> os.stat_result | None:
    try:
        return os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None


def record(file: Path) -> dict[str, Any] | None:
    """The JSON in a file; None where there is none, or a part of it."""
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found


def verify(folder: Path, is_quick: bool = False, parallel: int = 16) -> str:
    """Compare a dataset with its manifest, only sizes if `is_quick`. A file must only be there.

    Returns a sentence. Raises Corrupt.
    """
    if not folder.exists():
        raise Corrupt(f"{folder} is not there")
    if not folder.is_dir():
        return f"{folder} is there: {folder.stat().st_size} bytes"
    manifest = manifest_of(folder)
    some: list[str] = []
    wrong = 0
    with ThreadPoolExecutor(parallel) as pool:
        for problem in in_order(pool, lambda row: _wrong(folder, row, is_quick), manifest.rows()):
            if problem:
                wrong += 1
                some += [problem] if wrong <= 5 else []
    if wrong:
        raise Corrupt("; ".join(some) + (f" and {wrong - 5} more" if wrong > 5 else ""))
    header, checked = manifest.header, "sizes" if is_quick else "sha256"
    return (
        f"{folder} is complete: {header['files']} files, {header['bytes']} bytes, {checked} as in {MANIFEST}"
    )


def _wrong(folder: Path, row: Mapping[str, Any], is_quick: bool) -> str:
    file = f"{folder}/{row['path']}"
    size = size_of(file)
    if size is None:
        return f"{row['path']} is missing"
    if size != row["bytes"]:
        return f"{row['path']} has {size} bytes instead of {row['bytes']}"
    if not is_quick and Part.whole(file).digest("sha256") != row["sha256"]:
        return f"{row['path']} has another sha256 than in {MANIFEST}"
    return ""
