"""Stage a dataset, and publish it.

`stage` copies all objects of the sources into a hidden folder beside the target, in parallel and in parts. It
keeps a journal there, so that a second attempt continues where the first one ended. `publish` writes the
manifest and renames the folder to the target.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bireme_runtime.dataset.copier import Copier
from bireme_runtime.dataset.journal import EarlierCopies, Journal
from bireme_runtime.dataset.listing import Listing, listed
from bireme_runtime.dataset.lists import Lists, SortedRows, in_order, joined
from bireme_runtime.dataset.manifest import MANIFEST, paths_in, read_header, record, write_manifest
from bireme_runtime.dataset.place import Folder
from bireme_runtime.dataset.settings import StagingSettings
from bireme_runtime.process.log import Say
from bireme_runtime.sources.source import Changed, Part, Source, SourceError, safe_path

UNPACKED = "unpacked.json"


def stage(
    settings: StagingSettings,
    sources: Sequence[Source],
    place: Folder,
    say: Say,
    unpack: Callable[[Listing], None] = lambda _: None,
) -> bool:
    """Copy this index's share of the items; index 0 then waits for the other shares, and unpacks.

    Returns False when the target has this dataset already. Raises SourceError, Unreachable, Changed,
    CredentialsError or Corrupt.
    """
    with settings.lists() as lists:
        place.take_back()
        listing = listed(settings, sources, lists)
        published = read_header(settings.target)
        if published is not None and published["identity"] == listing.identity:
            say(f"{settings.target} has this dataset already: {published['files']} files, nothing to copy")
            if settings.index == 0:
                place.clear_away()
            return False
        _check_target(settings, place, published is not None, lists)
        # Index 0 does the work of a worker whose share is of another list, unless that worker starts again.
        old = record(settings.share(settings.index))
        if old is not None and old["identity"] != listing.identity:
            settings.share(settings.index).unlink()
        copier = Copier(settings, Journal(settings.state, settings.index), say)
        copier.run(listing, settings.index, lists)
        if settings.index == 0:
            _wait_for_shares(settings, listing, copier, lists, say)
            _remove_others(settings, listing, lists)
            unpack(listing)
    return True


def _check_target(settings: StagingSettings, place: Folder, is_dataset: bool, lists: Lists) -> None:
    target = settings.target
    if other := place.foreign(lists):
        raise SourceError(
            f"{target} has {other}, which is not of a dataset there: choose a folder of the claim, or move it"
        )
    if (is_dataset if settings.is_root else target.exists()) and not settings.replace:
        what = (
            "another dataset, or another version of it" if is_dataset else "files that are not of a dataset"
        )
        raise SourceError(f"{target} has {what}: choose another path, or set replace=true")


def _wait_for_shares(
    settings: StagingSettings, listing: Listing, copier: Copier, lists: Lists, say: Say
) -> None:
    missing: list[int] = []
    while True:
        shares = {index: record(settings.share(index)) for index in range(settings.workers)}
        for index, share in shares.items():
            if share is not None and share["identity"] != listing.identity:
                # That worker has ended and does not run again, so this one copies what is missing.
                say(f"the sources changed after worker {index} had listed them: its share is copied again")
                copier.run(listing, index, lists)
        left = [index for index, share in shares.items() if share is None]
        if not left:
            return
        if left != missing:
            missing = left
            say(f"waiting for {len(left)} of {settings.workers} shares: {', '.join(map(str, left[:10]))}")
        time.sleep(1)


def _remove_others(settings: StagingSettings, listing: Listing, lists: Lists) -> None:
    """Delete files that an earlier attempt copied and that the sources no longer have."""
    for path, _, item in joined(staged(settings, lists), listing.rows):
        if item is None:
            os.unlink(settings.staged(path))
    (settings.staging / MANIFEST).unlink(missing_ok=True)


def staged(settings: StagingSettings, lists: Lists) -> SortedRows:
    """The paths of the files that are staged."""
    return lists.sorted((safe_path(path), []) for path in paths_in(settings.staging))


def publish(
    settings: StagingSettings, place: Folder, say: Say, split: Callable[[], dict[str, int]] = dict
) -> bool:
    """Write the manifest, and put the staged dataset in its place.

    `split` makes shards of files that are staged, and returns the number of records of each. Raises Corrupt,
    Changed, or at a root SourceError. Returns False where nothing is staged, or index is not 0.
    """
    share = record(settings.share(0))
    if settings.index != 0 or share is None:
        return False
    without = {*(shards.file for shards in settings.shards), *unpacked(settings)["archives"]}
    header = read_header(settings.staging)
    if header is None or header["identity"] != share["identity"]:
        header = _describe(settings, share, without, split)
    for path in without:
        (settings.staging / path).unlink(missing_ok=True)
    place.replace()
    place.clear_away()
    say(f"{settings.target} is published: {header['files']} files, {header['bytes']} bytes, see {MANIFEST}")
    return True


def _describe(
    settings: StagingSettings,
    share: Mapping[str, Any],
    without: Container[str],
    split: Callable[[], dict[str, int]],
) -> dict[str, Any]:
    """Write the manifest of the staged files that are not in `without`. Returns its header."""
    staging = settings.staging
    with settings.lists() as lists, ThreadPoolExecutor(settings.parallel) as pool:
        known: Iterable[tuple[str, EarlierCopies]] = ()
        if not settings.prepare:
            _check_complete(settings, share)
            known = Journal(settings.state, 0).past(lists)
        records = split()
        found = (
            (path, past)
            for path, is_there, past in joined(staged(settings, lists), known)
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
    for path in paths_in(settings.staging):
        if path not in shards:
            files, size = files + 1, size + os.stat(settings.staged(path)).st_size
    more = unpacked(settings)
    wanted = share["files"] + more["files"], share["bytes"] + more["bytes"]
    if (files, size) != wanted:
        raise Changed(
            f"{files} files with {size} bytes are staged, the sources have {wanted[0]} with "
            f"{wanted[1]}: nothing is published"
        )


def unpacked(settings: StagingSettings) -> dict[str, Any]:
    """The archives that were unpacked among the staged files, with the files and bytes that they had."""
    return record(settings.state / UNPACKED) or {"archives": [], "files": 0, "bytes": 0}
