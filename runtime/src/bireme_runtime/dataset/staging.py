"""Copy a dataset onto a claim so that readers see all of it or nothing, and verify it.

`stage` copies all objects of the sources into a hidden folder beside the target, in parallel and in parts. It
keeps a journal there, so that a second attempt continues where the first one ended. `publish` splits files
into shards if the settings ask for that, writes the manifest and renames the folder to the target. `verify`
compares a dataset with its manifest. The settings are the JSON in BIREME_DATASET, which the charts write.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme_runtime.process import environment
from bireme_runtime.process.errors import BiremeError, Unreachable
from bireme_runtime.process.log import Say
from bireme_runtime.sources.source import (
    ATTEMPTS,
    Body,
    Entry,
    Part,
    S3Source,
    Source,
    SourceError,
    open_source,
    pause,
    safe_path,
    sums,
)

MANIFEST = "MANIFEST.jsonl"
_STATE = ".bireme"
_CHUNK = 1 << 20
_PROGRESS_SECONDS = 10.0


class Corrupt(BiremeError):
    """Data does not have the size or the checksum that it should have."""


class Unwritable(BiremeError):
    """A file on the claim cannot be written."""


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
class Settings:
    """What to stage and where. `sources` have the keys url, path, sha256 and sums.

    `prepare` identifies the script that runs between `stage` and `publish`. `upload` is a URL in S3 to which
    the dataset is uploaded as well.
    """

    target: Path
    sources: tuple[Mapping[str, str], ...]
    shards: tuple[Shards, ...] = ()
    prepare: str = ""
    parallel: int = 16
    part_bytes: int = 64 << 20
    replace: bool = False
    upload: str = ""
    workers: int = 1
    index: int = 0

    @property
    def staging(self) -> Path:
        """The folder that becomes the target when it is renamed, so it is on the same file system."""
        return self.target.parent / f".{self.target.name}.staging"

    @property
    def state(self) -> Path:
        """The folder of journals and unfinished files."""
        return self.staging / _STATE


def settings_from(env: Mapping[str, str]) -> Settings:
    """The settings of a pod. Raises SourceError if they cannot be read."""
    try:
        values = json.loads(env["BIREME_DATASET"])
        workers = int(values.get("workers", 1))
        return Settings(
            target=Path(values["target"]),
            sources=tuple(values["sources"]),
            shards=tuple(Shards(each["file"], int(each["count"])) for each in values.get("shards", ())),
            prepare=values.get("prepare", ""),
            parallel=int(values.get("parallel", 16)),
            part_bytes=int(values.get("partMiB", 64)) << 20,
            replace=bool(values.get("replace")),
            upload=values.get("upload", ""),
            workers=workers,
            # Without workers, each pod copies everything, also the pods of a training Indexed Job.
            index=environment.integer(env, "JOB_COMPLETION_INDEX", 0) if workers > 1 else 0,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(f"BIREME_DATASET cannot be read: {type(error).__name__} {error}") from error


# --- what is to be copied ---


@dataclass(frozen=True)
class Item:
    """An object, its path below the target, its source, and its digest if that is known."""

    path: str
    entry: Entry
    source: Source
    sha256: str = ""


def listed(settings: Settings, env: Mapping[str, str]) -> list[Item]:
    """All objects of all sources by path. Raises SourceError if two have the same path, and as sources do."""
    found: dict[str, Item] = {}
    for source in settings.sources:
        for item in _of_source(source, env):
            if item.path in found:
                raise SourceError(f"{item.path} comes from two sources: give one of them a path of its own")
            found[item.path] = item
    return [found[path] for path in sorted(found)]


def _of_source(wanted: Mapping[str, str], env: Mapping[str, str]) -> Iterator[Item]:
    source = open_source(wanted["url"], env)
    entries = list(source.entries())
    url, folder = wanted["url"], f"{wanted['path'].strip('/')}/" if wanted.get("path") else ""
    entries, known = _digests(source, entries, wanted)
    list_name = wanted.get("sums") or MANIFEST
    for entry in entries:
        digest = known.get(entry.path, "")
        if known and not digest and entry.path != list_name:
            raise SourceError(f"{list_name} of {url} has no line for {entry.path}")
        if wanted.get("sha256") and len(entries) > 1:
            raise SourceError(f"sha256 is of one file, and {url} has {len(entries)}: use sums")
        yield Item(safe_path(folder + entry.path), entry, source, digest or wanted.get("sha256", ""))


def _digests(
    source: Source, entries: list[Entry], wanted: Mapping[str, str]
) -> tuple[list[Entry], Mapping[str, str]]:
    """The entries that are data, and their digests from `sums` or from the source's own manifest."""
    known = sums(_text(source, entries, wanted["sums"], wanted["url"])) if wanted.get("sums") else {}
    data = [entry for entry in entries if entry.path != MANIFEST]
    if len(data) == len(entries):
        return data, known
    # The source is a published dataset. The copy gets a manifest of its own.
    url = wanted["url"]
    _, rows = _read_manifest(_text(source, entries, MANIFEST, url), f"{MANIFEST} of {url}")
    missing = {row["path"] for row in rows} - {entry.path for entry in data}
    if missing:
        raise Corrupt(f"{url} lacks {min(missing)}, which its {MANIFEST} lists")
    return data, {**{row["path"]: row["sha256"] for row in rows}, **known}


def _text(source: Source, entries: Sequence[Entry], path: str, url: str) -> str:
    entry = next((each for each in entries if each.path == path), None)
    if entry is None:
        raise SourceError(f"{url} has no {path}, which should contain its checksums")
    content = bytearray()
    _fetch(source, entry, 0, entry.size, content.extend)
    return content.decode()


def identity_of(settings: Settings, items: Iterable[Item]) -> str:
    """A digest of everything that determines the dataset. If it is unchanged, there is nothing to do."""
    digest = hashlib.sha256()
    digest.update(
        json.dumps([settings.prepare, [[each.file, each.count] for each in settings.shards]]).encode()
    )
    for item in items:
        digest.update(f"\n{item.path}\0{item.entry.size}\0{item.entry.version}\0{item.sha256}".encode())
    return digest.hexdigest()


# --- copying ---


def _fetch(source: Source, entry: Entry, start: int, end: int, sink: Callable[[bytes], object]) -> str:
    """Read a range of bytes into `sink`, continuing after interruptions; returns the source's MD5, if any."""
    at, attempt = start, 0
    while True:
        try:
            with source.read(entry, at, end) as body:
                for chunk in _chunks(body, end - at):
                    _write_to(sink, chunk)
                    at, attempt = at + len(chunk), 0
                if at < end:
                    raise Unreachable(
                        f"{entry.key}: the connection ended after {at - start} of {end - start} bytes"
                    )
                return body.md5
        except Unreachable:
            attempt += 1
            if attempt == ATTEMPTS:
                raise
            pause(attempt)


def _write_to(sink: Callable[[bytes], object], chunk: bytes) -> None:
    try:
        sink(chunk)
    except OSError as error:
        raise Unwritable(f"the claim cannot be written: {error}") from error


def _chunks(body: Body, count: int) -> Iterator[bytes]:
    while count > 0:
        chunk = body.read(min(_CHUNK, count))
        if not chunk:
            return
        count -= len(chunk)
        yield chunk


class Journal:
    """A log on the claim of what has been copied, a line of JSON each.

    It reads the journals of all indexes and appends to its own.
    """

    def __init__(self, folder: Path, index: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.files: dict[str, dict[str, Any]] = {}
        self.parts: dict[tuple[str, str], set[int]] = {}
        for file in sorted(folder.glob("journal-*.jsonl")):
            for line in file.read_text(encoding="utf-8").splitlines():
                self._take(line)
        self._lock = threading.Lock()
        self._file = (folder / f"journal-{index}.jsonl").open("a", encoding="utf-8")

    def _take(self, line: str) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            return  # a line that was not completed when a pod was killed
        if "part" in record:
            self.parts.setdefault((record["path"], record["version"]), set()).add(record["part"])
        else:
            self.files[record["path"]] = record

    def add(self, **record: Any) -> None:
        """Append a file or a part that has been written."""
        line = json.dumps(record)
        with self._lock:
            self._take(line)
            # The first newline ends a line that was not completed.
            self._file.write(f"\n{line}\n")
            self._file.flush()


class Copier:
    """Copies items into the staging folder, in threads. The first error ends all of them."""

    def __init__(self, settings: Settings, journal: Journal, say: Say) -> None:
        self._settings, self._journal, self._say = settings, journal, say
        self._lock, self._lock_of_tasks = threading.Lock(), threading.Lock()
        self._error: BaseException | None = None
        self._bytes = self._done = self._copied = 0
        self._open_parts: dict[str, int] = {}

    def run(self, items: Sequence[Item]) -> int:
        """Copy what is missing; returns the number of bytes copied. Raises the first error of a thread."""
        (self._settings.state / "parts").mkdir(parents=True, exist_ok=True)
        total = sum(item.entry.size for item in items)
        tasks = self._tasks(items)
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
                    self._report(len(items), total, shown - started)
        if self._error is not None:
            raise self._error
        self._report(len(items), total, time.monotonic() - started)
        return self._copied

    def _report(self, files: int, total: int, seconds: float) -> None:
        rate = self._copied / max(seconds, 0.001) / 2**20
        self._say(
            f"{self._done} of {files} files, {self._bytes / 2**20:.1f} of {total / 2**20:.1f} MiB, "
            f"{rate:.1f} MiB/s"
        )

    def _tasks(self, items: Iterable[Item]) -> Iterator[Callable[[], None]]:
        for item in items:
            if self._is_here(item):
                with self._lock:
                    self._done, self._bytes = self._done + 1, self._bytes + item.entry.size
            elif item.entry.size <= self._settings.part_bytes:
                yield lambda item=item: self._whole(item)  # type: ignore[misc]
            else:
                yield from self._in_parts(item)

    def _work(self, tasks: Iterator[Callable[[], None]]) -> None:
        while self._error is None:
            try:
                with self._lock_of_tasks:
                    task = next(tasks, None)
                if task is None:
                    return
                task()
            except BaseException as error:
                self._error = self._error or error

    def _is_here(self, item: Item) -> bool:
        record = self._journal.files.get(item.path)
        if record is None or (record["version"], record["size"]) != (item.entry.version, item.entry.size):
            return False
        file = self._settings.staging / item.path
        return file.is_file() and file.stat().st_size == item.entry.size

    def _unfinished(self, item: Item) -> Path:
        name = hashlib.sha256(f"{item.path}\0{item.entry.version}".encode()).hexdigest()[:32]
        return self._settings.state / "parts" / name

    def _whole(self, item: Item) -> None:
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        unfinished = self._unfinished(item)
        with unfinished.open("wb") as file:

            def take(chunk: bytes) -> None:
                sha256.update(chunk)
                md5.update(chunk)
                file.write(chunk)
                self._count(len(chunk))

            expected = _fetch(item.source, item.entry, 0, item.entry.size, take)
        if expected and md5.hexdigest() != expected:
            raise Corrupt(f"{item.path} has MD5 {md5.hexdigest()}, its source says {expected}")
        self._finish(item, unfinished, sha256.hexdigest())

    def _in_parts(self, item: Item) -> Iterator[Callable[[], None]]:
        size, step = item.entry.size, self._settings.part_bytes
        unfinished = self._unfinished(item)
        done = self._journal.parts.get((item.path, item.entry.version), set())
        if not (unfinished.is_file() and unfinished.stat().st_size == size):
            done = set()
            with unfinished.open("wb") as file:
                file.truncate(size)
        starts = range(0, size, step)
        missing = [start for start in starts if start not in done]
        with self._lock:
            self._bytes += sum(min(step, size - start) for start in starts if start in done)
            self._open_parts[item.path] = max(len(missing), 1)
        for start in missing or [size]:
            yield lambda start=start: self._part(item, unfinished, start, min(start + step, size))  # type: ignore[misc]

    def _part(self, item: Item, unfinished: Path, start: int, end: int) -> None:
        with unfinished.open("r+b") as file:
            file.seek(start)

            def take(chunk: bytes) -> None:
                file.write(chunk)
                self._count(len(chunk))

            if start < end:
                _fetch(item.source, item.entry, start, end, take)
            file.flush()
            os.fsync(file.fileno())
        self._journal.add(path=item.path, version=item.entry.version, part=start)
        with self._lock:
            self._open_parts[item.path] -= 1
            is_last = self._open_parts[item.path] == 0
        if is_last:
            self._finish(item, unfinished, Part.whole(unfinished).digest("sha256"))

    def _finish(self, item: Item, unfinished: Path, sha256: str) -> None:
        if unfinished.stat().st_size != item.entry.size:
            raise Corrupt(
                f"{item.path} has {unfinished.stat().st_size} bytes, its source says {item.entry.size}"
            )
        if item.sha256 and sha256 != item.sha256:
            unfinished.unlink()
            raise Corrupt(f"{item.path} has sha256 {sha256}, it should have {item.sha256}")
        file = self._settings.staging / item.path
        file.parent.mkdir(parents=True, exist_ok=True)
        os.replace(unfinished, file)
        self._journal.add(path=item.path, version=item.entry.version, size=item.entry.size, sha256=sha256)
        with self._lock:
            self._done += 1

    def _count(self, number: int) -> None:
        with self._lock:
            self._bytes, self._copied = self._bytes + number, self._copied + number


def stage(settings: Settings, env: Mapping[str, str], say: Say) -> bool:
    """Copy this index's share of the items; index 0 then waits for the other shares.

    Returns False when the target has this dataset already.

    Raises SourceError, Unreachable, CredentialsError or Corrupt.
    """
    items = listed(settings, env)
    identity = identity_of(settings, items)
    published = read_header(settings.target)
    if published is not None and published["identity"] == identity:
        say(f"{settings.target} has this dataset already: {published['files']} files, nothing to copy")
        return False
    if settings.target.exists() and not settings.replace:
        what = "another dataset, or another version of it" if published else "files that are not of a dataset"
        raise SourceError(f"{settings.target} has {what}: choose another path, or set replace=true")
    journal = Journal(settings.state, settings.index)
    copied = Copier(settings, journal, say).run(items[settings.index :: settings.workers])
    share = {"identity": identity, "files": len(items), "bytes": sum(item.entry.size for item in items)}
    _write(settings.state / f"share-{settings.index}.json", json.dumps(share))
    say(f"share {settings.index + 1} of {settings.workers} is complete; {copied} bytes were copied now")
    if settings.index == 0:
        _wait_for_shares(settings, identity, say)
        _remove_others(settings, items)
    return True


def _wait_for_shares(settings: Settings, identity: str, say: Say) -> None:
    missing: list[int] = []
    while True:
        shares = {index: _share(settings, index) for index in range(settings.workers)}
        left = [index for index, share in shares.items() if share is None or share["identity"] != identity]
        if not left:
            return
        if left != missing:
            missing = left
            say(f"waiting for {len(left)} of {settings.workers} shares: {', '.join(map(str, left[:10]))}")
        time.sleep(1)


def _remove_others(settings: Settings, items: Iterable[Item]) -> None:
    """Delete files that an earlier attempt copied and that the sources no longer have."""
    wanted = {item.path for item in items}
    for path in [*_files(settings.staging), MANIFEST]:
        if path not in wanted:
            (settings.staging / path).unlink(missing_ok=True)


def _share(settings: Settings, index: int) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(
            (settings.state / f"share-{index}.json").read_text(encoding="utf-8")
        )
    except (OSError, ValueError):
        return None
    return found


# --- publishing ---


def publish(settings: Settings, say: Say) -> bool:
    """Write the manifest and rename the staged folder to the target. Raises Corrupt.

    Returns False where nothing is staged, or index is not 0.
    """
    share = _share(settings, 0)
    if settings.index != 0 or share is None:
        return False
    header = read_header(settings.staging)
    if header is None or header["identity"] != share["identity"]:
        header = _describe(settings, share, say)
    for shards in settings.shards:
        (settings.staging / shards.file).unlink(missing_ok=True)
    old = settings.target.parent / f".{settings.target.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if settings.target.exists():
        settings.target.rename(old)
    settings.staging.rename(settings.target)
    shutil.rmtree(settings.target / _STATE, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    say(f"{settings.target} is published: {header['files']} files, {header['bytes']} bytes, see {MANIFEST}")
    return True


def _describe(settings: Settings, share: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """Split files into shards and write the manifest; returns its header. Does not delete the split files."""
    staging = settings.staging
    known: Mapping[str, str] = {}
    if not settings.prepare:
        _check_complete(settings, share)
        known = {path: record["sha256"] for path, record in Journal(settings.state, 0).files.items()}
    records: dict[str, int] = {}
    for shards in settings.shards:
        records.update(split(staging, shards, say))
    paths = sorted({*_files(staging)} - {shards.file for shards in settings.shards})
    with ThreadPoolExecutor(settings.parallel) as pool:
        digests = pool.map(lambda path: known.get(path) or Part.whole(staging / path).digest("sha256"), paths)
        rows = [_row(staging, path, digest, records) for path, digest in zip(paths, digests)]
    return _write_manifest(staging, rows, share["identity"])


def _check_complete(settings: Settings, share: Mapping[str, Any]) -> None:
    staging, shards = settings.staging, {name for each in settings.shards for name in each.names}
    sizes = [(staging / path).stat().st_size for path in _files(staging) if path not in shards]
    if (len(sizes), sum(sizes)) != (share["files"], share["bytes"]):
        raise Corrupt(
            f"{len(sizes)} files with {sum(sizes)} bytes are staged, the sources have {share['files']} with "
            f"{share['bytes']}: nothing is published; the next attempt copies what is missing"
        )


def _row(folder: Path, path: str, sha256: str, records: Mapping[str, int]) -> dict[str, Any]:
    row: dict[str, Any] = {"path": path, "bytes": (folder / path).stat().st_size, "sha256": sha256}
    return {**row, "records": records[path]} if path in records else row


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


def upload(settings: Settings, env: Mapping[str, str], say: Say) -> bool:
    """Upload the published dataset to S3, its manifest last; returns False when S3 already has all of it.

    Raises SourceError, Unreachable, CredentialsError or Corrupt.
    """
    place, folder = open_source(settings.upload, env), settings.target
    if not isinstance(place, S3Source):
        raise SourceError(f"upload: {settings.upload} is not s3://BUCKET/PREFIX")
    _, rows = _manifest_of(folder)
    there = {entry.path: entry for entry in place.listed()}

    def put(path: str, parallel: int = 1) -> int:
        file = folder / path
        size, entry = file.stat().st_size, there.get(path)
        # An object with another tag, because of KMS or of other part sizes, is sent again.
        if entry is not None and entry.size == size and entry.version == place.tag(file):
            return 0
        place.put(path, file, parallel)
        return 1

    # Small files are sent in parallel; large ones one after another, each with its parts in parallel.
    small = [row["path"] for row in rows if row["bytes"] <= place.part_bytes]
    with ThreadPoolExecutor(settings.parallel) as pool:
        sent = sum(pool.map(put, small))
    sent += sum(put(row["path"], settings.parallel) for row in rows if row["bytes"] > place.part_bytes)
    sent += put(MANIFEST)
    say(f"{settings.upload} has the dataset: {sent} of {len(rows) + 1} files were sent now")
    return sent > 0


# --- the manifest ---


def _write_manifest(folder: Path, rows: Sequence[Mapping[str, Any]], identity: str) -> dict[str, Any]:
    body = "".join(json.dumps(row) + "\n" for row in rows)
    header = {
        "files": len(rows),
        "bytes": sum(row["bytes"] for row in rows),
        "sha256": hashlib.sha256(body.encode()).hexdigest(),
        "identity": identity,
    }
    _write(folder / MANIFEST, json.dumps(header) + "\n" + body)
    return header


def read_header(folder: Path) -> dict[str, Any] | None:
    """The first line of a manifest: files, bytes, sha256 of the other lines. None if there is no manifest."""
    try:
        with (folder / MANIFEST).open(encoding="utf-8") as file:
            header: dict[str, Any] = json.loads(file.readline())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return header


def _read_manifest(text: str, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the rows of a manifest. Raises Corrupt if it was changed or has another format."""
    first, _, body = text.partition("\n")
    try:
        header = json.loads(first)
        is_whole = hashlib.sha256(body.encode()).hexdigest() == header["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{name} is not a manifest of charts/dataset, which reserves this name") from error
    if not is_whole:
        raise Corrupt(f"{name} has been changed since it was written")
    return header, [json.loads(line) for line in body.splitlines()]


def _manifest_of(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
    except OSError as error:
        raise Corrupt(f"{folder} is not a dataset: it has no {MANIFEST}") from error
    return _read_manifest(text, str(folder / MANIFEST))


def verify(folder: Path, is_quick: bool = False, parallel: int = 16) -> str:
    """Compare a dataset with its manifest, only sizes if `is_quick`; returns a sentence. Raises Corrupt."""
    header, rows = _manifest_of(folder)
    with ThreadPoolExecutor(parallel) as pool:
        wrong = [problem for problem in pool.map(lambda row: _wrong(folder, row, is_quick), rows) if problem]
    if wrong:
        raise Corrupt("; ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""))
    checked = "sizes" if is_quick else "sha256"
    return (
        f"{folder} is complete: {header['files']} files, {header['bytes']} bytes, {checked} as in {MANIFEST}"
    )


def _wrong(folder: Path, row: Mapping[str, Any], is_quick: bool) -> str:
    file = folder / row["path"]
    if not file.is_file():
        return f"{row['path']} is missing"
    if file.stat().st_size != row["bytes"]:
        return f"{row['path']} has {file.stat().st_size} bytes instead of {row['bytes']}"
    if not is_quick and Part.whole(file).digest("sha256") != row["sha256"]:
        return f"{row['path']} has another sha256 than in {MANIFEST}"
    return ""


# --- files ---


def _files(folder: Path) -> Iterator[str]:
    """Paths of all files of a dataset, except the manifest and the folder with the journals."""
    for base, folders, names in os.walk(folder):
        if Path(base) == folder:
            folders[:] = [name for name in folders if name != _STATE]
            names = [name for name in names if name != MANIFEST]
        yield from (str(Path(base, name).relative_to(folder)) for name in names)


def _write(file: Path, text: str) -> None:
    """Replace the file in one step."""
    unfinished = file.with_name(f".{file.name}.new")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, file)
