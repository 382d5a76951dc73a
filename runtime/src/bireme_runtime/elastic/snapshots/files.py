"""The snapshots that one worker keeps: files in memory (/dev/shm), which outlive each process of the pod.

A file is one part of a snapshot, mostly that of one rank. It gets its name when it is whole: a torn one has
none. Files that are of no use any more are written again, so that their memory is kept. Who writes or reads a
file holds a lock on it, which ends with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import uuid
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme_runtime.process.errors import BiremeError

_SPARE, _SUM = "spare.", ".sum"
_CHUNK = 16 << 20
ANY_SUM = -1
"""Stands for the checksum of a part of which nobody has computed it yet."""
# Linux: touch all pages at once. Python before 3.10 does not name it.
_POPULATE = 0x8000


class NoRoom(BiremeError):
    """The snapshots of this worker have used up their budget."""


class Torn(BiremeError):
    """A part is not there, or not as it was written."""


class Cut(Torn):
    """A connection ended before the part was there. Another attempt may bring it."""


@dataclass(frozen=True, order=True)
class Part:
    """Part ``part`` of ``parts`` of the snapshot of a step, made in the round with this token."""

    token: int
    step: int
    parts: int
    part: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.token}.{self.step}.{self.parts}.{self.part}"

    @classmethod
    def of(cls, name: str) -> Part | None:
        """The part in the file with this name; None for any other file."""
        numbers = name.split(".")
        return cls(*map(int, numbers)) if len(numbers) == 4 and all(map(str.isdigit, numbers)) else None

    @property
    def made(self) -> tuple[int, int]:
        """Its place in the order of snapshots: a newer round's is newer, whatever its step."""
        return self.token, self.step


class Buffer:
    """Memory that is being written. Without ``commit`` it is a spare file again."""

    def __init__(self, folder: Folder, path: Path, descriptor: int) -> None:
        self._folder, self._path, self.descriptor = folder, path, descriptor

    @property
    def memory(self) -> mmap.mmap:
        """The whole file, whose pages stay mapped for the next part that is written to it."""
        return self._folder.mapped(self.descriptor)

    def commit(self, part: Part) -> None:
        """It is whole."""
        self._folder.sum_path(part).unlink(missing_ok=True)
        self._path.rename(self._folder.path / part.name)


class Folder:
    """A folder of parts. All its files together have ``budget`` bytes at most (0: no limit)."""

    def __init__(self, path: Path, budget: int = 0) -> None:
        self.path, self.budget = path, budget
        # Mapped memory by inode: touching its pages anew would cost more than the copy.
        self._mapped: dict[int, mmap.mmap] = {}
        path.mkdir(parents=True, exist_ok=True)

    def parts(self) -> dict[Part, int]:
        """What is here, with sizes in bytes."""
        found = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                part = Part.of(entry.name)
                if part:
                    with contextlib.suppress(OSError):
                        found[part] = entry.stat().st_size
        return found

    def sum_path(self, part: Part) -> Path:
        """The file with what is known of a part: its checksum, and how many copies others have."""
        return self.path / (part.name + _SUM)

    def known(self, part: Part) -> dict[str, Any]:
        """What that file says; empty if there is none yet."""
        try:
            return dict(json.loads(self.sum_path(part).read_text()))
        except (OSError, ValueError):
            return {}

    def tell(self, part: Part, **facts: Any) -> None:
        """Write that file."""
        write(self.sum_path(part), facts)

    @contextlib.contextmanager
    def writing(self, size: int) -> Iterator[Buffer]:
        """So much memory to write. Raises NoRoom."""
        path, descriptor = self._claim(size)
        try:
            yield Buffer(self, path, descriptor)
        finally:
            # A map has a descriptor of its own, which shares the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def mapped(self, descriptor: int) -> mmap.mmap:
        """The memory of one of the files."""
        file = os.fstat(descriptor)
        memory = self._mapped.get(file.st_ino)
        if memory is None or len(memory) != file.st_size:
            here = {each.inode() for each in os.scandir(self.path)}
            self._mapped = {each: map for each, map in self._mapped.items() if each in here}
            memory = mmap.mmap(descriptor, file.st_size, mmap.MAP_SHARED | _POPULATE)
            self._mapped[file.st_ino] = memory
        return memory

    def read(self, part: Part) -> mmap.mmap:
        """The part, private to the caller. It is not written again while the map exists. Raises Torn."""
        path = self.path / part.name
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_ino == path.stat().st_ino:
                    return mmap.mmap(descriptor, 0, mmap.MAP_PRIVATE)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            raise Torn(f"it cannot be read: {error}") from None
        raise Torn("it is being written again")

    def free(self, part: Part) -> None:
        """The part is of no use any more."""
        with contextlib.suppress(FileNotFoundError):
            path = self.path / part.name
            path.rename(self.path / f"{_SPARE}{path.stat().st_ino}")
        self.sum_path(part).unlink(missing_ok=True)

    def keep_from(self, made: tuple[int, int]) -> None:
        """Free all parts that are older."""
        for part in self.parts():
            if part.made < made:
                self.free(part)

    def _claim(self, size: int) -> tuple[Path, int]:
        """Path and locked descriptor of a file of this size without a name: a spare one, or a new one."""
        spares = sorted(self.path.glob(f"{_SPARE}*"), key=lambda each: _size(each) != size)
        used = sum(map(_size, self.path.iterdir()))
        for spare in spares:
            if _size(spare) != size and (not self.budget or used + size <= self.budget):
                break
            descriptor = _lock(spare, os.O_RDWR)
            if descriptor is not None and _size(spare) == size:
                return spare, descriptor
            if descriptor is not None:
                used -= _size(spare)
                spare.unlink()
                os.close(descriptor)
        if self.budget and used + size > self.budget:
            mib = f"{used >> 20} MiB are in use and {size >> 20} MiB more are needed"
            raise NoRoom(f"{mib}, and the budget is {self.budget >> 20} MiB (recovery.snapshots.budgetMiB)")
        path = self.path / f"{_SPARE}{uuid.uuid4().hex}"
        descriptor = _lock(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        assert descriptor is not None
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            path.unlink()
            os.close(descriptor)
            raise NoRoom(f"{self.path} has no room for {size >> 20} MiB: {error.strerror}") from None
        return path, descriptor


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _lock(path: Path, flags: int) -> int | None:
    """A locked descriptor of the file; None while another one has it, or when it has another name now."""
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            return descriptor
    os.close(descriptor)
    return None


def verify(found: int, sum: int) -> None:
    """Raise Torn unless a part has this checksum. ANY_SUM fits all."""
    if sum not in (ANY_SUM, found):
        raise Torn("its checksum is another one")


def checksum(memory: mmap.mmap | memoryview | bytearray, value: int = 0) -> int:
    """The CRC-32, whose computation lets other threads run; ``value`` is that of what stands before."""
    view = memoryview(memory)
    for at in range(0, len(view), _CHUNK):
        value = zlib.crc32(view[at : at + _CHUNK], value)
    return value


def write(path: Path, facts: Mapping[str, Any]) -> None:
    """Write JSON to a file in memory, which is there as a whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps(facts))
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
