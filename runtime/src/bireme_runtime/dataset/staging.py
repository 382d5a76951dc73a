"""Copy a dataset onto a claim so that readers see all of it or nothing, and verify it.

`stage` copies all objects of the sources into a hidden folder beside the target, in parallel and in parts. It
keeps a journal there, so that a second attempt continues where the first one ended. `publish` splits files
into shards if the settings ask for that, writes the manifest and renames the folder to the target. `verify`
compares a dataset with its manifest. The settings are the JSON in BIREME_DATASET, which the charts write.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import stat
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bireme_runtime.dataset import archives, root
from bireme_runtime.dataset.lists import Lists, Row, SortedRows, in_order, joined
from bireme_runtime.dataset.manifest import (
    MANIFEST,
    Corrupt,
    Manifest,
    manifest_of,
    read_header,
    write_manifest,
)
from bireme_runtime.process import environment
from bireme_runtime.process.disk import all_to_disk, to_disk, write_whole
from bireme_runtime.process.errors import BiremeError, Unreachable
from bireme_runtime.process.http import reason
from bireme_runtime.process.log import Say
from bireme_runtime.sources.checksums import Checksum, compute, digest_of
from bireme_runtime.sources.places import env_of, open_source
from bireme_runtime.sources.source import (
    ATTEMPTS,
    HIDDEN,
    Changed,
    Entry,
    FolderSource,
    Part,
    Source,
    SourceError,
    files_below,
    pause,
    pieces,
    safe_path,
    shown,
    sums,
)
from bireme_runtime.sources.web import S3Source

_STATE = ".bireme"
_STAGING = "staging"
_UNPACKED = "unpacked.json"
_PROGRESS_SECONDS = 10.0


class Unwritable(BiremeError):
    """A file on the claim cannot be written: the node's fault, or the moment's."""


@dataclass(frozen=True)
class Shards:
    """`file` is to be split, between lines, into `count` files FILE-00000, FILE-00001, …"""

    file: str
    count: int

    @property
    def names(self) -> list[str]:
        """The names of the shards."""
        return [f"{self.file}-{number:05d}" for number in range(self.count)]


@dataclass(frozen=True)
class StagingSettings:
    """What to stage and where. `sources` have the keys url, path, sha256, sums and extract.

    With `is_root`, the target is the root of a claim, which nothing can be renamed to (see root.py).

    `prepare` identifies the script that runs between `stage` and `publish`. With `is_held`, a process of this
    pod holds the lock from the first step to the last. `upload` is a URL in S3 to which the dataset is
    uploaded as well.
    """

    target: Path
    sources: tuple[Mapping[str, Any], ...]
    shards: tuple[Shards, ...] = ()
    prepare: str = ""
    parallel: int = 16
    part_bytes: int = 64 << 20
    replace: bool = False
    upload: str = ""
    workers: int = 1
    index: int = 0
    is_root: bool = False
    is_held: bool = False

    def _hidden(self, name: str) -> Path:
        if self.is_root:
            return self.target / f"{HIDDEN}{name}"
        return self.target.parent / f".{self.target.name}.{name}"

    @property
    def staging(self) -> Path:
        """The folder that becomes the target when it is renamed, so it is on the same file system."""
        return self._hidden(_STAGING)

    @property
    def old(self) -> Path:
        """Where the dataset goes that is replaced."""
        return self._hidden("old")

    @property
    def gone(self) -> Path:
        """Where the dataset is while it is deleted."""
        return self._hidden("gone")

    @property
    def lock(self) -> Path:
        """The file that a process of this index locks while it copies or publishes."""
        return self._hidden(f"lock-{self.index}")

    def lists(self) -> Lists:
        """Where lists go that do not fit into memory."""
        return Lists(self._hidden(f"lists-{self.index}"))

    def staged(self, path: str) -> str:
        """Where a file of the dataset is until it is published."""
        return f"{self.staging}/{path}"

    @property
    def state(self) -> Path:
        """The folder of journals and unfinished files."""
        return self.staging / _STATE


def settings_from(env: Mapping[str, str]) -> StagingSettings:
    """The settings of a pod. Raises SourceError if they cannot be read."""
    try:
        values = json.loads(env["BIREME_DATASET"])
        workers = int(values.get("workers", 1))
        return StagingSettings(
            target=Path(values["target"]),
            sources=tuple(values["sources"]),
            shards=tuple(Shards(each["file"], int(each["count"])) for each in values.get("shards", ())),
            prepare=values.get("prepare", ""),
            parallel=int(values.get("parallel", 16)),
            part_bytes=int(values.get("partMiB", 64)) << 20,
            replace=bool(values.get("replace")),
            upload=values.get("upload", ""),
            workers=workers,
            is_root=bool(values.get("root")),
            is_held=bool(values.get("held")),
            # Without workers, each pod copies everything, also the pods of a training Indexed Job.
            index=environment.integer(env, "JOB_COMPLETION_INDEX", 0) if workers > 1 else 0,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(f"BIREME_DATASET cannot be read: {type(error).__name__} {error}") from error


@contextlib.contextmanager
def alone(settings: StagingSettings, say: Say) -> Iterator[None]:
    """Wait until no other process copies or publishes this dataset as this index: two would mix their files.

    Where nothing can be locked, nobody is waited for.
    """
    path, waits = settings.lock, False
    while True:
        try:
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("w")
        except OSError:
            # A claim that is read-only, perhaps; what has to write there says so.
            yield
            return
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    continue
            except FileNotFoundError:
                # Whoever had it has just deleted it.
                continue
            except BlockingIOError:
                if not waits:
                    say(f"waiting for another process that copies to {settings.target}: it has locked {path}")
                waits = True
                time.sleep(1)
                continue
            except OSError as error:
                say(f"{path} cannot be locked ({error.strerror}): no other process may copy this dataset now")
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


# --- what is to be copied ---


@dataclass(frozen=True)
class Item:
    """An object with its path below the target, its source and its digest, if known."""

    path: str
    entry: Entry
    source: Source
    sha256: str = ""

    def checksums(self) -> Iterator[Checksum]:
        """What to ask the source for: nothing if there is a digest, which says more."""
        return iter(()) if self.sha256 else self.source.checksums(self.entry)


@dataclass(frozen=True)
class Listing:
    """All objects of all sources. `identity` is a digest of everything that determines the dataset."""

    sources: Sequence[Source]
    rows: SortedRows
    files: int
    bytes: int
    identity: str

    def items(self) -> Iterator[tuple[str, Item]]:
        """All objects, sorted by path."""
        for path, row in self.rows:
            number, sha256, *entry = row
            yield path, Item(path, Entry(*entry), self.sources[number], sha256)

    def share(self, index: int, workers: int) -> Iterator[tuple[str, Item]]:
        """Those that the worker `index` copies."""
        return itertools.islice(self.items(), index, None, workers)


def listed(settings: StagingSettings, env: Mapping[str, str], lists: Lists) -> Listing:
    """What the sources have. Raises SourceError if two have the same path, and as sources do."""
    sources = [
        open_source(wanted["url"], env_of(env, number)) for number, wanted in enumerate(settings.sources)
    ]
    rows = lists.sorted(
        (path, [number, sha256, entry.path, entry.size, entry.version, entry.key])
        for number, wanted in enumerate(settings.sources)
        for path, sha256, entry in _of_source(sources[number], wanted, lists)
    )
    digest = hashlib.sha256()
    digest.update(
        json.dumps([settings.prepare, [[each.file, each.count] for each in settings.shards]]).encode()
    )
    if unpacked := [number for number, wanted in enumerate(settings.sources) if wanted.get("extract")]:
        digest.update(f"extract {unpacked}".encode())
    files = size = 0
    before: list[str] = []
    last: tuple[int, str] = (0, "")
    for path, (number, sha256, _, count, version, key) in rows:
        # What begins with a path comes right after it, so these are all that could be folders of this one.
        while before and not path.startswith(before[-1]):
            before.pop()
        if before and before[-1] == path:
            if last[0] == number:
                raise SourceError(f"{path} comes from {last[1]} and from {key}: rename one of the two")
            raise SourceError(f"{path} comes from two sources: give one of them a path of its own")
        for each in before:
            if path.startswith(f"{each}/"):
                raise SourceError(f"{each} is a file and a folder, because of {path}: rename one of them")
        before.append(path)
        last = number, key
        digest.update(f"\n{path}\0{count}\0{version}\0{sha256}".encode())
        files, size = files + 1, size + count
    return Listing(sources, rows, files, size, digest.hexdigest())


def _of_source(source: Source, wanted: Mapping[str, str], lists: Lists) -> Iterator[tuple[str, str, Entry]]:
    """Path, digest and entry of each object that is data."""
    url, folder = shown(wanted["url"]), f"{wanted['path'].strip('/')}/" if wanted.get("path") else ""
    list_name = wanted.get("sums") or MANIFEST
    # Their digests are in these two files of the source.
    files: dict[str, Entry] = {}

    def rows() -> Iterator[Row]:
        for number, entry in enumerate(source.entries()):
            if entry.path in (wanted.get("sums"), MANIFEST):
                files[entry.path] = entry
            if wanted.get("sha256") and number:
                raise SourceError(f"sha256 is of one file, and {url} has more: use sums")
            # The source may be a published dataset. The copy gets a manifest of its own.
            if entry.path != MANIFEST:
                yield entry.path, [entry.size, entry.version, entry.key]

    entries = lists.sorted(rows())
    if isinstance(source, FolderSource) and MANIFEST not in files and source.has(f"{HIDDEN}{_STAGING}"):
        raise Changed(f"{url} has no complete dataset yet")
    has_digests = bool(wanted.get("sums")) or MANIFEST in files
    digests = lists.sorted(_digests(source, files, wanted, lists))
    for path, found, known in joined(entries, digests.last()):
        if found is None:
            if known is not None and known[1] == MANIFEST:
                raise Corrupt(f"{url} lacks {path}, which its {MANIFEST} lists")
            continue
        if has_digests and known is None and path != list_name:
            raise SourceError(f"{list_name} of {url} has no line for {path}")
        sha256 = known[0] if known else wanted.get("sha256", "")
        yield safe_path(folder + path), sha256, Entry(path, *found)


def _digests(
    source: Source, files: Mapping[str, Entry], wanted: Mapping[str, str], lists: Lists
) -> Iterator[Row]:
    """The digests in the source's own manifest, and those in `sums`, which count more."""
    url = shown(wanted["url"])
    if MANIFEST in files:
        manifest = Manifest(_download(source, files[MANIFEST], lists), f"{MANIFEST} of {url}")
        for row in manifest.rows():
            yield safe_path(row["path"]), [row["sha256"], MANIFEST]
    if wanted.get("sums"):
        if wanted["sums"] not in files:
            raise SourceError(f"{url} has no {wanted['sums']}, which should contain its checksums")
        text = _download(source, files[wanted["sums"]], lists)
        try:
            with text.open(encoding="utf-8-sig") as lines:
                for path, digest in sums(lines):
                    if "\t" not in path:
                        yield path, [digest, wanted["sums"]]
        except UnicodeDecodeError as error:
            raise SourceError(f"{wanted['sums']} of {url} is not UTF-8: convert it") from error


def _download(source: Source, entry: Entry, lists: Lists) -> Path:
    file = lists.file()
    with file.open("wb") as out:
        _fetch(source, entry, 0, entry.size, out.write)
    return file


# --- copying ---


def _fetch(
    source: Source, entry: Entry, start: int, end: int, sink: Callable[[bytes], object]
) -> Checksum | None:
    """Read a range into `sink`, also after interruptions; returns the checksum of the object, if known."""
    at, attempt = start, 0
    while True:
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


def _write_to(sink: Callable[[bytes], object], chunk: bytes) -> None:
    try:
        sink(chunk)
    except OSError as error:
        raise Unwritable(f"the claim cannot be written: {reason(error)}") from error


@dataclass
class EarlierCopies:
    """What earlier attempts copied of a path: the last whole file; parts by version and unfinished file."""

    file: Mapping[str, Any] | None = None
    parts: dict[tuple[str, str], set[int]] = field(default_factory=dict)

    def unfinished(self, version: str) -> dict[str, set[int]]:
        """The parts in each unfinished file of a version; none without one, as they may be of another."""
        return {name: parts for (of, name), parts in self.parts.items() if version and of == version}


class Journal:
    """A log on the claim of what has been copied, a line of JSON each. Each index appends to its own."""

    def __init__(self, folder: Path, index: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name = folder, f"journal-{index}.jsonl"
        self._lock = threading.Lock()
        self._file = (folder / self._name).open("a", encoding="utf-8")

    def past(self, lists: Lists) -> Iterator[tuple[str, EarlierCopies]]:
        """What the journals of all indexes hold so far, sorted by path. Parts are those of this index.

        It is read when the first one is asked for.
        """
        for path, records in itertools.groupby(lists.sorted(self._rows()), key=lambda row: row[0]):
            past = EarlierCopies()
            for _, (record,) in records:
                if "part" in record:
                    past.parts.setdefault((record["version"], record.get("into", "")), set()).add(
                        record["part"]
                    )
                else:
                    past.file = record
            yield path, past

    def _rows(self) -> Iterator[Row]:
        for file in sorted(self._folder.glob("journal-*.jsonl")):
            with file.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    try:
                        record = json.loads(line)
                        path = record.pop("path")
                    except (ValueError, KeyError, AttributeError):
                        continue  # a line that was not completed when a pod was killed
                    if "part" not in record or file.name == self._name:
                        yield path, [record]

    def add(self, **record: Any) -> None:
        """Append a file or a part that has been written."""
        line = json.dumps(record)
        with self._lock:
            # The first newline ends a line that was not completed.
            self._file.write(f"\n{line}\n")
            self._file.flush()


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

    def run(self, listing: Listing, index: int, lists: Lists) -> int:
        """Copy what is missing of a share; returns how many bytes. Raises a thread's first error."""
        self._clear(listing, lists)
        workers = self._settings.workers
        files = total = 0
        for _, item in listing.share(index, workers):
            files, total = files + 1, total + item.entry.size
        self._bytes = self._done = 0
        tasks = self._tasks(joined(listing.share(index, workers), self._journal.past(lists)))
        started = shown = time.monotonic()
        threads = [
            threading.Thread(target=self._work, args=(tasks,), daemon=True)
            for _ in range(self._settings.parallel)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
                if time.monotonic() - shown > _PROGRESS_SECONDS:
                    shown = time.monotonic()
                    self._report(files, total, shown - started)
        if self._error is not None:
            raise self._error
        self._report(files, total, time.monotonic() - started)
        if self._unchecked:
            self._say(
                f"of {self._unchecked} files the source has no checksum that can be computed here: "
                "their sizes are compared"
            )
        return self._copied

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
        is_changed = bool(self._settings.prepare) and record.get("changed") != _changed(file)
        return _size(file) == item.entry.size and not is_changed

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

            expected = _fetch(item.source, item.entry, 0, item.entry.size, take)
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
        usable = (file for file in begun if _size(file) == size)
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

            if start < end:
                _fetch(item.source, item.entry, start, end, take)
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
        size = _size(unfinished)
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
        size, changed = item.entry.size, {"changed": _changed(file)} if self._settings.prepare else {}
        self._journal.add(path=item.path, version=item.entry.version, size=size, sha256=sha256, **changed)
        with self._lock:
            self._done += 1

    def _count(self, number: int) -> None:
        with self._lock:
            self._bytes, self._copied = self._bytes + number, self._copied + number


def _wrong_checksum(item: Item, expected: Checksum, found: bytes) -> Corrupt:
    return Corrupt(f"{item.path} has {expected.name} {found.hex()}, its source says {expected.value.hex()}")


def stage(settings: StagingSettings, env: Mapping[str, str], say: Say) -> bool:
    """Copy this index's share of the items; index 0 then waits for the other shares.

    Returns False when the target has this dataset already.

    Raises SourceError, Unreachable, Changed, CredentialsError or Corrupt.
    """
    with settings.lists() as lists:
        _take_back(settings, say)
        listing = listed(settings, env, lists)
        published = read_header(settings.target)
        if published is not None and published["identity"] == listing.identity:
            say(f"{settings.target} has this dataset already: {published['files']} files, nothing to copy")
            if settings.index == 0:
                _clear_away(settings)
            return False
        _check_target(settings, published is not None, lists)
        # Index 0 does the work of a worker whose share is of another list, unless that worker starts again.
        old = _share(settings, settings.index)
        if old is not None and old["identity"] != listing.identity:
            _share_file(settings, settings.index).unlink()
        copier = Copier(settings, Journal(settings.state, settings.index), say)
        _copy_share(settings, listing, settings.index, copier, lists, say)
        if settings.index == 0:
            _wait_for_shares(settings, listing, copier, lists, say)
            _remove_others(settings, listing, lists)
            _unpack(settings, listing, say)
    return True


def _take_back(settings: StagingSettings, say: Say) -> None:
    """Undo a `publish` that was interrupted. Worker 0 does it, and at a root the others wait for it."""
    if not settings.is_root:
        if settings.index == 0 and settings.old.exists() and not settings.target.exists():
            settings.old.rename(settings.target)
            say(f"{settings.target} is back: an earlier attempt ended before it could replace it")
    elif settings.index == 0:
        root.take_back(settings.target, settings.staging)
        (settings.staging / MANIFEST).unlink(missing_ok=True)
    elif (settings.staging / MANIFEST).exists():
        say("waiting for worker 0, which publishes or begins again")
        while (settings.staging / MANIFEST).exists():
            time.sleep(1)


def _check_target(settings: StagingSettings, is_dataset: bool, lists: Lists) -> None:
    target = settings.target
    if settings.is_root and (other := root.foreign(target, settings.old, lists)):
        raise SourceError(
            f"{target} has {other}, which is not of a dataset there: choose a folder of the claim, or move it"
        )
    if (is_dataset if settings.is_root else target.exists()) and not settings.replace:
        what = (
            "another dataset, or another version of it" if is_dataset else "files that are not of a dataset"
        )
        raise SourceError(f"{target} has {what}: choose another path, or set replace=true")


def _copy_share(
    settings: StagingSettings, listing: Listing, index: int, copier: Copier, lists: Lists, say: Say
) -> None:
    copied = copier.run(listing, index, lists)
    share = {"identity": listing.identity, "files": listing.files, "bytes": listing.bytes}
    write_whole(_share_file(settings, index), json.dumps(share))
    say(f"share {index + 1} of {settings.workers} is complete; {copied} bytes were copied now")


def _wait_for_shares(
    settings: StagingSettings, listing: Listing, copier: Copier, lists: Lists, say: Say
) -> None:
    missing: list[int] = []
    while True:
        shares = {index: _share(settings, index) for index in range(settings.workers)}
        for index, share in shares.items():
            if share is not None and share["identity"] != listing.identity:
                # That worker has ended and does not run again, so this one copies what is missing.
                say(f"the sources changed after worker {index} had listed them: its share is copied again")
                _copy_share(settings, listing, index, copier, lists, say)
        left = [index for index, share in shares.items() if share is None]
        if not left:
            return
        if left != missing:
            missing = left
            say(f"waiting for {len(left)} of {settings.workers} shares: {', '.join(map(str, left[:10]))}")
        time.sleep(1)


def _remove_others(settings: StagingSettings, listing: Listing, lists: Lists) -> None:
    """Delete files that an earlier attempt copied and that the sources no longer have."""
    for path, _, item in joined(_staged(settings, lists), listing.rows):
        if item is None:
            os.unlink(settings.staged(path))
    (settings.staging / MANIFEST).unlink(missing_ok=True)


def _unpack(settings: StagingSettings, listing: Listing, say: Say) -> None:
    """Unpack the archives of the sources that ask for it. `publish` leaves the archives themselves out."""
    wanted = [number for number, each in enumerate(settings.sources) if each.get("extract")]
    (settings.state / _UNPACKED).unlink(missing_ok=True)
    if not wanted:
        return
    found: dict[int, list[str]] = {number: [] for number in wanted}
    for path, (number, *_) in listing.rows:
        if number in found and path.lower().endswith(archives.SUFFIXES):
            found[number].append(path)
    for number, paths in found.items():
        if not paths:
            raise SourceError(
                f"{shown(settings.sources[number]['url'])} has nothing to extract: no name ends with "
                f"{', '.join(archives.SUFFIXES)}"
            )
    files = size = 0
    unpacked = [path for paths in found.values() for path in paths]
    for path in unpacked:
        try:
            counts = archives.unpack(settings.staging, path)
        except OSError as error:
            raise Unwritable(f"{path} cannot be unpacked: {reason(error)}") from error
        files, size = files + counts[0], size + counts[1]
        say(f"{path} is unpacked: {counts[0]} files, {counts[1]} bytes")
    write_whole(settings.state / _UNPACKED, json.dumps({"archives": unpacked, "files": files, "bytes": size}))


def _unpacked(settings: StagingSettings) -> dict[str, Any]:
    return _record(settings.state / _UNPACKED) or {"archives": [], "files": 0, "bytes": 0}


def _staged(settings: StagingSettings, lists: Lists) -> SortedRows:
    return lists.sorted((safe_path(path), []) for path in _files(settings.staging))


def _share_file(settings: StagingSettings, index: int) -> Path:
    return settings.state / f"share-{index}.json"


def _share(settings: StagingSettings, index: int) -> dict[str, Any] | None:
    return _record(_share_file(settings, index))


def _record(file: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found


# --- publishing ---


def publish(settings: StagingSettings, say: Say) -> bool:
    """Write the manifest and rename the staged folder to the target.

    Raises Corrupt, Changed, or at a root SourceError.

    Returns False where nothing is staged, or index is not 0.
    """
    if not settings.is_root:
        _take_back(settings, say)
    share = _share(settings, 0)
    if settings.index != 0 or share is None:
        return False
    header = read_header(settings.staging)
    if header is None or header["identity"] != share["identity"]:
        header = _describe(settings, share, say)
    for path in (*(shards.file for shards in settings.shards), *_unpacked(settings)["archives"]):
        (settings.staging / path).unlink(missing_ok=True)
    if settings.is_root:
        root.replace(settings.target, settings.staging, settings.old)
    else:
        # All of it is on the disk before it has its name.
        all_to_disk(settings.staging)
        _delete_old(settings)
        if settings.target.exists():
            settings.target.rename(settings.old)
        settings.staging.rename(settings.target)
    to_disk(settings.target if settings.is_root else settings.target.parent)
    _clear_away(settings)
    say(f"{settings.target} is published: {header['files']} files, {header['bytes']} bytes, see {MANIFEST}")
    return True


def _clear_away(settings: StagingSettings) -> None:
    """Delete what is left beside a published dataset."""
    for folder in (settings.staging, settings.target / _STATE):
        shutil.rmtree(folder, ignore_errors=True)
    _delete_old(settings)


def _delete_old(settings: StagingSettings) -> None:
    """Delete the dataset that was replaced. What is left of it after a kill is never taken for all of it."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(settings.gone, ignore_errors=True)
        settings.old.rename(settings.gone)
    shutil.rmtree(settings.gone, ignore_errors=True)


def _describe(settings: StagingSettings, share: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """Split files into shards and write the manifest; returns its header. Does not delete the split files."""
    staging = settings.staging
    with settings.lists() as lists, ThreadPoolExecutor(settings.parallel) as pool:
        known: Iterable[tuple[str, EarlierCopies]] = ()
        if not settings.prepare:
            _check_complete(settings, share)
            known = Journal(settings.state, 0).past(lists)
        records: dict[str, int] = {}
        for shards in settings.shards:
            records.update(split(staging, shards, say))
        without = {shards.file for shards in settings.shards} | set(_unpacked(settings)["archives"])
        found = (
            (path, past)
            for path, is_there, past in joined(_staged(settings, lists), known)
            if is_there is not None and path not in without
        )

        def row(found: tuple[str, EarlierCopies | None]) -> dict[str, Any]:
            path, past = found
            # Shards are made here, though an object could have had their name.
            if past is not None and past.file is not None and path not in records:
                digest = past.file["sha256"]
            else:
                digest = Part.whole(settings.staged(path)).digest("sha256")
            size = os.stat(settings.staged(path)).st_size
            more = {"records": records[path]} if path in records else {}
            return {"path": path, "bytes": size, "sha256": digest, **more}

        return write_manifest(staging, in_order(pool, row, found), share["identity"], lists)


def _check_complete(settings: StagingSettings, share: Mapping[str, Any]) -> None:
    shards = {name for each in settings.shards for name in each.names}
    files = size = 0
    for path in _files(settings.staging):
        if path not in shards:
            files, size = files + 1, size + os.stat(settings.staged(path)).st_size
    unpacked = _unpacked(settings)
    wanted = share["files"] + unpacked["files"], share["bytes"] + unpacked["bytes"]
    if (files, size) != wanted:
        raise Changed(
            f"{files} files with {size} bytes are staged, the sources have {wanted[0]} with "
            f"{wanted[1]}: nothing is published"
        )


def split(folder: Path, shards: Shards, say: Say) -> dict[str, int]:
    """Split a file between lines into shards of about equal size; returns the number of lines of each.

    Concatenated in order, the shards are the file, byte for byte. Raises Corrupt if there are fewer lines
    than shards.
    """
    file = folder / safe_path(shards.file)
    if not file.is_file():
        raise Corrupt(f"shards.file {shards.file} is not in the dataset")
    size, counts = file.stat().st_size, {}
    with file.open("rb") as lines:
        for number, name in enumerate(shards.names):
            until, count = size * (number + 1) // shards.count, 0
            with (folder / name).open("wb") as shard:
                while lines.tell() < until:
                    shard.write(lines.readline())
                    count += 1
            if not count:
                raise Corrupt(f"{shards.file} has too few lines for {shards.count} shards")
            counts[name] = count
    say(f"{shards.file} is split into {shards.count} shards")
    return counts


# --- uploading ---


def upload(settings: StagingSettings, env: Mapping[str, str], say: Say) -> bool:
    """Upload the published dataset to S3, its manifest last; returns False when S3 already has all of it.

    Raises SourceError, Unreachable, CredentialsError or Corrupt.
    """
    place, folder = open_source(settings.upload, env), settings.target
    if not isinstance(place, S3Source):
        raise SourceError(f"upload: {shown(settings.upload)} is not s3://BUCKET/PREFIX")
    manifest = manifest_of(folder)
    with settings.lists() as lists, ThreadPoolExecutor(settings.parallel) as pool:
        there = lists.sorted((each.path, [each.size, each.version]) for each in place.found())
        rows = lists.sorted((row["path"], [row["bytes"]]) for row in manifest.rows())

        def put(path: str, known: Sequence[Any] | None, parallel: int = 1) -> int:
            file = f"{folder}/{path}"
            # An object with another tag, because of KMS or of other part sizes, is sent again.
            if known and known[0] == _size(file) and known[1] == place.tag(file):
                return 0
            place.put(path, file, parallel)
            return 1

        def wanted(is_large: bool) -> Iterator[tuple[str, Sequence[Any] | None]]:
            for path, row, known in joined(rows, there.last()):
                if row is not None and (row[0] > place.part_bytes) == is_large:
                    yield path, known

        # Small files are sent in parallel; large ones one after another, each with its parts in parallel.
        sent = sum(in_order(pool, lambda each: put(*each), wanted(is_large=False)))
        sent += sum(put(*each, settings.parallel) for each in wanted(is_large=True))
        sent += put(MANIFEST, next((row for path, row in there if path == MANIFEST), None))
    say(f"{settings.upload} has the dataset: {sent} of {manifest.header['files'] + 1} files were sent now")
    return sent > 0


# --- verifying ---


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
    size = _size(file)
    if size is None:
        return f"{row['path']} is missing"
    if size != row["bytes"]:
        return f"{row['path']} has {size} bytes instead of {row['bytes']}"
    if not is_quick and Part.whole(file).digest("sha256") != row["sha256"]:
        return f"{row['path']} has another sha256 than in {MANIFEST}"
    return ""


# --- files ---


def _files(folder: Path) -> Iterator[str]:
    """Paths of all files of a dataset, except the manifest and the folder with the journals."""
    return (path for path in files_below(folder) if path != MANIFEST and not path.startswith(f"{_STATE}/"))


def _size(file: str) -> int | None:
    """The size of a file; None if there is none."""
    found = _stat(file)
    return found.st_size if found and stat.S_ISREG(found.st_mode) else None


def _changed(file: str) -> int | None:
    """When a file was last written, in nanoseconds; None if there is none."""
    found = _stat(file)
    return found.st_mtime_ns if found else None


def _stat(file: str) -> os.stat_result | None:
    try:
        return os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
