"""What earlier attempts copied, as a journal on the claim."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bireme_runtime.dataset.lists import Lists, Row


@dataclass
class EarlierCopies:
    """What earlier attempts copied of a path: the last whole file; parts by version and unfinished file."""

    file: Mapping[str, Any] | None = None
    parts: dict[tuple[str, str], set[int]] = field(default_factory=dict)

    def unfinished(self, version: str) -> dict[str, set[int]]:
        """The parts in each unfinished file of a version; none without one, as they may be of another."""
        return {name: parts for (of, name), parts in self.parts.items() if version and of == version}


class Journal:
    """A log on the claim of what has been copied, a line of JSON each. Each index appends to its own."""

    def __init__(self, folder: Path, index: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name = folder, f"journal-{index}.jsonl"
        self._lock = threading.Lock()
        self._file = (folder / self._name).open("a", encoding="utf-8")

    def past(self, lists: Lists) -> Iterator[tuple[str, EarlierCopies]]:
        """What the journals of all indexes hold so far, sorted by path. Parts are those of this index.

        It is read when the first one is asked for.
        """
        for path, records in itertools.groupby(lists.sorted(self._rows()), key=lambda row: row[0]):
            past = EarlierCopies()
            for _, (record,) in records:
                if "part" in record:
                    past.parts.setdefault((record["version"], record.get("into", "")), set()).add(
                        record["part"]
                    )
                else:
                    past.file = record
            yield path, past

    def _rows(self) -> Iterator[Row]:
        for file in sorted(self._folder.glob("journal-*.jsonl")):
            with file.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    try:
                        record = json.loads(line)
                        path = record.pop("path")
                    except (ValueError, KeyError, AttributeError):
                        continue  # a line that was not completed when a pod was killed
                    if "part" not in record or file.name == self._name:
                        yield path, [record]

    def add(self, **record: Any) -> None:
        """Append a file or a part that has been written."""
        line = json.dumps(record)
        with self._lock:
            # The first newline ends a line that was not completed.
            self._file.write(f"\n{line}\n")
            self._file.flush()
