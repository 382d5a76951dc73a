"""The lock of a release: of the runs that share its checkpoints one trains, and the others wait (in etcd).

    <prefix>.lock/<lock>/<run id>/<id>  under the lease of each member: this run trains

A member writes its key only while no other run has any, so a run holds the lock for as long as one of its
members lives.
"""

from __future__ import annotations

from bireme_runtime.elastic.rendezvous.rules import RunSettings
from bireme_runtime.etcd import client as etcd


class Locked(Exception):
    """Another run took the lock first."""


class RunLock:
    """The lock as one run sees it."""

    def __init__(self, client: etcd.Client, settings: RunSettings) -> None:
        self._client = client
        self._root = f"{settings.prefix}.lock/{settings.lock}/"
        self._mine = f"{self._root}{settings.run_id}/"

    def awaited(self) -> str:
        """What to wait for while another run holds the lock, in words. Empty while none does."""
        mine, root = self._mine, self._root
        before, after = self._client.spans(
            etcd.Span(root, mine, keys_only=True, limit=1),
            etcd.Span(etcd.prefix_end(mine).decode(), etcd.prefix_end(root), keys_only=True, limit=1),
        )
        for kv in (*before.keys, *after.keys):
            run = kv.key[len(root) :].rpartition("/")[0]
            return f"run {run} to end: it trains with {before.count + after.count} workers"
        return ""

    def claim(self, id: str, lease: int) -> None:
        """Hold it under the lease of this member; twice is harmless. Raises Locked when another run does."""
        mine, root = self._mine, self._root
        compare = [etcd.none_in(root, mine), etcd.none_in(etcd.prefix_end(mine), etcd.prefix_end(root))]
        if not self._client.txn(compare, [etcd.put_op(f"{mine}{id}", "", lease)]).succeeded:
            raise Locked
