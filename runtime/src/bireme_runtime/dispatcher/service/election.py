"""Who leads the dispatchers: one key under a lease, whose revision fences what the leader writes."""

from __future__ import annotations

import json
import secrets
from typing import Any

from bireme_runtime.etcd import client as etcd


class NotLeader(Exception):
    """Somebody else leads, or nobody."""


class Leadership:
    """The leader's key, ours from `campaign` until NotLeader is raised.

    Every transaction of the leader compares `unchanged`. When one's answer is lost it may still be on its
    way: `renew` writes the key anew, after which it cannot be carried out any more.
    """

    def __init__(self, client: etcd.Client, key: str, address: str, lease: int) -> None:
        self._client = client
        self._key = key
        self._address = address
        self._id = secrets.token_hex(8)
        self._count = 0
        self.lease = lease
        self._revision = 0

    @property
    def unchanged(self) -> dict[str, Any]:
        """Comparison: we still lead, and have not renewed."""
        return etcd.key_is_unchanged(self._key, self._revision)

    def campaign(self) -> bool:
        """Take the key if nobody has it; returns whether it is ours. Raises Unavailable, LeaseLost."""
        return self._write()

    def renew(self) -> None:
        """Make everything void that is still on its way. Raises NotLeader, Unavailable."""
        try:
            if self._write():
                return
        except etcd.LeaseLost:
            pass
        raise NotLeader("the leader's lease is gone")

    def _write(self) -> bool:
        """Write the key over the revision we know; an earlier attempt of ours that came late is ours too."""
        for _ in range(5):
            self._count += 1
            record = {"address": self._address, "id": self._id, "count": self._count}
            put = etcd.put_op(self._key, json.dumps(record), self.lease)
            try:
                outcome = self._client.txn([self.unchanged], [put])
            except etcd.Ambiguous:
                outcome = None
            if outcome is not None and outcome.succeeded:
                self._revision = outcome.revision
                return True
            held = self._client.get(self._key)
            if held is not None and json.loads(held.value)["id"] != self._id:
                return False
            if held is None and self._revision:
                return False
            if held is not None and held.mod_revision != self._revision:
                self._revision = held.mod_revision
        raise etcd.Unavailable("etcd's answers are lost again and again")


def leader_address(client: etcd.Client, key: str) -> str:
    """Where the leader listens, as `host:port`; empty when there is none."""
    held = client.get(key)
    return str(json.loads(held.value)["address"]) if held else ""
