"""Sorted lists of any length in little memory: what does not fit goes into files, which are merged.

A dataset may have ten million files, and a container that copies it 300 MiB.
"""

from __future__ import annotations

import heapq
import itertools
import json
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

_Given = TypeVar("_Given")
_Result = TypeVar("_Result")
_Left = TypeVar("_Left")
_Right = TypeVar("_Right")

Row = tuple[str, list[Any]]
"""A path, which has no control characters, and what is known of it, as JSON has it."""


class Lists:
    """A folder for lists, made when the first one needs it and deleted on leaving."""

    def __init__(self, folder: Path, in_memory: int = 50_000) -> None:
        self.folder = folder
        self._in_memory = in_memory
        self._numbers = itertools.count()

    def __enter__(self) -> Lists:
        shutil.rmtree(self.folder, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def file(self) -> Path:
        """A new name in the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / str(next(self._numbers))

    def sorted(self, rows: Iterable[Row]) -> SortedRows:
        """The rows, sorted by path; those of one path stay in their order."""
        # A tab is less than every sign of a path, so lines are in the order of their paths.
        lines = (f"{path}\t{number:012d}{json.dumps(row)}\n" for number, (path, row) in enumerate(rows))
        files: list[Path] = []
        while True:
            some = sorted(itertools.islice(lines, self._in_memory))
            if not files and len(some) < self._in_memory:
                return SortedRows(some, None)
            if not some:
                break
            files.append(self._write(some))
        opened = [_lines(file) for file in files]
        merged = self._write(heapq.merge(*opened))
        for file in files:
            file.unlink()
        return SortedRows([], merged)

    def _write(self, lines: Iterable[str]) -> Path:
        file = self.file()
        with file.open("w", encoding="utf-8", newline="\n") as out:
            out.writelines(lines)
        return file


class SortedRows:
    """Rows that can be read any number of times."""

    def __init__(self, lines: list[str], file: Path | None) -> None:
        self._lines, self._file = lines, file

    def __iter__(self) -> Iterator[Row]:
        for line in self._lines if self._file is None else _lines(self._file):
            path, _, rest = line.partition("\t")
            yield path, json.loads(rest[12:])

    def last(self) -> Iterator[Row]:
        """The last row of each path."""
        for _, rows in itertools.groupby(self, key=lambda row: row[0]):
            yield deque(rows, maxlen=1)[0]


def _lines(file: Path) -> Iterator[str]:
    with file.open(encoding="utf-8", newline="\n") as lines:
        yield from lines


def joined(
    left: Iterable[tuple[str, _Left]], right: Iterable[tuple[str, _Right]]
) -> Iterator[tuple[str, _Left | None, _Right | None]]:
    """All paths of two lists, each sorted and without repeats, with what each list says of them."""
    ones, others = iter(left), iter(right)
    one, other = next(ones, None), next(others, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0] < other[0]):
            assert one is not None
            yield one[0], one[1], None
            one = next(ones, None)
        elif one is None or other[0] < one[0]:
            yield other[0], None, other[1]
            other = next(others, None)
        else:
            yield one[0], one[1], other[1]
            one, other = next(ones, None), next(others, None)


def in_order(
    pool: ThreadPoolExecutor, act: Callable[[_Given], _Result], given: Iterable[_Given], window: int = 256
) -> Iterator[_Result]:
    """As `pool.map`, which would queue all of `given` at once."""
    waiting: deque[Future[_Result]] = deque()
    try:
        for each in given:
            waiting.append(pool.submit(act, each))
            if len(waiting) >= window:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
