"""The settings of a dataset, which the charts write as JSON into BIREME_DATASET."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme_runtime.dataset.lists import Lists
from bireme_runtime.dataset.manifest import STATE
from bireme_runtime.process import environment
from bireme_runtime.sources.source import HIDDEN, SourceError

STAGING = "staging"


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

    With `is_root`, the target is the root of a claim, which nothing can be renamed to (see claim/root.py).
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

    def hidden(self, name: str) -> Path:
        """A file or folder beside the target, at a claim's root in it, on the same file system."""
        if self.is_root:
            return self.target / f"{HIDDEN}{name}"
        return self.target.parent / f".{self.target.name}.{name}"

    @property
    def staging(self) -> Path:
        """The folder that becomes the target when it is renamed."""
        return self.hidden(STAGING)

    @property
    def old(self) -> Path:
        """Where the dataset goes that is replaced."""
        return self.hidden("old")

    def lists(self) -> Lists:
        """Where lists go that do not fit into memory."""
        return Lists(self.hidden(f"lists-{self.index}"))

    def staged(self, path: str) -> str:
        """Where a file of the dataset is until it is published."""
        return f"{self.staging}/{path}"

    @property
    def state(self) -> Path:
        """The folder of journals and unfinished files."""
        return self.staging / STATE

    def share(self, index: int) -> Path:
        """What worker `index` writes when its share is complete: identity, files and bytes of the list."""
        return self.state / f"share-{index}.json"


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
