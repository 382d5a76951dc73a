"""What has to be on the disk, so that a loss of power does not take it back."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from pathlib import Path


def to_disk(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def all_to_disk(path: Path) -> None:
    """Return when everything on the file system of this path is on the disk.

    Other file systems of the node are not waited for: one of them may be cut off. Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: str | bytes | memoryview | mmap.mmap) -> None:
    """Write a file in one step: it exists completely, on the disk, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        to_disk(partial)
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    to_disk(path.parent)
