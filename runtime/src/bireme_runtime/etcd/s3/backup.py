"""Snapshots of etcd in S3: `python3 -m bireme_runtime.etcd.s3.backup save FOLDER` or `… fetch FOLDER FILE`.

Both read BIREME_BACKUP_URL (s3://BUCKET/PREFIX) and the variables that sources/web reads. `save`
writes a snapshot into FOLDER as etcd/server/backup.py does, uploads it below the prefix and deletes all but
the newest BIREME_BACKUP_KEEP (7) there. `fetch` downloads FILE from there; for latest.db, the newest
snapshot. `fetch` asks nothing of S3 for a member that will not use it, because it has data in
BIREME_ETCD_DATA_DIR or because POD_NAME is not that of ordinal 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from bireme_runtime.etcd import client as etcd
from bireme_runtime.etcd.server import backup
from bireme_runtime.process import environment
from bireme_runtime.process.log import Say
from bireme_runtime.sources.source import Entry, SourceError
from bireme_runtime.sources.web.s3 import s3_source

_USAGE = "usage: python3 -m bireme_runtime.etcd.s3.backup save FOLDER | fetch FOLDER FILE"
_CHUNK = 1 << 20


class Store:
    """The snapshots below a prefix of a bucket."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._url = env.get("BIREME_BACKUP_URL", "").rstrip("/")
        self._source = s3_source(self._url, env)

    def snapshots(self) -> list[Entry]:
        """The snapshots, the newest last. Raises as S3Source does."""
        found = (each for each in self._source.found() if fnmatch(each.path, "etcd-*.db"))
        return sorted(found, key=lambda each: each.path)

    def add(self, snapshot: Path, keep: int) -> str:
        """Upload a snapshot, delete all but the newest `keep`, and return the snapshot's URL."""
        self._source.put(snapshot.name, snapshot)
        found = {each.path: each.key for each in self.snapshots()}
        for old in backup.superseded(found, snapshot.name, keep):
            self._source.delete(found[old])
        backup.check_newest(found, snapshot.name)
        return f"{self._url}/{snapshot.name}"

    def pieces(self, name: str) -> Iterator[bytes]:
        """The bytes of a snapshot; for latest.db, of the newest. Raises SourceError if there is none."""
        found = self.snapshots()
        wanted = found[-1:] if name == backup.LATEST else [each for each in found if each.path == name]
        if not wanted:
            raise SourceError(f"{self._url} has no snapshot {name}; it has {len(found)} others")
        (entry,) = wanted
        with self._source.read(entry, 0, entry.size) as body:
            yield from iter(lambda: body.read(_CHUNK), b"")


def run(argv: Sequence[str], env: Mapping[str, str], say: Say) -> None:
    """Carry out the command. Raises what backup.run and S3Source raise."""
    folder = Path(argv[1])
    store = Store(env)
    if argv[0] == "save":
        client = etcd.client_from(env.get("BIREME_ETCD_ENDPOINTS", ""), env)
        etcd.wait_until_up(client, environment.seconds(env, "BIREME_WAIT_SECONDS", 600), say)
        snapshot = backup.save(client, folder, keep=1)
        place = store.add(snapshot, environment.integer(env, "BIREME_BACKUP_KEEP", 7))
        say(f"{place}: {snapshot.stat().st_size} bytes")
    else:
        backup.fetch(store.pieces(argv[2]), folder / argv[2], env, say)


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Save or fetch; returns the exit code."""
    is_understood = (*argv[:1], len(argv)) in (("save", 2), ("fetch", 3))
    return backup.attempt(lambda say: run(argv, env, say), is_understood, _USAGE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
