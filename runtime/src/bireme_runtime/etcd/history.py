"""What the clients of one pod know of etcd's data: whose it is, and that it has only become more.

Another cluster's data are not looked at: the known one may still answer others. A cluster that has fewer
revisions than before, or far more at once (a snapshot was restored), has lost data.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from typing import Any

from bireme_runtime.etcd.messages import AnotherCluster
from bireme_runtime.process.page import Page

# A page that the clients of one pod share, also with those that start later.
HISTORY = "BIREME_ETCD_HISTORY"
# charts/etcd restores a snapshot with twice as many revisions more than it had.
_JUMP = 500_000_000
_CLUSTER, _REVISION, _LOSSES, _SINCE = ("@Q", 0), ("@q", 8), ("@q", 16), ("@d", 24)


class History(Page):
    """The cluster, its highest revision, how often it has lost data, and since when these data are known."""

    NAME = "bireme-history"

    def __init__(self, descriptor: int = -1, path: str = "") -> None:
        super().__init__(descriptor, path)

    def _get(self, word: tuple[str, int]) -> Any:
        return struct.unpack_from(word[0], self._memory, word[1])[0]

    def _set(self, word: tuple[str, int], value: float) -> None:
        struct.pack_into(word[0], self._memory, word[1], value)

    @property
    def revision(self) -> int:
        """The highest revision of the present data."""
        return int(self._get(_REVISION))

    @property
    def losses(self) -> int:
        """How often etcd has lost data, as far as this pod knows."""
        return int(self._get(_LOSSES))

    @property
    def seconds(self) -> float:
        """For how long the present data are known, by a clock that goes on while the machine sleeps."""
        return _now() - float(self._get(_SINCE)) if self._get(_CLUSTER) else 0.0

    def heard(self, endpoint: object, header: Mapping[str, Any], before: int | None = None) -> None:
        """Note what an endpoint says of its data. Raises AnotherCluster.

        `before`: the revision that was known when it was asked, if its answer is of all data until then.
        """
        cluster, revision = int(header.get("cluster_id", 0)), int(header.get("revision", 0))
        known = self._get(_CLUSTER)
        if cluster and known and cluster != known:
            raise AnotherCluster(
                f"{endpoint} is of another etcd ({cluster:x}) than this pod knows ({known:x}), which may "
                "still answer others"
            )
        if before is not None and cluster:
            lost = known and not before <= revision < before + _JUMP
            if lost:
                self._set(_LOSSES, self.losses + 1)
            if lost or not known:
                self._set(_SINCE, _now())
            self._set(_REVISION, revision if lost else max(revision, self.revision))
            self._set(_CLUSTER, cluster)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
