"""What a source of data is: a list of objects, which are read in ranges of bytes. A folder is one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from bireme_runtime.process.errors import TEMPORARY, BiremeError, Unreachable
from bireme_runtime.process.http import reason
from bireme_runtime.sources.checksums import Checksum

_CHUNK = 1 << 20
ATTEMPTS = 8
# With this begins the name of what a dataset at the root of a claim hides there.
HIDDEN = ".bireme."

_Answer = TypeVar("_Answer")


class SourceError(BiremeError):
    """The source is not as the settings describe it. Another attempt would fail too."""


class Changed(BiremeError):
    """An object is not the one that was listed. An attempt that lists again may succeed."""

    code = TEMPORARY


class Unwritable(BiremeError):
    """A file on the claim cannot be written: the node's fault, or the moment's."""

    code = TEMPORARY


@dataclass(frozen=True)
class Entry:
    """One object: its path below the source, its size in bytes, a version that changes with its content."""

    path: str
    size: int
    version: str
    key: str


@dataclass(frozen=True)
class Body:
    """A stream: `read(N)` returns up to N bytes, b"" at the end.

    `checksum` is of the whole object, None if not known.
    """

    read: Callable[[int], bytes]
    checksum: Checksum | None = None


class Source(Protocol):
    """A list of objects that can be read."""

    def entries(self) -> Iterator[Entry]:
        """All objects. Raises SourceError, Unreachable or CredentialsError."""

    def read(self, entry: Entry, start: int, end: int) -> AbstractContextManager[Body]:
        """The bytes from `start` up to but not including `end`, at least one.

        Raises as `entries` does, and Changed.
        """

    def checksums(self, entry: Entry) -> Iterator[Checksum]:
        """Checksums of which one must fit if there are any. Raises as `read` does."""
        return iter(())


def safe_path(path: str) -> str:
    """The path, unless a folder on a claim cannot have it. Raises SourceError."""
    # Without pathlib, here and wherever something is done for each file: it keeps each name for ever in
    # Python 3.12, and takes most of the time of a list.
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or path.startswith("/") or ".." in parts or parts[0].startswith(".bireme"):
        raise SourceError(f"{_named(path)} is not a path below a folder")
    if not path.isprintable() and any(each < " " or "\ud800" <= each <= "\udfff" for each in path):
        raise SourceError(f"{_named(path)} has characters that are no text: rename it")
    # Limits of Linux, less what the names of the folders above may need.
    if max(len(part.encode()) for part in parts) > 255 or len(path.encode()) > 3500:
        raise SourceError(f"{_named(path)} is longer than a file system allows: rename it")
    return "/".join(parts)


def _named(path: str) -> str:
    return f"the source has an object named {path[:300]!r}, which"


def files_below(
    folder: Path, below: str = "", is_wanted: Callable[[str], bool] = lambda _: True
) -> Iterator[str]:
    """The paths of all files in a folder and those below it, in no order. Links to folders are left out.

    What is not wanted is left out too, with all below it.
    """
    with os.scandir(f"{folder}/{below}") as found:
        for each in found:
            path = below + each.name
            if not is_wanted(path):
                continue
            if each.is_dir(follow_symlinks=False):
                yield from files_below(folder, f"{path}/", is_wanted)
            elif not (each.is_symlink() and os.path.isdir(each)):
                yield path


def some(entries: Iterator[Entry], without: str) -> Iterator[Entry]:
    """The entries. Raises SourceError with the sentence ``without`` where there is none."""
    first = next(entries, None)
    if first is None:
        raise SourceError(without)
    yield first
    yield from entries


def pieces(read: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    """Up to ``size`` bytes that `read` returns, in pieces."""
    while size > 0 and (piece := read(min(_CHUNK, size))):
        size -= len(piece)
        yield piece


def may_be_data(path: str) -> bool:
    """Whether it is neither what a dataset at a claim's root hides there nor what ext4 has in each root."""
    return path != "lost+found" and not path.startswith(HIDDEN)


class FolderSource(Source):
    """A folder of another claim, or one file there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, name: str) -> bool:
        """Whether the folder has this file or folder now."""
        return (self._folder / name).exists()

    def entries(self) -> Iterator[Entry]:
        try:
            mode = os.stat(self._folder).st_mode
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SourceError(f"{self._folder} does not exist: check the path of the source") from error
        if not stat.S_ISDIR(mode):
            yield _entry(str(self._folder), self._folder.name)
            return
        inside = f"{os.path.realpath(self._folder).rstrip('/')}/"
        for path in files_below(self._folder, is_wanted=may_be_data):
            file = f"{self._folder}/{path}"
            # Whoever writes to a claim must not choose what is read outside of it, such as a pod's token.
            if os.path.islink(file) and not os.path.realpath(file).startswith(inside):
                raise SourceError(
                    f"{file} is a link to {os.readlink(file)}, out of the source: put the file in its place"
                )
            yield _entry(file, path)

    @contextlib.contextmanager
    def read(self, entry: Entry, start: int, end: int) -> Iterator[Body]:
        try:
            with open(entry.key, "rb") as file:
                file.seek(start)
                yield Body(file.read)
        except OSError as error:
            raise Unreachable(f"{entry.key} cannot be read: {error}") from error


def _entry(file: str, path: str) -> Entry:
    try:
        found = os.stat(file)
    except OSError as error:
        if error.errno == errno.ELOOP or (error.errno == errno.ENOENT and os.path.islink(file)):
            raise SourceError(f"{file} is a link to {os.readlink(file)}, which is not there") from error
        if error.errno == errno.ENOENT:
            raise Changed(f"{file} has been deleted since it was listed") from error
        raise
    if not stat.S_ISREG(found.st_mode):
        raise SourceError(f"{file} is a pipe, a socket or a device, and has no content to copy: move it away")
    return Entry(safe_path(path), found.st_size, str(found.st_mtime_ns), file)


def shown(url: str) -> str:
    """A URL as a sentence may have it: without a password, and without the query, which may be one."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    if scheme in ("s3", "file", "rclone"):
        return url
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


def retry(act: Callable[[], _Answer]) -> _Answer:
    """The result of `act`, which is tried up to ATTEMPTS times while it raises Unreachable."""
    for attempt in range(1, ATTEMPTS):
        try:
            return act()
        except Unreachable:
            pause(attempt)
    return act()


def pause(attempt: int) -> None:
    """Wait after a failed attempt, longer after each."""
    time.sleep(min(0.25 * 2**attempt, 15))


@dataclass(frozen=True)
class Part:
    """`size` bytes of a file from `start` on."""

    file: str | Path
    start: int
    size: int

    @classmethod
    def whole(cls, file: str | Path) -> Part:
        """All of a file."""
        return cls(file, 0, os.stat(file).st_size)

    def chunks(self) -> Iterator[bytes]:
        """The bytes, in chunks. Raises OSError."""
        with open(self.file, "rb") as content:
            content.seek(self.start)
            yield from pieces(content.read, self.size)

    def digest(self, algorithm: str) -> str:
        """The digest in hex, by an algorithm of hashlib. Raises OSError."""
        digest = hashlib.new(algorithm, usedforsecurity=False)
        for chunk in self.chunks():
            digest.update(chunk)
        return digest.hexdigest()


def sums(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each path in the output of sha256sum, and its digest. Raises SourceError."""
    for line in filter(None, map(str.strip, lines)):
        digest, _, path = line.partition(" ")
        if len(digest) != 64 or not path.strip():
            raise SourceError(f"{line[:80]!r} is not a line of sha256sum")
        yield path.strip().lstrip("*").removeprefix("./"), digest.lower()


def fetch(
    source: Source, entry: Entry, start: int, end: int, sink: Callable[[bytes], object]
) -> Checksum | None:
    """Read a range into `sink`, also after interruptions; returns the checksum of the object, if known."""
    at, attempt = start, 0
    while at < end:
        try:
            with source.read(entry, at, end) as body:
                for chunk in pieces(body.read, end - at):
                    _write_to(sink, chunk)
                    at, attempt = at + len(chunk), 0
                if at < end:
                    raise Unreachable(
                        f"{entry.key}: the connection ended after {at - start} of {end - start} bytes"
                    )
                return body.checksum
        except Unreachable:
            attempt += 1
            if attempt == ATTEMPTS:
                raise
            pause(attempt)
    return None


def _write_to(sink: Callable[[bytes], object], chunk: bytes) -> None:
    try:
        sink(chunk)
    except OSError as error:
        raise Unwritable(f"the claim cannot be written: {reason(error)}") from error
