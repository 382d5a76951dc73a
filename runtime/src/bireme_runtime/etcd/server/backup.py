"""Back up, defragment and restore etcd: `python3 -m bireme_runtime.etcd.server.backup …`.

`save FOLDER` writes a snapshot and `defragment` frees disk space. Both read BIREME_ETCD_ENDPOINTS, the user
(etcd requires root for both) and the TLS files of docs/runtime.md, BIREME_BACKUP_KEEP (number of snapshots to
keep, 7) and BIREME_WAIT_SECONDS. A snapshot gets its name once it is complete and its checksum is correct, so
the folder never contains a partial one; `latest.db` is the newest.

`fetch CLAIM FOLDER FILE` copies a snapshot for a member that starts from it. It reads nothing for one that
will not, because it has data in BIREME_ETCD_DATA_DIR or because POD_NAME is not that of ordinal 0.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from bireme_runtime.etcd import client as etcd
from bireme_runtime.etcd.server.member import has_data
from bireme_runtime.process import environment
from bireme_runtime.process.errors import FAILED, USAGE, BiremeError
from bireme_runtime.process.log import Say, log_of

LATEST = "latest.db"
_USAGE = (
    "usage: python3 -m bireme_runtime.etcd.server.backup save FOLDER | defragment | fetch CLAIM FOLDER FILE"
)
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
_DIGEST_BYTES = 32
# Enough to rewrite the largest recommended database, 8 GiB, on a slow disk.
_DEFRAGMENT_SECONDS = 300.0


class BackupFailed(BiremeError):
    """No snapshot was kept; the message says why."""


def save(client: etcd.Client, folder: Path, keep: int) -> Path:
    """Write a snapshot into the folder, delete all but the newest `keep`, and return its file.

    Raises BackupFailed, etcd.EtcdError or OSError; the folder's snapshots are then unchanged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    snapshot = folder / time.strftime("etcd-%Y%m%dT%H%M%SZ.db", time.gmtime())
    part = folder / f".{snapshot.name}.part"
    try:
        write_checked(client.snapshot(), part)
        part.replace(snapshot)
    finally:
        part.unlink(missing_ok=True)
    _point_at(snapshot)
    names = [each.name for each in folder.glob("etcd-*.db")]
    for old in superseded(names, snapshot.name, keep):
        (folder / old).unlink()
    check_newest(names, snapshot.name)
    return snapshot


def superseded(names: Iterable[str], saved: str, keep: int) -> list[str]:
    """The names to delete once `saved` is there: all before it but the newest `keep`, with `saved`."""
    return sorted(name for name in names if name <= saved)[:-keep]


def check_newest(names: Iterable[str], saved: str) -> None:
    """Raises BackupFailed if another snapshot has a later time than the one that was just saved."""
    newest = max(names)
    if newest > saved:
        raise BackupFailed(
            f"{saved} is saved, but {newest} has a later time, so a clock is or was wrong: "
            "delete that one, or it counts as the newest"
        )


def write_checked(pieces: Iterable[bytes], file: Path) -> None:
    """Write the pieces. Raises BackupFailed unless the last 32 bytes are the SHA-256 of the others.

    The file is for its user and group alone: a snapshot has the passwords of etcd's users, as hashes.
    """
    digest, tail = hashlib.sha256(), b""
    with open(file, "wb", opener=lambda path, flags: os.open(path, flags, 0o640)) as out:
        for piece in pieces:
            out.write(piece)
            known = tail + piece
            digest.update(known[:-_DIGEST_BYTES])
            tail = known[-_DIGEST_BYTES:]
        out.flush()
        os.fsync(out.fileno())
    if digest.digest() != tail:
        raise BackupFailed(
            "the snapshot does not match its checksum, as happens when a server stops; try again"
        )


def fetch(pieces: Iterable[bytes], file: Path, env: Mapping[str, str], say: Say) -> None:
    """Write a snapshot that is there only when it is complete, if the member may start from one.

    Only ordinal 0 does, without data of its own. Raises as `write_checked` and the pieces do.
    """
    data = env.get("BIREME_ETCD_DATA_DIR")
    is_first = env.get("POD_NAME", "").endswith("-0")
    if data and (not is_first or has_data(Path(data))):
        # The next container restores it for nobody.
        file.write_bytes(zlib.decompress(base64.b85decode(_EMPTY)))
        say("this member starts without the snapshot: nothing is fetched")
        return
    part = file.with_name(f".{file.name}.part")
    write_checked(pieces, part)
    part.replace(file)
    say(f"{file.name}: {file.stat().st_size} bytes")


def _of_claim(claim: Path, name: str) -> Iterator[bytes]:
    """The bytes of the claim's snapshot of that name. Raises BackupFailed if there is none."""
    try:
        with (claim / name).open("rb") as source:
            yield from iter(lambda: source.read(_CHUNK), b"")
    except FileNotFoundError as error:
        advice = "name one of its files in restore.file, and its folder in restore.subPath"
        raise BackupFailed(f"the claim has no snapshot {name}: {advice}") from error


def _point_at(snapshot: Path) -> None:
    """Make latest.db a link to the same file, in one step, so that it always exists."""
    link = snapshot.with_name(f".{LATEST}.part")
    link.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.link(snapshot, link)
        link.replace(snapshot.with_name(LATEST))


def defragment(client: etcd.Client, client_of: Callable[[str], etcd.Client], say: Say) -> None:
    """Return the space that compaction freed to the file system, one member at a time and the leader last.

    A member serves no requests meanwhile, so the next one waits until it answers again. Then the alarms about
    space are cleared: etcd raises them again at the next write if there is still none. `client_of` makes a
    client of one URL. Raises etcd.EtcdError.
    """
    leader = client.status().leader
    for each in sorted(client.members(), key=lambda known: known.id == leader):
        alone = client_of(each.client_urls[0])
        before = _bytes_used(alone)
        alone.with_timeout(_DEFRAGMENT_SECONDS).call("/v3/maintenance/defragment", {})
        etcd.wait_until_up(alone, _DEFRAGMENT_SECONDS, say)
        say(f"{each.name}: {before} bytes before, {_bytes_used(alone)} after")
    for alarm in client.call("/v3/maintenance/alarm", {"action": "GET"}).get("alarms", ()):
        if alarm.get("alarm") == "NOSPACE":
            client.call("/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})
            say("the alarm about space is cleared: etcd takes writes again")


def _bytes_used(client: etcd.Client) -> int:
    return int(client.call("/v3/maintenance/status", {}).get("dbSize", 0))


def run(argv: Sequence[str], env: Mapping[str, str], say: Say) -> None:
    """Carry out the command. Raises what save, defragment and fetch raise, and ValueError."""
    if argv[0] == "fetch":
        fetch(_of_claim(Path(argv[1]), argv[3]), Path(argv[2], argv[3]), env, say)
        return
    endpoints = env.get("BIREME_ETCD_ENDPOINTS", "")
    client = etcd.client_from(endpoints, env)
    etcd.wait_until_up(client, environment.seconds(env, "BIREME_WAIT_SECONDS", 600), say)
    if argv[0] == "save":
        kept = save(client, Path(argv[1]), environment.integer(env, "BIREME_BACKUP_KEEP", 7))
        say(f"{kept.name}: {kept.stat().st_size} bytes")
    else:
        defragment(client, lambda url: etcd.client_from(url, env), say)


def attempt(act: Callable[[Say], None], is_understood: bool, usage: str) -> int:
    """Call ``act``, or print the usage unless the arguments were understood; returns the exit code."""
    say = log_of("backup")
    if not is_understood:
        print(usage)
        return USAGE
    try:
        act(say)
    except (BiremeError, OSError, ValueError) as error:
        say(str(error))
        return FAILED
    return 0


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Save, defragment or fetch; returns the exit code."""
    is_understood = (*argv[:1], len(argv)) in (("save", 2), ("defragment", 1), ("fetch", 4))
    return attempt(lambda say: run(argv, env, say), is_understood, _USAGE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
