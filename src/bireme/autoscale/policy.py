"""What a chart says about a job whose number of workers may change: the annotation on its Job."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from bireme.core.errors import BiremeError

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True)
class Schedule:
    """Other bounds at some hours: from ``start`` to ``end`` by the clock of ``zone``, also past midnight.

    ``days`` are those on which it starts, all if there are none."""

    start: time
    end: time
    zone: str = "UTC"
    days: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None

    def holds(self, moment: datetime) -> bool:
        """Whether ``moment``, which knows its time zone, is within it."""
        local = moment.astimezone(ZoneInfo(self.zone))
        clock = local.time()
        if self.start < self.end:
            return self.start <= clock < self.end and self._starts_on(local)
        if clock >= self.start:
            return self._starts_on(local)
        return clock < self.end and self._starts_on(local - timedelta(days=1))

    def _starts_on(self, local: datetime) -> bool:
        return not self.days or _DAYS[local.weekday()] in self.days


@dataclass(frozen=True)
class Policy:
    """The bounds of a job and how it moves between them; seconds and workers.

    ``query`` is one of Prometheus; the job shall have a worker for each ``per_worker`` of its value."""

    minimum: int
    maximum: int
    step: int = 1
    spares: int = 0
    cooldown: float = 300.0
    reserve: int = 0
    schedules: tuple[Schedule, ...] = ()
    query: str = ""
    per_worker: float = 1.0

    @classmethod
    def of(cls, text: str) -> Policy:
        """From the annotation. Raises BiremeError when it is none of the charts'."""
        try:
            given = json.loads(text)
            metric = given.get("metric") or {}
            return cls(
                int(given["min"]),
                int(given["max"]),
                int(given.get("step", 1)),
                int(given.get("spares", 0)),
                float(given.get("cooldown", 300)),
                int(given.get("reserve", 0)),
                tuple(map(_schedule, given.get("schedules") or ())),
                str(metric.get("query", "")),
                float(metric.get("perWorker", 1)),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BiremeError(f"its annotation is not what the chart writes ({error}): upgrade it") from error

    def bounds(self, now: float, measured: float | None = None) -> tuple[int, int]:
        """The fewest and the most workers at ``now`` (seconds since 1970); a schedule that holds wins.

        ``measured``: the value of the query, if there is one."""
        moment = datetime.fromtimestamp(now, UTC)
        low, high = self.minimum, self.maximum
        for schedule in self.schedules:
            if schedule.holds(moment):
                low = schedule.minimum if schedule.minimum is not None else low
                high = schedule.maximum if schedule.maximum is not None else high
                break
        if measured is not None:
            wanted = math.ceil(math.ceil(max(measured, 0) / self.per_worker) / self.step) * self.step
            high = min(max(wanted, low), high)
        return low, high


def _schedule(given: Mapping[str, Any]) -> Schedule:
    return Schedule(
        time.fromisoformat(given["from"]),
        time.fromisoformat(given["to"]),
        str(given.get("timeZone") or "UTC"),
        tuple(given.get("days") or ()),
        given.get("min"),
        given.get("max"),
    )
