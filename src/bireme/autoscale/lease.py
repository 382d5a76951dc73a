"""One controller acts at a time: the one that holds a Lease."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from bireme.clusters.api import Api, ApiError

SECONDS = 15
_GROUP = "/apis/coordination.k8s.io/v1"


class Lease:
    """A Lease named ``name``, which ``holder`` takes when it is free or its holder has not renewed it.

    Whether another has renewed it is judged by this machine's clock alone, as Kubernetes' own do: clocks of
    two machines may differ."""

    def __init__(self, api: Api, namespace: str, name: str, holder: str) -> None:
        self._api, self._name, self._holder = api, name, holder
        self._collection = f"{_GROUP}/namespaces/{namespace}/leases"
        self._seen: tuple[str, float] = ("", 0.0)
        self._renewed: float | None = None
        self.other = ""

    @property
    def is_held(self) -> bool:
        """Whether nobody else can have taken it: it was renewed less than two thirds of its time ago."""
        return self._renewed is not None and time.monotonic() - self._renewed < SECONDS * 2 / 3

    def renew(self) -> bool:
        """Take or renew it; False while another has it, whose name is then ``other``. Raises ApiError."""
        asked = time.monotonic()
        live = self._api.find(f"{self._collection}/{self._name}")
        if live is None:
            held = self._write(None)
        else:
            spec = live.get("spec") or {}
            self.other = str(spec.get("holderIdentity") or "")
            version = live["metadata"]["resourceVersion"]
            if version != self._seen[0]:
                # The time of the answer, which may come long after the question.
                self._seen = (version, time.monotonic())
            is_stale = asked - self._seen[1] > SECONDS
            held = (self.other in ("", self._holder) or is_stale) and self._write(live)
        self._renewed = asked if held else None
        return held

    def release(self) -> None:
        """Let another take it at once. Raises ApiError."""
        if self._renewed is not None:
            self._renewed = None
            live = self._api.find(f"{self._collection}/{self._name}")
            if live and (live.get("spec") or {}).get("holderIdentity") == self._holder:
                live["spec"]["holderIdentity"] = ""
                self._api.replace(f"{self._collection}/{self._name}", live)

    def _write(self, live: dict[str, Any] | None) -> bool:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        before = (live or {}).get("spec") or {}
        is_mine = before.get("holderIdentity") == self._holder
        spec = {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": SECONDS,
            "acquireTime": before.get("acquireTime", now) if is_mine else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (live is not None and not is_mine),
        }
        try:
            if live is None:
                self._api.create(self._collection, {"metadata": {"name": self._name}, "spec": spec})
            else:
                # The version in it makes the server refuse what another has changed meanwhile.
                self._api.replace(f"{self._collection}/{self._name}", {**live, "spec": spec})
        except ApiError as error:
            if error.status == 409:
                return False
            raise
        return True
