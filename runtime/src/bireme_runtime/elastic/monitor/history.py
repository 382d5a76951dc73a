"""The worlds of a run, for `bireme timeline`: who was in each, why it began, and how its steps went.

Keys in etcd, under `<prefix>.history/<run id>/`:

    worlds/<round>   written by the worker of rank 0: the workers by rank, with their nodes, and the cause
    steps/<round>    written by the worker that sees steps, if it has the first or the last rank
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from bireme_runtime.elastic.monitor import failures
from bireme_runtime.elastic.rendezvous import rules
from bireme_runtime.etcd import client as etcd

# Of large worlds fewer are kept.
_MOST_WORLDS, _FEWEST_WORLDS, _MOST_MEMBERS = 200, 20, 50_000
_SAMPLES, _SECONDS = 60, 5.0


class History:
    """The history of the run that one worker tells and reads. Raises EtcdError."""

    def __init__(self, client: etcd.Client, prefix: str, run_id: str, ledger: failures.EtcdLedger) -> None:
        self._client, self._ledger = client, ledger
        self._run, self._root = f"{prefix}{run_id}/", f"{prefix}.history/{run_id}/"
        self._round = 0
        self._pause = _SECONDS
        self._samples: list[tuple[float, int]] = []

    def world(self, round: int, cause: str, more: Mapping[str, Any]) -> None:
        """This round begins. ``cause``: why this worker's processes start again, if not for others.

        ``more``: the snapshot that it goes on from.
        """
        now, nodes = time.time(), self._ledger.nodes()
        view = rules.view_of(self._run, self._client.range(self._run))
        if view.round is None or view.number != round:
            # The next one has begun.
            return
        workers = []
        for id, base in zip(view.round.members, view.round.bases):
            host, _, start = base.rpartition("-")
            name = host
            if id in view.members and view.members[id].slot < rules.NO_SLOT:
                name = str(view.members[id].slot)
            workers.append([name, nodes.get(name, ""), start])
        record: dict[str, Any] = {"time": round_time(now), "cause": cause, "workers": workers, **more}
        # Without a failure in the round before, members have joined or left.
        failed = failures.first_of(self._ledger.of_round(round - 1))
        if failed:
            record["failure"] = {"time": round_time(failed.time), "sentence": failed.sentence}
        self._client.put(self._key("worlds", round), json.dumps(record))
        kept = max(_FEWEST_WORLDS, min(_MOST_WORLDS, _MOST_MEMBERS // len(workers)))
        for what in ("worlds", "steps"):
            self._client.delete_span(self._key(what, 0), self._key(what, max(0, round + 1 - kept)))

    def steps(
        self, round: int, points: Iterable[tuple[float, int]], lost: Mapping[str, float], last: bool
    ) -> None:
        """At these times this round was at these steps. ``last``: keep them however soon they follow.

        ``lost``: the steps and seconds that its start has cost, and the seconds spent in snapshots.
        """
        if round != self._round:
            self._round, self._pause, self._samples = round, _SECONDS, []
        known, before = self._samples, len(self._samples)
        for when, step in points:
            since = when - known[-1][0] if known else 0.0
            if not known or (step != known[-1][1] and since >= (0.1 if last else self._pause)):
                known.append((round_time(when), step))
        if len(known) == before:
            return
        if len(known) > _SAMPLES:
            del known[1:-1:2]
            self._pause *= 2
        self._client.put(self._key("steps", round), json.dumps({"samples": known, **lost}))

    def read(self) -> list[dict[str, Any]]:
        """The worlds that are kept, by round, each with its steps."""
        worlds: dict[str, dict[str, Any]] = {}
        for what in ("worlds", "steps"):
            folder = f"{self._root}{what}/"
            for kv in self._client.range(folder).keys:
                number = kv.key[len(folder) :]
                if what == "worlds" or number in worlds:
                    worlds.setdefault(number, {"round": int(number)}).update(json.loads(kv.value))
        return list(worlds.values())

    def _key(self, what: str, number: int) -> str:
        return f"{self._root}{what}/{number:010d}"


def round_time(seconds: float) -> float:
    """A time as it is kept."""
    return round(seconds, 1)
