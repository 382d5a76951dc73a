"""The place of a dataset on a claim: its lock, and how all of it appears there at once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator

from bireme_runtime.dataset.lists import Lists
from bireme_runtime.dataset.manifest import STATE
from bireme_runtime.dataset.settings import StagingSettings
from bireme_runtime.process.disk import all_to_disk, to_disk
from bireme_runtime.process.log import Say


class Folder:
    """The folder in which the dataset appears, when the staged folder is renamed to it."""

    def __init__(self, settings: StagingSettings, say: Say) -> None:
        self._settings, self._say = settings, say

    def foreign(self, lists: Lists) -> str:
        """What is there and of no dataset, where nothing can replace it; "" if nothing is."""
        return ""

    def take_back(self) -> None:
        """Undo a `replace` that was interrupted. Worker 0 does it."""
        its = self._settings
        if its.index == 0 and its.old.exists() and not its.target.exists():
            its.old.rename(its.target)
            self._say(f"{its.target} is back: an earlier attempt ended before it could replace it")

    def replace(self) -> None:
        """Put the staged folder in the place of the dataset that is there."""
        its = self._settings
        self.take_back()
        # All of it is on the disk before it has its name.
        all_to_disk(its.staging)
        self._delete_old()
        if its.target.exists():
            its.target.rename(its.old)
        its.staging.rename(its.target)
        to_disk(its.target.parent)

    def clear_away(self) -> None:
        """Delete what is left beside a published dataset."""
        for folder in (self._settings.staging, self._settings.target / STATE):
            shutil.rmtree(folder, ignore_errors=True)
        self._delete_old()

    def _delete_old(self) -> None:
        """Delete the dataset that was replaced. What is left of it after a kill is never taken for all."""
        gone = self._settings.hidden("gone")
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(gone, ignore_errors=True)
            self._settings.old.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


@contextlib.contextmanager
def alone(settings: StagingSettings, say: Say) -> Iterator[None]:
    """Wait until no other process copies or publishes this dataset as this index: two would mix their files.

    Where nothing can be locked, nobody is waited for.
    """
    path, waits = settings.hidden(f"lock-{settings.index}"), False
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
