"""Back up and defragment a running etcd: `python3 -m bireme_runtime.etcd.server.backup …`, in CronJobs.

`save FOLDER` writes a snapshot and `defragment` frees disk space. Both read BIREME_ETCD_ENDPOINTS, the user
(etcd requires root for both) and the TLS files of docs/runtime.md, BIREME_BACKUP_KEEP (number of snapshots to
keep, 7) and BIREME_WAIT_SECONDS. A snapshot gets its name once it is complete and its checksum is correct, so
the folder never contains a partial one; `latest.db` is the newest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from bireme_runtime.etcd import client as etcd
from bireme_runtime.process import environment
from bireme_runtime.process.errors import BiremeError
from bireme_runtime.process.exits import FAILED, USAGE
from bireme_runtime.process.log import Say, log_of

LATEST = "latest.db"
_USAGE = "usage: python3 -m bireme_runtime.etcd.server.backup save FOLDER | defragment"
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
    for old in sorted(folder.glob("etcd-*.db"))[:-keep]:
        old.unlink()
    return snapshot


def write_checked(pieces: Iterable[bytes], file: Path) -> None:
    """Write the pieces. Raises BackupFailed unless the last 32 bytes are the SHA-256 of the others."""
    digest, tail = hashlib.sha256(), b""
    with file.open("wb") as out:
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


def _point_at(snapshot: Path) -> None:
    """Make latest.db a link to the same file, in one step, so that it always exists."""
    link = snapshot.with_name(f".{LATEST}.part")
    link.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.link(snapshot, link)
        link.replace(snapshot.with_name(LATEST))


def defragment(client: etcd.Client, client_of: Callable[[str], etcd.Client], say: Say) -> None:
    """Return the space that compaction freed to the file system, one member at a time and the leader last.

    A member serves no requests meanwhile, so the next one waits until it answers again. `client_of` makes a
    client of one URL. Raises etcd.EtcdError.
    """
    leader = client.status().leader
    for each in sorted(client.members(), key=lambda known: known.id == leader):
        alone = client_of(each.client_urls[0])
        before = _bytes_used(alone)
        alone.with_timeout(_DEFRAGMENT_SECONDS).call("/v3/maintenance/defragment", {})
        etcd.wait_until_up(alone, _DEFRAGMENT_SECONDS, say)
        say(f"{each.name}: {before} bytes before, {_bytes_used(alone)} after")


def _bytes_used(client: etcd.Client) -> int:
    return int(client.call("/v3/maintenance/status", {}).get("dbSize", 0))


def run(argv: Sequence[str], env: Mapping[str, str], say: Say) -> None:
    """Carry out the command once etcd answers. Raises what save and defragment raise, and ValueError."""
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
    except (BackupFailed, etcd.EtcdError, OSError, ValueError) as error:
        say(str(error))
        return FAILED
    return 0


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Save or defragment; returns the exit code."""
    is_understood = (*argv[:1], len(argv)) in (("save", 2), ("defragment", 1))
    return attempt(lambda say: run(argv, env, say), is_understood, _USAGE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
