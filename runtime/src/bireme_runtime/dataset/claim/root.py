"""A dataset at the root of a claim. No rename makes it appear: its manifest, which comes last, is the sign.

Files are staged in a hidden folder of the root and moved out of it one name at a time. The staged manifest
says which names those are, so after a kill it is known what belongs where: a name that the folder lacks has
been moved.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from bireme_runtime.dataset.lists import Lists, joined
from bireme_runtime.dataset.manifest import MANIFEST, manifest_of
from bireme_runtime.dataset.place import Folder
from bireme_runtime.process.disk import all_to_disk, to_disk
from bireme_runtime.sources.source import SourceError, may_be_data


class Root(Folder):
    """The root of a claim, which nothing can be renamed to."""

    def foreign(self, lists: Lists) -> str:
        """A name at the root that no dataset there has, "" if there is none.

        The dataset's names are in the manifest, which an interrupted `replace` has moved to `old`.
        """
        root, old = self._settings.target, self._settings.old
        with os.scandir(root) as found:
            there = lists.sorted((each.name, []) for each in found if may_be_data(each.name))
        own = lists.sorted((name, []) for folder in (root, old) for name in _names(folder))
        for name, is_there, is_own in joined(there, own.last()):
            if is_there is not None and is_own is None and name != MANIFEST:
                return name
        return ""

    def take_back(self) -> None:
        """Undo a `replace` that was interrupted. Worker 0 does it, and the others wait for it."""
        manifest = self._settings.staging / MANIFEST
        if self._settings.index == 0:
            self._take_names_back()
            manifest.unlink(missing_ok=True)
        elif manifest.exists():
            self._say("waiting for worker 0, which publishes or begins again")
            while manifest.exists():
                time.sleep(1)

    def replace(self) -> None:
        """Move the staged dataset to the root, its manifest last, and the one that is there to `old`.

        Raises SourceError if something else has come there in the meantime.
        """
        root, staging, old = self._settings.target, self._settings.staging, self._settings.old
        self._take_names_back()
        if (root / MANIFEST).exists():
            shutil.rmtree(old, ignore_errors=True)
            old.mkdir()
            os.rename(root / MANIFEST, old / MANIFEST)
        for name in _names(old):
            if os.path.lexists(f"{root}/{name}"):
                os.rename(f"{root}/{name}", f"{old}/{name}")
        for name in _names(staging):
            if os.path.lexists(f"{root}/{name}"):
                raise SourceError(f"{root}/{name} has come there while the dataset was copied: move it away")
            os.rename(f"{staging}/{name}", f"{root}/{name}")
        # All names are on the disk before the manifest says so.
        all_to_disk(root)
        os.rename(staging / MANIFEST, root / MANIFEST)
        to_disk(root)

    def _take_names_back(self) -> None:
        """Move to the staging folder what an interrupted `replace` has moved out of it."""
        root, staging = self._settings.target, self._settings.staging
        for name in _names(staging):
            if not os.path.lexists(f"{staging}/{name}") and os.path.lexists(f"{root}/{name}"):
                os.rename(f"{root}/{name}", f"{staging}/{name}")


def _names(folder: Path) -> Iterator[str]:
    """What a dataset has directly in its folder, by the manifest; nothing where there is none."""
    if (folder / MANIFEST).exists():
        # Paths are sorted, so those of one folder follow each other.
        for name, _ in itertools.groupby(row["path"].partition("/")[0] for row in manifest_of(folder).rows()):
            yield name
