"""Copies the objects of a list into the staging folder, in threads and in parts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import wait
from pathlib import Path

from bireme_runtime.dataset.journal import EarlierCopies, Journal
from bireme_runtime.dataset.listing import Item, Listing
from bireme_runtime.dataset.lists import Lists, joined
from bireme_runtime.dataset.manifest import Corrupt, changed_at, size_of
from bireme_runtime.dataset.settings import StagingSettings
from bireme_runtime.process.disk import write_whole
from bireme_runtime.process.log import Say
from bireme_runtime.process.threads import in_thread
from bireme_runtime.sources.checksums import Checksum, compute, digest_of
from bireme_runtime.sources.source import SourceError, fetch

_PROGRESS_SECONDS = 10.0


class Copier:
    """Copies items into the staging folder, in threads. The first error ends all of them."""

    def __init__(self, settings: StagingSettings, journal: Journal, say: Say) -> None:
        self._settings, self._journal, self._say = settings, journal, say
        self._lock, self._lock_of_tasks = threading.Lock(), threading.Lock()
        self._error: BaseException | None = None
        self._bytes = self._done = self._copied = self._unchecked = 0
        self._open_parts: dict[str, int] = {}
        self._wrong_before: set[str] = set()
        self._again: deque[Callable[[], None]] = deque()

    def run(self, listing: Listing, index: int, lists: Lists) -> None:
        """Copy what is missing of a share, and note that it is complete. Raises a thread's first error."""
        self._clear(listing, lists)
        workers = self._settings.workers
        files = total = 0
        for _, item in listing.share(index, workers):
            files, total = files + 1, total + item.entry.size
        self._bytes = self._done = 0
        tasks = self._tasks(joined(listing.share(index, workers), self._journal.past(lists)))
        started = time.monotonic()
        working = [in_thread(lambda: self._work(tasks)) for _ in range(self._settings.parallel)]
        while wait(working, _PROGRESS_SECONDS).not_done:
            self._report(files, total, time.monotonic() - started)
        if self._error is not None:
            raise self._error
        self._report(files, total, time.monotonic() - started)
        if self._unchecked:
            self._say(
                f"of {self._unchecked} files the source has no checksum that can be computed here: "
                "their sizes are compared"
            )
        share = {"identity": listing.identity, "files": listing.files, "bytes": listing.bytes}
        write_whole(self._settings.share(index), json.dumps(share))
        self._say(f"share {index + 1} of {workers} is complete; {self._copied} bytes were copied now")

    def _report(self, files: int, total: int, seconds: float) -> None:
        rate = self._copied / max(seconds, 0.001) / 2**20
        self._say(
            f"{self._done} of {files} files, {self._bytes / 2**20:.1f} of {total / 2**20:.1f} MiB, "
            f"{rate:.1f} MiB/s"
        )

    def _tasks(
        self, items: Iterable[tuple[str, Item | None, EarlierCopies | None]]
    ) -> Iterator[Callable[[], None]]:
        for _, item, found in items:
            past = found or EarlierCopies()
            if item is None:
                continue
            if self._is_here(item, past):
                with self._lock:
                    self._done, self._bytes = self._done + 1, self._bytes + item.entry.size
            else:
                yield from self._copies(item, past)

    def _copies(self, item: Item, past: EarlierCopies) -> Iterator[Callable[[], None]]:
        # Of a file without a version, two parts may be of two.
        if item.entry.size <= self._settings.part_bytes or not item.entry.version:
            yield lambda: self._whole(item)
        else:
            yield from self._in_parts(item, past)

    def _work(self, tasks: Iterator[Callable[[], None]]) -> None:
        while self._error is None:
            try:
                with self._lock_of_tasks:
                    task = self._again.popleft() if self._again else next(tasks, None)
                if task is None:
                    return
                task()
            except BaseException as error:
                self._error = self._error or error

    def _is_here(self, item: Item, past: EarlierCopies) -> bool:
        record = past.file
        if record is None or (record["version"], record["size"]) != (item.entry.version, item.entry.size):
            return False
        file = self._settings.staged(item.path)
        # The script of an earlier attempt may have changed the file; it must start from the original again.
        is_changed = bool(self._settings.prepare) and record.get("changed") != changed_at(file)
        return size_of(file) == item.entry.size and not is_changed

    @property
    def _parts(self) -> Path:
        return self._settings.state / "parts"

    def _clear(self, listing: Listing, lists: Lists) -> None:
        """Delete this index's unfinished files, except those of objects that the sources still have."""
        self._parts.mkdir(parents=True, exist_ok=True)
        others = {str(index) for index in range(self._settings.workers)} - {str(self._settings.index)}
        left = {each.name for each in self._parts.iterdir() if each.name.partition("-")[0] not in others}
        if left:
            for _, item, past in joined(listing.items(), self._journal.past(lists)):
                if item is not None and past is not None:
                    left -= past.unfinished(item.entry.version).keys()
        for name in left:
            (self._parts / name).unlink(missing_ok=True)

    def _new(self) -> str:
        # No name comes twice: the journal may still have parts of a file that was finished or deleted.
        return f"{self._parts}/{self._settings.index}-{uuid.uuid4().hex}"

    def _whole(self, item: Item) -> None:
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        unfinished = self._new()
        with open(unfinished, "wb") as file:

            def take(chunk: bytes) -> None:
                sha256.update(chunk)
                md5.update(chunk)
                file.write(chunk)
                self._count(len(chunk))

            expected = fetch(item.source, item.entry, 0, item.entry.size, take)
            # The journal must not promise what a loss of power could take back.
            file.flush()
            os.fsync(file.fileno())
        found = {"sha256": sha256.digest(), "md5": md5.digest()}
        with self._once_more(item, unfinished):
            if expected is None or expected.algorithm not in found:
                checksums = [expected] if expected else item.checksums()
                self._check(item, unfinished, checksums, sha256.hexdigest())
            elif found[expected.algorithm] != expected.value:
                raise _wrong_checksum(item, expected, found[expected.algorithm])
            self._finish(item, unfinished, sha256.hexdigest())

    def _in_parts(self, item: Item, past: EarlierCopies) -> Iterator[Callable[[], None]]:
        size, step = item.entry.size, self._settings.part_bytes
        begun = {f"{self._parts}/{name}": of for name, of in past.unfinished(item.entry.version).items()}
        usable = (file for file in begun if size_of(file) == size)
        unfinished = next(usable, None) or self._new()
        done = begun.get(unfinished, set())
        if unfinished not in begun:
            with open(unfinished, "wb") as file:
                file.truncate(size)
        starts = range(0, size, step)
        missing = [start for start in starts if start not in done]
        with self._lock:
            self._bytes += sum(min(step, size - start) for start in starts if start in done)
            self._open_parts[item.path] = max(len(missing), 1)
        for start in missing or [size]:
            yield lambda start=start: self._part(item, unfinished, start, min(start + step, size))  # type: ignore[misc]

    def _part(self, item: Item, unfinished: str, start: int, end: int) -> None:
        with open(unfinished, "r+b") as file:
            file.seek(start)

            def take(chunk: bytes) -> None:
                file.write(chunk)
                self._count(len(chunk))

            fetch(item.source, item.entry, start, end, take)
            file.flush()
            os.fsync(file.fileno())
        into = os.path.basename(unfinished)
        self._journal.add(path=item.path, version=item.entry.version, part=start, into=into)
        with self._lock:
            self._open_parts[item.path] -= 1
            is_last = self._open_parts[item.path] == 0
        if is_last:
            del self._open_parts[item.path]
            with self._once_more(item, unfinished):
                self._finish(item, unfinished, self._check(item, unfinished, item.checksums()))

    @contextlib.contextmanager
    def _once_more(self, item: Item, unfinished: str) -> Iterator[None]:
        """Delete a copy that is corrupt, and copy the item again, from its beginning, unless it was before.

        The network may have corrupted it, or an earlier attempt that was killed before it compared checksums.
        """
        try:
            yield
        except Corrupt as error:
            # No attempt may take it for its own parts.
            Path(unfinished).unlink(missing_ok=True)
            with self._lock:
                if item.path in self._wrong_before:
                    raise
                self._wrong_before.add(item.path)
                self._bytes -= item.entry.size
            self._say(f"{error}: copying it again")
            again = list(self._copies(item, EarlierCopies()))
            with self._lock_of_tasks:
                self._again.extend(again)

    def _check(self, item: Item, unfinished: str, allowed: Iterable[Checksum], known_sha256: str = "") -> str:
        """The sha256 of a copied file. Raises Corrupt if the source has checksums and none of them fits."""
        sha256 = digest_of("sha256")
        first, wrong = ([] if known_sha256 else [sha256]), None
        for checksum in allowed:
            found = checksum.new()
            compute(unfinished, [*first, found])
            if found.digest() == checksum.value:
                break
            first, wrong = [], _wrong_checksum(item, checksum, found.digest())
        else:
            if wrong is not None:
                raise wrong
            if first:
                compute(unfinished, first)
            with self._lock:
                self._unchecked += not item.sha256
        return known_sha256 or sha256.digest().hex()

    def _finish(self, item: Item, unfinished: str, sha256: str) -> None:
        size = size_of(unfinished)
        if size != item.entry.size:
            raise Corrupt(f"{item.path} has {size} bytes, its source says {item.entry.size}")
        if item.sha256 and sha256 != item.sha256:
            raise Corrupt(f"{item.path} has sha256 {sha256}, it should have {item.sha256}")
        file = self._settings.staged(item.path)
        try:
            os.makedirs(os.path.dirname(file), exist_ok=True)
            os.replace(unfinished, file)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise SourceError(
                f"{item.path}: a part of this path is a file and a folder too; rename one"
            ) from error
        size, changed = item.entry.size, {"changed": changed_at(file)} if self._settings.prepare else {}
        self._journal.add(path=item.path, version=item.entry.version, size=size, sha256=sha256, **changed)
        with self._lock:
            self._done += 1

    def _count(self, number: int) -> None:
        with self._lock:
            self._bytes, self._copied = self._bytes + number, self._copied + number


def _wrong_checksum(item: Item, expected: Checksum, found: bytes) -> Corrupt:
    return Corrupt(f"{item.path} has {expected.name} {found.hex()}, its source says {expected.value.hex()}")
