"""The worlds of an elastic run: who was in each, why it began, and how its steps went."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple

from bireme.core.errors import BiremeError
from bireme.core.plain import Plain

_NAMED = 5


class WorldMember(NamedTuple):
    """A worker of a world by its name (the index of its pod); ``start`` differs for each of its agents."""

    worker: str
    node: str
    start: str


@dataclass(frozen=True)
class World(Plain):
    """One round. Times are in seconds since 1970. ``seats`` are by rank, ``steps`` are times and steps.

    ``cause`` is the kind of what began it: began, failed, hang, lost, joined or restarted.
    ``end`` is when a process failed, or else when the next world began. ``lost_steps`` were repeated.
    ``lost_seconds`` passed between the last step of the round before and the first new one.
    ``blocked_seconds`` are those of one worker in snapshots.
    """

    names: ClassVar[Mapping[str, str]] = {"begin": "time", "seats": "workers", "steps": "samples"}

    round: int
    begin: float
    end: float
    cause: str
    why: str
    seats: tuple[WorldMember, ...]
    steps: tuple[tuple[float, int], ...]
    lost_steps: int
    lost_seconds: float
    blocked_seconds: float = 0.0

    @property
    def steps_per_second(self) -> float:
        """The mean between the first and the last step; 0 with fewer than two."""
        if len(self.steps) < 2 or self.steps[-1][0] <= self.steps[0][0]:
            return 0.0
        (began, first), (ended, last) = self.steps[0], self.steps[-1]
        return max(0.0, (last - first) / (ended - began))

    def to_json(self) -> dict[str, Any]:
        rounded = {
            "stepsPerSecond": round(self.steps_per_second, 4),
            "lostSeconds": round(self.lost_seconds, 1),
        }
        return super().to_json() | rounded


@dataclass(frozen=True)
class Timeline(Plain):
    """What is known of a run until ``now``. The first of ``worlds`` may not be the run's first."""

    names: ClassVar[Mapping[str, str]] = {"now": "time"}

    job: str
    now: float
    worlds: tuple[World, ...]

    @classmethod
    def of(cls, job: str, answer: Mapping[str, Any], events: Sequence[tuple[float, str]] = ()) -> Timeline:
        """From what a worker answers to /v1/timeline (docs/runtime.md).

        ``events``: what else is known of the job, with times in seconds since 1970.
        """
        records: Sequence[Mapping[str, Any]] = sorted(answer["worlds"], key=lambda each: int(each["round"]))
        worlds: list[World] = []
        highest: tuple[float, int] | None = None
        for number, record in enumerate(records):
            after = records[number + 1] if number + 1 < len(records) else None
            steps = tuple((float(when), int(step)) for when, step in record.get("samples", ()))
            lost = 0.0
            if highest and steps:
                new = next((when for when, step in steps if step > highest[1]), steps[-1][0])
                lost = max(0.0, new - highest[0])
            if steps:
                last = max(steps, key=lambda each: (each[1], each[0]))
                highest = last if highest is None or last[1] > highest[1] else highest
            seats = tuple(WorldMember(*each) for each in record["workers"])
            before = worlds[-1].seats if worlds else None
            since, begin = worlds[-1].begin if worlds else -math.inf, float(record["time"])
            told = (sentence for when, sentence in events if since < when <= begin)
            cause, why = _why(record, before, seats)
            why = "; ".join([why, *told, *_from_snapshot(record)])
            worlds.append(
                World(
                    int(record["round"]), begin, _end(record, after, float(answer["time"])),
                    cause, why, seats, steps, int(record.get("lostSteps", 0)), lost,
                    float(record.get("blockedSeconds", 0.0)),
                )
            )  # fmt: skip
        return cls(job, float(answer["time"]), tuple(worlds))

    @property
    def lost_steps(self) -> int:
        """Steps that were made again."""
        return sum(world.lost_steps for world in self.worlds)

    @property
    def goodput(self) -> float | None:
        """The part of the time between the first and the last step that no restart has cost."""
        times = [when for world in self.worlds for when, _ in world.steps]
        if not times or max(times) <= min(times):
            return None
        return max(0.0, 1 - sum(world.lost_seconds for world in self.worlds) / (max(times) - min(times)))

    @property
    def summary(self) -> str:
        """The run in one line."""
        if not self.worlds:
            return f"{self.job}: no world has begun"
        count, most = len(self.worlds), max(len(world.seats) for world in self.worlds)
        worlds, workers = "world" if count == 1 else "worlds", "worker" if most == 1 else "workers"
        line = f"{self.job}: {count} {worlds} of up to {most} {workers} in"
        line += f" {lasted(self.now - self.worlds[0].begin)}"
        if self.goodput is not None:
            line += f", {self.lost_steps} steps made again, goodput {self.goodput:.1%}"
        return line

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for ``-o json``; `of` reads it too."""
        return super().to_json() | {"lostSteps": self.lost_steps, "goodput": self.goodput}


def read(text: str, name: str) -> Timeline:
    """The timeline that ``bireme timeline -o json`` has printed to file ``name``. Raises BiremeError."""
    try:
        answer = json.loads(text)
        return Timeline.of(str(answer["job"]), answer)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        why = repr(error)[:200]
        raise BiremeError(f"{name} is not what bireme timeline -o json prints: {why}") from error


def lasted(seconds: float) -> str:
    """A duration in at most two units."""
    whole = round(seconds)
    for unit, size, smaller, small in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small} {smaller}"
    return f"{whole} s"


def clock(when: float) -> str:
    """A time of day, in UTC."""
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _end(record: Mapping[str, Any], after: Mapping[str, Any] | None, now: float) -> float:
    if "end" in record:
        return float(record["end"])
    if after is None:
        return now
    failed = after.get("failure", {}).get("time", after["time"])
    return max(float(record["time"]), min(float(failed), float(after["time"])))


def _why(
    record: Mapping[str, Any], before: Sequence[WorldMember] | None, seats: Sequence[WorldMember]
) -> tuple[str, str]:
    """Why a world began, as its kind and in words: who failed first, and who came and went."""
    if "why" in record:
        return str(record["cause"]), str(record["why"])
    if before is None:
        return "began", "the run began" if record["round"] == 1 else "earlier worlds are not kept"
    was, now = {each.worker: each for each in before}, {each.worker: each for each in seats}
    both = [(was[name], seat) for name, seat in now.items() if name in was]
    failure = record.get("failure", {}).get("sentence", "")
    again = [new.worker for old, new in both if old.node == new.node and old.start != new.start]
    found = [
        ("failed", failure),
        ("lost", _told([name for name in was if name not in now], "was lost", "were lost")),
        ("joined", _told([name for name in now if name not in was], "joined", "joined")),
        (
            "restarted",
            _told([new.worker for old, new in both if old.node != new.node], "moved to another node"),
        ),
        ("restarted", _told(again, "started again")),
    ]
    told = [each for each in found if each[1]]
    other = _OTHERS.get(record["cause"], ("restarted", "the workers met again"))
    return (told[0][0], "; ".join(words for _, words in told)) if told else other


def _from_snapshot(record: Mapping[str, Any]) -> list[str]:
    """In words, which snapshot a world goes on from. A timeline that was read from a file has said it."""
    if "why" in record or "snapshot" not in record:
        return []
    step, parts, claim = (record["snapshot"][name] for name in ("step", "parts", "claim"))
    where = f", {claim} of {parts} parts from the claim" if claim else ""
    return [f"it goes on from the snapshot of step {step}{where}"]


BAD_CAUSES = ("failed", "hang", "lost")
_OTHERS = {"agent": ("restarted", "an agent started again"), "hang": ("hang", "no step for too long")}


def _told(names: Sequence[str], one: str, many: str = "") -> str:
    if len(names) < 2:
        return f"worker {names[0]} {one}" if names else ""
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"workers {', '.join(names[:_NAMED])}{rest} {many or one}"
