"""The manifest of a dataset: a header, and a line of JSON for each file, sorted by path."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bireme_runtime.dataset.lists import Lists
from bireme_runtime.process.errors import BiremeError

MANIFEST = "MANIFEST.jsonl"
_CHUNK = 1 << 20


class Corrupt(BiremeError):
    """Data does not have the size or the checksum that it should have."""


def write_manifest(
    folder: Path, rows: Iterable[Mapping[str, Any]], identity: str, lists: Lists
) -> dict[str, Any]:
    """Write the manifest of a folder, all of it or nothing; returns its header."""
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
