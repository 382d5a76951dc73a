"""Upload a published dataset to S3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bireme_runtime.dataset.lists import in_order, joined
from bireme_runtime.dataset.manifest import MANIFEST, manifest_of, size_of
from bireme_runtime.dataset.settings import StagingSettings
from bireme_runtime.process.log import Say
from bireme_runtime.sources.web.s3 import s3_source


def upload(settings: StagingSettings, env: Mapping[str, str], say: Say) -> bool:
    """Upload the published dataset to S3, its manifest last; returns False when S3 already has all of it.

    Raises SourceError, Unreachable, CredentialsError or Corrupt.
    """
    place, folder = s3_source(settings.upload, env), settings.target
    manifest = manifest_of(folder)
    with settings.lists() as lists, ThreadPoolExecutor(settings.parallel) as pool:
        there = lists.sorted((each.path, [each.size, each.version]) for each in place.found())
        rows = lists.sorted((row["path"], [row["bytes"]]) for row in manifest.rows())

        def put(path: str, known: Sequence[Any] | None, parallel: int = 1) -> int:
            file = f"{folder}/{path}"
            # An object with another tag, because of KMS or of other part sizes, is sent again.
            if known and known[0] == size_of(file) and known[1] == place.tag(file):
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
