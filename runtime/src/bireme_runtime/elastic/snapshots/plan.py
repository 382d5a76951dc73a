"""What the members of a round agree on: which snapshot they go on from, and who keeps copies for whom.

Each agent tells what its worker keeps, through the store of the round. That of rank 0 decides for all, and
each writes the answer for its processes and for its keeper.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bireme_runtime.elastic import fence
from bireme_runtime.elastic.snapshots.files import Folder, Part, write
from bireme_runtime.process.log import Say

FOLDER, FLUSH, COPIES = "BIREME_SNAPSHOTS", "BIREME_SNAPSHOT_FLUSH", "BIREME_SNAPSHOT_COPIES"
KEEPER, _PLAN, _KEY = "keeper", "plan", "bireme/snapshots/"
# Ends of older worlds are forgotten, and their parts count no more.
_ENDS = 8
CLAIM = -1
"""The claim, among the places of a part, which are numbers of workers."""


@dataclass(frozen=True)
class Keeper:
    """Where the keeper of a worker listens, what proves that one may ask it, and the node that it is on."""

    address: str
    port: int
    key: str
    node: str = ""


@dataclass(frozen=True)
class Plan:
    """The plan of the round with this token, as worker ``rank`` gets it.

    ``made`` is token and step of the snapshot that all go on from, None without one. Its ``parts`` parts have
    ``places``: workers, nearest first. Each worker sends copies to those that are ``shifts`` ranks further.
    ``ends`` are the steps, by token, from which newer worlds went on: what comes after them counts no more.
    """

    token: int = 0
    rank: int = 0
    made: tuple[int, int] | None = None
    parts: int = 0
    places: Mapping[int, Sequence[int]] = field(default_factory=dict)
    keepers: Sequence[Keeper] = ()
    shifts: Sequence[int] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)

    def allows(self, part: Part) -> bool:
        """Whether this round may use a part: not what an old world made after the others had left it."""
        return part.token >= self.token or part.step <= self.ends.get(part.token, -1)

    @property
    def copy_to(self) -> list[Keeper]:
        """The keepers to which this worker sends copies."""
        return [self.keepers[(self.rank + shift) % len(self.keepers)] for shift in self.shifts]

    def settle(self, folder: Folder) -> None:
        """Keep it in the folder of the worker, and free what it does not allow."""
        write(folder.path / _PLAN, asdict(self))
        for part in folder.parts():
            if not self.allows(part):
                folder.free(part)

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """The last plan that was written there."""
        try:
            return cls.of(json.loads((folder / _PLAN).read_text()))
        except (OSError, ValueError):
            return cls()

    @classmethod
    def of(cls, record: dict[str, Any]) -> Plan:
        """The plan that JSON has told."""
        record["made"] = tuple(record["made"]) if record["made"] else None
        for name in ("places", "ends"):
            record[name] = {int(key): value for key, value in record[name].items()}
        record["keepers"] = [Keeper(**each) for each in record["keepers"]]
        return cls(**record)


def newest(
    held: Mapping[int, Iterable[Part]], last: Plan
) -> tuple[tuple[int, int] | None, int, dict[int, list[int]]]:
    """The newest snapshot of which each part is somewhere: token and step, number of parts, their places.

    ``held``: the parts by place. ``last``: the newest plan that a member knows.
    """
    found: dict[tuple[tuple[int, int], int], dict[int, list[int]]] = {}
    for place in sorted(held, key=lambda each: (each == CLAIM, each)):
        for part in filter(last.allows, held[place]):
            found.setdefault((part.made, part.parts), {}).setdefault(part.part, []).append(place)
    whole = [key for key, places in found.items() if len(places) == key[1]]
    return (*max(whole), found[max(whole)]) if whole else (None, 0, {})


def shifts(nodes: Sequence[str], copies: int) -> list[int]:
    """By how many ranks copies go further: to other nodes if possible, and near by rank.

    Each worker keeps as many copies for others as it has of its own.
    """

    def same(shift: int) -> int:
        return sum(node == nodes[(rank + shift) % len(nodes)] for rank, node in enumerate(nodes))

    return sorted(range(1, len(nodes)), key=lambda shift: (same(shift), shift))[:copies]


def meet(store: Any, rank: int, size: int, env: Mapping[str, str], say: Say) -> None:
    """Agree with all members of the round, by its store. Without a folder for snapshots there is none."""
    if not env.get(FOLDER) or not (Path(env[FOLDER]) / KEEPER).exists():
        return
    folder = Folder(Path(env[FOLDER]))
    keeper, last = json.loads((folder.path / KEEPER).read_text()), Plan.read(folder.path)
    told = {
        "keeper": keeper,
        "last": [last.token, last.ends],
        "parts": [part.name for part in folder.parts()],
    }
    store.set(f"{_KEY}{rank}", json.dumps(told))
    if rank == 0:
        everyone = [json.loads(store.get(f"{_KEY}{each}")) for each in range(size)]
        store.set(f"{_KEY}plan", json.dumps(asdict(_decide(everyone, env, say))))
    own = {name: env[name] for name in (fence.RUN, fence.ROUND, fence.TOKEN, fence.KEY, fence.BOARD)}
    Plan.of({**json.loads(store.get(f"{_KEY}plan")), "rank": rank, "env": own}).settle(folder)


def _decide(everyone: Sequence[Mapping[str, Any]], env: Mapping[str, str], say: Say) -> Plan:
    held: dict[int, list[Part]] = {
        rank: [part for part in map(Part.of, each["parts"]) if part] for rank, each in enumerate(everyone)
    }
    if env.get(FLUSH):
        held[CLAIM] = list(Folder(Path(env[FLUSH])).parts())
    token, known = max((each["last"] for each in everyone), key=lambda each: int(each[0]))
    ends = {int(each): step for each, step in known.items()}
    found, parts, places = newest(held, Plan(token, ends=ends))
    older = [(each, step) for each, step in sorted(ends.items()) if found and each < found[0]]
    ends = dict([*older, found][-_ENDS:]) if found else {}
    keepers = [Keeper(**each["keeper"]) for each in everyone]
    apart = shifts([each.node for each in keepers], int(env.get(COPIES) or 1))
    if found:
        only = [part for part, where in places.items() if where == [CLAIM]]
        how = f"; of {len(only)} of its {parts} parts only the claim has a copy" if only else ""
        say(f"snapshots: the round goes on from step {found[1]}{how}")
    elif any(held.values()):
        say("snapshots: none has all its parts, so the script goes on from its own checkpoint")
    return Plan(int(env[fence.TOKEN]), 0, found, parts, places, keepers, apart, ends=ends)


def from_env(env: Mapping[str, str] = os.environ) -> Plan:
    """The plan of the round in which this process trains; an empty one outside a round."""
    plan = Plan.read(Path(env[FOLDER])) if env.get(FOLDER) else Plan()
    return plan if str(plan.token) == env.get(fence.TOKEN) else Plan()
