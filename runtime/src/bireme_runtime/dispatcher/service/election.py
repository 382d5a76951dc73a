"""The election of the leader: one key under a lease, whose revision fences the leader's writes."""

from __future__ import annotations

import json
import secrets
from typing import Any

from bireme_runtime.etcd import client as etcd
from bireme_runtime.process.errors import BiremeError


class NotLeader(BiremeError):
    """This replica does not lead."""


class Leadership:
    """The leader's key, which this replica owns from `campaign` until NotLeader is raised.

    Every transaction of the leader includes the comparison `unchanged`. If the answer to one is lost, etcd
    may still carry it out later. `renew` prevents that: it writes the key again, so that the comparison
    fails.
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
        """Comparison: this replica still leads and has not renewed its key."""
        return etcd.key_is_unchanged(self._key, self._revision)

    def renew(self) -> None:
        """Prevent etcd from carrying out earlier transactions. Raises NotLeader, Unavailable."""
        try:
            if self.campaign():
                return
        except etcd.LeaseLost:
            pass
        raise NotLeader("the leader's lease has ended")

    def campaign(self) -> bool:
        """Take the key if it is free; returns whether this replica leads. Raises Unavailable, LeaseLost.

        It is written if it has the known revision, or if an earlier write by this replica changed it.
        """
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
            if self._revision if held is None else json.loads(held.value)["id"] != self._id:
                return False
            self._revision = held.mod_revision if held is not None else 0
        raise etcd.Unavailable("five answers of etcd were lost in a row")


def leader_address(client: etcd.Client, key: str) -> str:
    """The leader's address as `host:port`; empty if there is no leader."""
    held = client.get(key)
    return str(json.loads(held.value)["address"]) if held else ""
