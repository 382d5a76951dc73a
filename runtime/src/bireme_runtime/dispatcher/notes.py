"""Notes that trainers leave for a supervisor, which settles their shards when they have ended.

A trainer cannot tell whether it failed by itself or lost another process. Its supervisor can.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "BIREME_DISPATCHER_NOTES"


@dataclass(frozen=True)
class Note:
    """What a trainer says of itself. `for_all`: all ranks of its world work on the shard that it has."""

    folder: str
    addresses: str
    dataset: str
    pid: int
    rank: int = 0
    trainer: str = ""
    lease_seconds: float = 0.0
    for_all: bool = False

    def write(self) -> None:
        """Write the note, which is never seen half. Without its folder there is no supervisor any more."""
        partial = Path(self.folder, f".{self.trainer}")
        with contextlib.suppress(OSError):
            partial.write_text(json.dumps(asdict(self)))
            partial.replace(self._file)

    def delete(self) -> None:
        """The trainer has left, or there is nothing to settle any more."""
        self._file.unlink(missing_ok=True)

    @property
    def _file(self) -> Path:
        return Path(self.folder, f"{self.trainer}.json")


def of_this_process(env: Mapping[str, str], addresses: str, dataset: str) -> Note | None:
    """The note of a trainer in this process, not yet written; None without a supervisor that wants one."""
    if not env.get(VARIABLE):
        return None
    rank = env.get("RANK", "")
    return Note(env[VARIABLE], addresses, dataset, os.getpid(), int(rank) if rank.isdigit() else 0)


class Notes:
    """A supervisor's folder of notes, by default a new one. Its name is in `environment`, for trainers."""

    def __init__(self, folder: str = "") -> None:
        self._folder = Path(folder or tempfile.mkdtemp(prefix="bireme-trainers-"))
        self._folder.mkdir(exist_ok=True)
        self.environment = {VARIABLE: str(self._folder)}

    def read(self) -> list[Note]:
        """The notes of trainers that have not left."""
        found = []
        for file in sorted(self._folder.glob("*.json")):
            # The trainer may leave at this moment.
            with contextlib.suppress(FileNotFoundError):
                found.append(Note(**json.loads(file.read_text())))
        return found

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
