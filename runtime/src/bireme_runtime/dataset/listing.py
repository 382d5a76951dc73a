"""What the sources have: one sorted list of all objects, with their digests where those are known."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bireme_runtime.dataset.lists import Lists, Row, SortedRows, joined
from bireme_runtime.dataset.manifest import MANIFEST, Corrupt, Manifest
from bireme_runtime.dataset.settings import STAGING, StagingSettings
from bireme_runtime.sources.checksums import Checksum
from bireme_runtime.sources.source import (
    HIDDEN,
    Changed,
    Entry,
    FolderSource,
    Source,
    SourceError,
    fetch,
    safe_path,
    shown,
    sums,
)


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


def listed(settings: StagingSettings, sources: Sequence[Source], lists: Lists) -> Listing:
    """What the sources have. Raises SourceError if two have the same path, and as sources do."""
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
    if isinstance(source, FolderSource) and MANIFEST not in files and source.has(f"{HIDDEN}{STAGING}"):
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
        fetch(source, entry, 0, entry.size, out.write)
    return file
