"""Back up and defragment a running etcd: `python3 -m bireme_runtime.etcd.server.backup …`, in CronJobs.

Reads BIREME_ETCD_ENDPOINTS, the user (root: etcd wants it for both) and files of docs/runtime.md,
BIREME_BACKUP_KEEP (snapshots that stay, 7) and BIREME_WAIT_SECONDS. A snapshot gets its name when it is whole
and its checksum holds, so a reader of the folder never meets half a one; `latest.db` is the newest.
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

LATEST = "latest.db"
_USAGE = "usage: python3 -m bireme_runtime.etcd.server.backup save FOLDER | defragment"
_DIGEST_BYTES = 32
# Rewriting the largest database that etcd allows, 8 GiB, on a slow disk.
_DEFRAGMENT_SECONDS = 300.0


class BackupFailed(Exception):
    """No snapshot was kept; the message says why."""


def save(client: etcd.Client, folder: Path, keep: int) -> Path:
    """Write a snapshot into the folder, which keeps the newest `keep`, and return its file.

    Raises BackupFailed, etcd.EtcdError or OSError; the folder's snapshots are then as they were.
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
    """Write the pieces and see that they end in the SHA-256 of what came before. Raises BackupFailed."""
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
            "the snapshot does not match its checksum, as when a server stops half-way; try again"
        )


def _point_at(snapshot: Path) -> None:
    """Make latest.db the same file; the name never points at nothing."""
    link = snapshot.with_name(f".{LATEST}.part")
    link.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.link(snapshot, link)
        link.replace(snapshot.with_name(LATEST))


def defragment(client: etcd.Client, member: Callable[[str], etcd.Client], say: Callable[[str], None]) -> None:
    """Give the disk back what compaction freed, one member at a time and the leader last.

    A member serves nothing meanwhile, so the next one waits until it answers again. `member` makes a client
    of one client URL. Raises etcd.EtcdError.
    """
    leader = client.status().leader
    for each in sorted(client.members(), key=lambda known: known.id == leader):
        alone = member(each.client_urls[0])
        before = _bytes_used(alone)
        alone.with_timeout(_DEFRAGMENT_SECONDS).call("/v3/maintenance/defragment", {})
        etcd.wait_until_up(alone, _DEFRAGMENT_SECONDS, say)
        say(f"{each.name}: {before} bytes before, {_bytes_used(alone)} after")


def _bytes_used(client: etcd.Client) -> int:
    return int(client.call("/v3/maintenance/status", {}).get("dbSize", 0))


def run(argv: Sequence[str], env: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Do what the arguments say once etcd answers. Raises what save and defragment raise, and ValueError."""
    endpoints = env.get("BIREME_ETCD_ENDPOINTS", "")
    client = etcd.client_from(endpoints, env)
    etcd.wait_until_up(client, float(env.get("BIREME_WAIT_SECONDS", "600")), say)
    if argv[0] == "save":
        kept = save(client, Path(argv[1]), int(env.get("BIREME_BACKUP_KEEP", "7")))
        say(f"{kept.name}: {kept.stat().st_size} bytes")
    else:
        defragment(client, lambda url: etcd.client_from(url, env), say)


def attempt(act: Callable[[Callable[[str], None]], None], is_understood: bool, usage: str) -> int:
    """Act, and say what goes wrong; the exit code is 1 then, and 64 after the usage if that was needed."""

    def say(sentence: str) -> None:
        print(f"bireme backup: {sentence}", file=sys.stderr, flush=True)

    if not is_understood:
        print(usage)
        return 64
    try:
        act(say)
    except (BackupFailed, etcd.EtcdError, OSError, ValueError) as error:
        say(str(error))
        return 1
    return 0


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Save or defragment; the exit code is 1, after a sentence, if that failed, and 64 for other words."""
    is_understood = (*argv[:1], len(argv)) in (("save", 2), ("defragment", 1))
    return attempt(lambda say: run(argv, env, say), is_understood, _USAGE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
