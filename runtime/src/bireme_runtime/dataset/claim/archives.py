"""Unpack tar and zip archives of a dataset beside themselves; nothing gets out of its folder."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from bireme_runtime.dataset.listing import Listing
from bireme_runtime.dataset.manifest import MANIFEST, Corrupt
from bireme_runtime.dataset.settings import StagingSettings
from bireme_runtime.dataset.staging import UNPACKED
from bireme_runtime.process.disk import all_to_disk, write_whole
from bireme_runtime.process.http import reason
from bireme_runtime.process.log import Say
from bireme_runtime.sources.source import SourceError, Unwritable, safe_path, shown

# The names of archives that `unpack` takes end with one of these.
SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip")
_CHUNK = 1 << 20
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    gzip.BadGzipFile,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    RuntimeError,
)


def unpack_sources(settings: StagingSettings, listing: Listing, say: Say) -> None:
    """Unpack the archives of the sources that ask for it. `publish` leaves the archives themselves out."""
    wanted = [number for number, each in enumerate(settings.sources) if each.get("extract")]
    (settings.state / UNPACKED).unlink(missing_ok=True)
    if not wanted:
        return
    found: dict[int, list[str]] = {number: [] for number in wanted}
    for path, (number, *_) in listing.rows:
        if number in found and path.lower().endswith(SUFFIXES):
            found[number].append(path)
    for number, paths in found.items():
        if not paths:
            raise SourceError(
                f"{shown(settings.sources[number]['url'])} has nothing to extract: no name ends with "
                f"{', '.join(SUFFIXES)}"
            )
    files = size = 0
    unpacked = [path for paths in found.values() for path in paths]
    for path in unpacked:
        try:
            counts = unpack(settings.staging, path)
        except OSError as error:
            raise Unwritable(f"{path} cannot be unpacked: {reason(error)}") from error
        files, size = files + counts[0], size + counts[1]
        say(f"{path} is unpacked: {counts[0]} files, {counts[1]} bytes")
    write_whole(settings.state / UNPACKED, json.dumps({"archives": unpacked, "files": files, "bytes": size}))


def unpack(folder: Path, path: str) -> tuple[int, int]:
    """Unpack the archive `path` of a dataset into its own folder; returns how many files and bytes.

    The archive stays. Raises Corrupt if it cannot be read, SourceError for a file in it that a dataset cannot
    have: outside of the folder, a link or a device, or one that is there already.
    """
    files = size = 0
    below = path.rpartition("/")[0]
    try:
        for name, content in _members(folder / path):
            inside = safe_path(f"{below}/{name}" if below else name)
            if inside == MANIFEST:
                raise SourceError(f"{path} contains {name}, a name that a dataset reserves: rename it")
            if content is None:
                raise SourceError(
                    f"{path} contains {name}, which is neither a file nor a folder: leave it out"
                )
            target = folder / inside
            if target.exists():
                raise SourceError(
                    f"{inside} is in {path}, and there is another file of that name: rename one"
                )
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise SourceError(f"{inside} of {path} needs a folder where a file is: rename one") from error
            with target.open("wb") as out:
                shutil.copyfileobj(content, out, _CHUNK)
                size += out.tell()
            files += 1
    except _BROKEN as error:
        if isinstance(error.__context__, OSError) and error.__context__.errno:
            # zipfile calls a file that cannot be read no zip file.
            raise error.__context__ from None
        raise Corrupt(f"{path} cannot be unpacked: {type(error).__name__}: {error}") from error
    # All of it is on the disk before the manifest says so.
    all_to_disk(folder)
    return files, size


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Name and content of each member that is no folder; None for links and devices."""
    if archive.name.lower().endswith(".zip"):
        with zipfile.ZipFile(archive) as found:
            for member in found.infolist():
                kind = stat.S_IFMT(member.external_attr >> 16)
                # Some archivers of Windows (0) separate folders as Windows does.
                name = member.filename.replace("\\", "/") if not member.create_system else member.filename
                if not name.endswith("/"):
                    is_file = kind in (0, stat.S_IFREG)
                    yield name, found.open(member) if is_file else None
        return
    # As a stream, because an archive may have more members than the memory has room for; and read to its end,
    # because a compressed file has its checksum there.
    with _decompressed(archive) as content, tarfile.open(fileobj=content, mode="r|") as found_tar:
        for each in found_tar:
            if not each.isdir():
                yield each.name, found_tar.extractfile(each) if each.isfile() else None
            found_tar.members.clear()  # type: ignore[attr-defined]
        while content.read(_CHUNK):
            pass


def _decompressed(archive: Path) -> IO[bytes]:
    with archive.open("rb") as file:
        start = file.read(6)
    for magic, opened in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open)):
        if start.startswith(magic):
            return cast("IO[bytes]", opened(archive, "rb"))
    return archive.open("rb")
