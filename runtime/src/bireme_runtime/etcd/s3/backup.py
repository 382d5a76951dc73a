"""Snapshots of etcd in S3: `python3 -m bireme_runtime.etcd.s3.backup save FOLDER` or `… fetch FOLDER FILE`.

Both read BIREME_BACKUP_URL (s3://BUCKET/PREFIX) and the variables that sources/source.py reads for S3. `save`
writes a snapshot into FOLDER as etcd/server/backup.py does, uploads it below the prefix and deletes all but
the newest BIREME_BACKUP_KEEP (7) there. `fetch` downloads FILE from there; for latest.db, the newest
snapshot. `fetch` asks nothing of S3 for a member that will not use it, because it has data in
BIREME_ETCD_DATA_DIR or because POD_NAME is not that of ordinal 0.
"""

from __future__ import annotations

import base64
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from bireme_runtime.etcd import client as etcd
from bireme_runtime.etcd.server import backup, member
from bireme_runtime.process import environment
from bireme_runtime.process.errors import BiremeError
from bireme_runtime.process.log import Say
from bireme_runtime.sources.places import open_source
from bireme_runtime.sources.source import Entry, S3Source, SourceError

_USAGE = "usage: python3 -m bireme_runtime.etcd.s3.backup save FOLDER | fetch FOLDER FILE"
_CHUNK = 1 << 20
# A snapshot of an empty etcd. etcdutl, which restores the snapshot in the next container, cannot be told
# to do nothing, and its image has no shell.
_EMPTY = (
    "c-rmSO=}ZD7zgld8a0-net;HbjuMh=lHDdbh+y#`qEJmirG#nnq+Pl%Wp@%PwFf~w_yIhs2T$Im=&2{Yd#fkEK*XzuqO;~{N"
    "R)I7UaI_mVKVz<W_D+GlEdsIl^V)$KKPs)q~n7N!#JIq^n;z^c!u+}*{5=4@5WpT000000000^9OEz7|A*z*_nt4`{eJrZcN"
    "72s00000;N(e<^4ZbzfLA)j>-$R_zvbrxiyRMhIy+W=+L(+l>bEmGzsB)BWB5OT!*bV{JpW^^zsqq^ck29D`K|Qu`k!=?t_;"
    "1T!N{IkpI*lp9mmf&ayn(X%@XyU$O(KdHhz5;xD*}dg3XA+#ENaV7byyl+qrW*6WnZBUqN@TQm_l94SJY#F_&aSNtHbER*&r"
    "XWRK!`+0x0bTDHAvwHHj17In9U(-DoTW!7q?vR$((cBO8bmYEluL}7F3W+WO9#JW<OjbhO(FBD4pWj3niO1&;t^1_!MiH7J<"
    "SN2>b@}liJ<g2L-ExT0F4R^Trt&qH+Po3n!DmlGQW^{a&zu{$$H+b|}j-#=;iS_vx5|_6Fzk5eXMcbku=t+wQ@aK)uW7c1qp"
    "rz-iuSedMZbUn}Y2@gM_EpRAJG8}T&qOK+<r<Aozdo_|+u#5I00000jx>Ws1ONa40002Me=jpy|6~6j`~S&3!v22@`~Ls{00"
    "02+@5z1KpS$w<-J-BAKY73V_5O#0%$JvMvM=UKkM=v?n$La$zvCah"
)


class Store:
    """The snapshots below a prefix of a bucket."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._url = env.get("BIREME_BACKUP_URL", "").rstrip("/")
        source = open_source(self._url, env)
        if not isinstance(source, S3Source):
            raise SourceError(f"BIREME_BACKUP_URL: {self._url} is not s3://BUCKET/PREFIX")
        self._source = source

    def snapshots(self) -> list[Entry]:
        """The snapshots, the newest last. Raises as S3Source does."""
        found = self._source.listed()
        return sorted((each for each in found if fnmatch(each.path, "etcd-*.db")), key=lambda each: each.path)

    def add(self, snapshot: Path, keep: int) -> str:
        """Upload a snapshot, delete all but the newest `keep`, and return the snapshot's URL."""
        self._source.put(snapshot.name, snapshot)
        for old in self.snapshots()[:-keep]:
            self._source.delete(old.key)
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


def _will_be_used(env: Mapping[str, str]) -> bool:
    data = env.get("BIREME_ETCD_DATA_DIR")
    is_first = env.get("POD_NAME", "").endswith("-0")
    return not data or (is_first and not member.has_data(Path(data)))


def run(argv: Sequence[str], env: Mapping[str, str], say: Say) -> None:
    """Carry out the command. Raises what backup.run and S3Source raise."""
    folder = Path(argv[1])
    if argv[0] == "fetch" and not _will_be_used(env):
        (folder / argv[2]).write_bytes(zlib.decompress(base64.b85decode(_EMPTY)))
        say("this member starts without the snapshot: nothing is fetched")
        return
    store = Store(env)
    if argv[0] == "save":
        client = etcd.client_from(env.get("BIREME_ETCD_ENDPOINTS", ""), env)
        etcd.wait_until_up(client, environment.seconds(env, "BIREME_WAIT_SECONDS", 600), say)
        snapshot = backup.save(client, folder, keep=1)
        place = store.add(snapshot, environment.integer(env, "BIREME_BACKUP_KEEP", 7))
        say(f"{place}: {snapshot.stat().st_size} bytes")
    else:
        part = folder / f".{argv[2]}.part"
        backup.write_checked(store.pieces(argv[2]), part)
        part.replace(folder / argv[2])
        say(f"{argv[2]}: {(folder / argv[2]).stat().st_size} bytes")


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Save or fetch; returns the exit code."""

    def act(say: Say) -> None:
        try:
            run(argv, env, say)
        except BiremeError as error:
            raise backup.BackupFailed(str(error)) from error

    return backup.attempt(act, (*argv[:1], len(argv)) in (("save", 2), ("fetch", 3)), _USAGE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
