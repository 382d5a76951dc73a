"""Split files of a dataset into shards."""

from __future__ import annotations

from pathlib import Path

from bireme_runtime.dataset.manifest import Corrupt
from bireme_runtime.dataset.settings import Shards, StagingSettings
from bireme_runtime.process.log import Say
from bireme_runtime.sources.source import safe_path


def split_all(settings: StagingSettings, say: Say) -> dict[str, int]:
    """Split the staged files that the settings name; returns the number of lines of each shard."""
    records: dict[str, int] = {}
    for shards in settings.shards:
        records.update(split(settings.staging, shards, say))
    return records


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
