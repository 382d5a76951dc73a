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
from bireme_runtime.sources.web.s3 import S3Source, s3_source

_USAGE = "usage: python3 -m bireme_runtime.etcd.s3.backup save FOLDER | fetch FOLDER FILE"
_CHUNK = 1 << 20


def run(argv: Sequence[str], env: Mapping[str, str], say: Say) -> None:
    """Carry out the command. Raises what backup.run and S3Source raise."""
    folder, url = Path(argv[1]), env.get("BIREME_BACKUP_URL", "").rstrip("/")
    source = s3_source(url, env)
    if argv[0] == "fetch":
        backup.fetch(_pieces(source, url, argv[2]), folder / argv[2], env, say)
        return
    client = etcd.client_from(env.get("BIREME_ETCD_ENDPOINTS", ""), env)
    etcd.wait_until_up(client, environment.seconds(env, "BIREME_WAIT_SECONDS", 600), say)
    snapshot, keep = backup.save(client, folder, keep=1), environment.integer(env, "BIREME_BACKUP_KEEP", 7)
    source.put(snapshot.name, snapshot)
    found = {each.path: each.key for each in _snapshots(source)}
    for old in backup.superseded(found, snapshot.name, keep):
        source.delete(found[old])
    backup.check_newest(found, snapshot.name)
    say(f"{url}/{snapshot.name}: {snapshot.stat().st_size} bytes")


def _snapshots(source: S3Source) -> list[Entry]:
    """The snapshots below the prefix, the newest last."""
    found = (each for each in source.found() if fnmatch(each.path, "etcd-*.db"))
    return sorted(found, key=lambda each: each.path)


def _pieces(source: S3Source, url: str, name: str) -> Iterator[bytes]:
    """The bytes of a snapshot; for latest.db, of the newest. Raises SourceError if there is none."""
    found = _snapshots(source)
    wanted = found[-1:] if name == backup.LATEST else [each for each in found if each.path == name]
    if not wanted:
        raise SourceError(f"{url} has no snapshot {name}; it has {len(found)} others")
    (entry,) = wanted
    with source.read(entry, 0, entry.size) as body:
        yield from iter(lambda: body.read(_CHUNK), b"")


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Save or fetch; returns the exit code."""
    is_understood = (*argv[:1], len(argv)) in (("save", 2), ("fetch", 3))
    return backup.attempt(lambda say: run(argv, env, say), is_understood, _USAGE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
