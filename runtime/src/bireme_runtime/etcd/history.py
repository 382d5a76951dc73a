"""What the clients of one pod know of etcd's data: whose it is, and that it has only become more.

Another cluster's data are not looked at: the known one may still answer others. A cluster that has fewer
revisions than before, or far more at once (a snapshot was restored), has lost data.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from bireme_runtime.etcd.messages import AnotherCluster
from bireme_runtime.process.page import Page, Word

# A page that the clients of one pod share, also with those that start later.
HISTORY = "BIREME_ETCD_HISTORY"
# charts/etcd restores a snapshot with twice as many revisions more than it had.
_JUMP = 500_000_000


class History(Page):
    """The cluster, its highest revision, how often it has lost data, and since when these data are known."""

    NAME = "bireme-history"

    revision: Word[int] = Word("@q", 8)
    """The highest revision of the present data."""
    losses: Word[int] = Word("@q", 16)
    """How often etcd has lost data, as far as this pod knows."""
    _cluster: Word[int] = Word("@Q", 0)
    _since: Word[float] = Word("@d", 24)

    def __init__(self, descriptor: int = -1, path: str = "") -> None:
        super().__init__(descriptor, path)
        self._lock = threading.Lock()

    @property
    def known(self) -> tuple[int, int]:
        """The losses and the revision when a question is asked. `heard` takes them with the answer."""
        return self.losses, self.revision

    @property
    def seconds(self) -> float:
        """For how long the present data are known, by a clock that goes on while the machine sleeps."""
        return _now() - self._since if self._cluster else 0.0

    def heard(
        self, endpoint: object, header: Mapping[str, Any], before: tuple[int, int] | None = None
    ) -> None:
        """Note what an endpoint says of its data. Raises AnotherCluster.

        `before`: what was `known` when it was asked, if its answer is of all data until then.
        """
        cluster, revision = int(header.get("cluster_id", 0)), int(header.get("revision", 0))
        with self._lock:
            known = self._cluster
            if cluster and known and cluster != known:
                raise AnotherCluster(
                    f"{endpoint} is of another etcd ({cluster:x}) than this pod knows ({known:x}), which may "
                    "still answer others"
                )
            # The answer to a question from before a noted loss would count that loss again, or undo it.
            if before is not None and cluster and before[0] == self.losses:
                lost = known and not before[1] <= revision < before[1] + _JUMP
                if lost or not known:
                    self._since = _now()
                self.revision = revision if lost else max(revision, self.revision)
                self._cluster = cluster
                # Last: a process that sees the new count must find the revision of the new data.
                if lost:
                    self.losses += 1


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
