"""Why a world makes no step: the rank for which the others wait, the collective, the line, and what to do.

The analysis needs no torch. It reads what each rank tells: the stack of its main thread, and the collectives
that torch's Flight Recorder has kept (docs.pytorch.org, "Flight Recorder for Debugging Stuck Jobs").
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import zip_longest
from statistics import median
from typing import Any

DEFAULT_GROUP = "the default group"
# Of each group, the newest. Ranks of one hang are rarely further apart.
_KEPT_CALLS = 40
_NAMED = 8
# A rank is late if it comes last to most of so many collectives, by so much.
_COMPARED, _MOST, _LATE_SECONDS = 5, 0.8, 0.1
# Whose shapes are the same on all ranks. Others may differ, as those of all_to_all.
_SAME_SHAPES = ("all_reduce", "allreduce", "broadcast", "all_gather", "reduce", "reduce_scatter")
_PEER = re.compile(r"(\d+)\s*(<-|->)\s*(\d+)")
_NOT_THE_USERS = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<|^(?:torch|numpy|bireme_runtime)/")


@dataclass(frozen=True)
class Call:
    """One collective of one rank. ``number`` counts those of its group, from 1.

    ``line`` is where the script called it, ``created`` when, in seconds since 1970. ``peer`` is the rank that
    a send or receive waits for, else -1.
    """

    group: str
    number: int
    name: str
    sizes: Any
    dtypes: Any
    done: bool
    created: float
    line: str = ""
    peer: int = -1

    @property
    def form(self) -> tuple[str, str, str]:
        """What has to be the same on all ranks."""
        sizes = json.dumps(self.sizes) if self.name.strip("_").startswith(_SAME_SHAPES) else ""
        return self.name, sizes, json.dumps(self.dtypes)

    @property
    def text(self) -> str:
        """The call in words."""
        shape = _shape(self.sizes, self.dtypes)
        of, at = f", of {shape}" if shape else "", f" at {self.line}" if self.line else ""
        return f"{self.name} {self.number} of {self.group}{of}{at}"


@dataclass(frozen=True)
class RankState:
    """Where one training process stands: its last step, if it tells them, and the stack of its main thread.

    ``frames`` begin with the outermost call, as ``name (file:line)``. ``calls`` are the newest of each group,
    each the fields of `Call`. ``groups`` has the ranks of each group, where the recorder names them.
    """

    rank: int
    node: str = ""
    step: int | None = None
    frames: Sequence[str] = ()
    calls: Sequence[Sequence[Any]] = ()
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def frame(self) -> str:
        """What the process does, or "" where that is not known: the innermost call in the user's own code."""
        own = [each for each in self.frames if not _NOT_THE_USERS.search(_file(each))]
        return _short((own or list(self.frames) or [""])[-1])

    @property
    def communicates(self) -> bool:
        """Whether it is inside a call of torch.distributed."""
        return any(_file(each).startswith("distributed_c10d.py") for each in map(_short, self.frames))

    @property
    def place(self) -> str:
        """The rank and its node."""
        return f"rank {self.rank} on {self.node}" if self.node else f"rank {self.rank}"


@dataclass(frozen=True)
class Cause:
    """Why nothing goes on. ``ranks`` are to blame, if anybody is. ``certain``: the records leave no doubt."""

    kind: str
    sentence: str
    remedy: str
    ranks: tuple[int, ...] = ()
    certain: bool = False
    evidence: tuple[str, ...] = ()


_REMEDIES = {
    "data": "look at that rank's data loader: its workers, the storage that they read, and shared memory",
    "checkpoint": "look at the storage of the checkpoints, and let every rank take part in a collective save",
    "lock": "look for who holds the lock or fills the queue at that line",
    "script": "look at that line: every rank has to reach the same collectives",
    "missing": "the process has ended or does not answer: read its log, and start again without its node",
    "mismatch": "make the ranks call the same collective with the same shape and type at that line",
    "order": "make all ranks call these collectives in the same order",
    "deadlock": "make all ranks use the groups in the same order, or use one group after the other",
    "network": "all have entered, so the network or a device is at fault: start again, without a node that "
    "does so twice",
    "slow": "compare that rank's node with the others: its clock, temperature, storage and neighbours",
    "unknown": "set TORCH_FR_BUFFER_SIZE=2000 to record collectives: newer torch does so with NCCL and gloo",
}
_PLACES = (
    ("data", re.compile(r"utils/data/|dataloader\.py|\b(?:next_data|next_batch|load_batch)\b")),
    (
        "checkpoint",
        re.compile(r"torch/serialization|distributed/checkpoint|^\w*(?:save|checkpoint)\w* \("),
    ),
    ("lock", re.compile(r"threading\.py|multiprocessing/|queue\.py|\b(?:acquire|join)\b")),
)


def explain(states: Iterable[RankState], world: int = 0) -> Cause:
    """The cause, from what the ranks of a world of this size told. Without a size, all ranks have told."""
    told = {each.rank: each for each in states}
    ranks = range(max(world, max(told, default=-1) + 1))
    calls = {rank: [Call(*each) for each in state.calls] for rank, state in told.items()}
    if not any(calls.values()):
        return _by_stacks(list(told.values()))
    members = _members(told, calls, ranks)
    return (
        _mismatch(told, calls, by_line=False)
        or _mismatch(told, calls, by_line=True)
        or _waits(told, calls, members, ranks)
        or _late(told, calls)
        or _by_stacks(list(told.values()))
    )


def _members(
    told: Mapping[int, RankState], calls: Mapping[int, Sequence[Call]], ranks: Iterable[int]
) -> dict[str, set[int]]:
    """The ranks of each group: as recorded, all for the default group, else those that used it."""
    found: dict[str, set[int]] = {DEFAULT_GROUP: set(ranks)}
    for rank, made in calls.items():
        for call in made:
            found.setdefault(call.group, set()).add(rank)
    for state in told.values():
        for group, recorded in state.groups.items():
            found.setdefault(group, set()).update(recorded)
    return found


def _mismatch(
    told: Mapping[int, RankState], calls: Mapping[int, Sequence[Call]], by_line: bool
) -> Cause | None:
    """The first collective for which ranks came with different ones, if it or one after it is not over.

    ``by_line``: what they called is the same, but not where. That may be right, so it counts only where those
    ranks are the ones that wait.
    """

    def of(call: Call) -> object:
        return call.line if by_line else call.form

    table: dict[tuple[str, int], dict[int, Call]] = {}
    for rank, own in calls.items():
        for call in own:
            if call.peer < 0:
                table.setdefault((call.group, call.number), {})[rank] = call
    stuck: dict[str, set[int]] = {}
    for (group, _), made in table.items():
        stuck.setdefault(group, set()).update(rank for rank, call in made.items() if not call.done)
    for (group, number), made in sorted(table.items(), key=lambda each: each[0][1]):
        forms = Counter(of(call) for call in made.values())
        if not stuck[group] or len(forms) == 1:
            continue
        usual = forms.most_common(1)[0][0]
        most = next(call for call in made.values() if of(call) == usual)
        odd = sorted(rank for rank, call in made.items() if of(call) != usual)
        if by_line and stuck[group] != set(odd):
            continue
        mine = made[odd[0]]
        later = table.get((group, number + 1), {})
        others = [rank for rank in made if rank not in odd]
        skipped = any(rank in later and of(later[rank]) == of(mine) for rank in others)
        extra = odd[0] in later and of(later[odd[0]]) == of(most)
        who, rest = _named(told, odd), _named(told, sorted(others))
        evidence = (f"{who}: {mine.text}", f"{rest}: {most.text}")
        if skipped and extra:
            what = f"{who} made {mine.name} and {most.name} in another order than {rest}: {mine.text}"
            return Cause("order", what, _REMEDIES["order"], tuple(odd), len(odd) < len(others), evidence)
        if skipped:
            what = f"{who} left out {most.text}, which {rest} made"
        elif extra:
            what = f"{who} made one collective more than {rest}: {mine.text}"
        else:
            what = f"{who} made {mine.text}, where {rest} made {most.text}"
        return Cause("mismatch", what, _REMEDIES["mismatch"], tuple(odd), len(odd) < len(others), evidence)
    return None


def _waits(
    told: Mapping[int, RankState],
    calls: Mapping[int, Sequence[Call]],
    members: Mapping[str, set[int]],
    ranks: Iterable[int],
) -> Cause | None:
    """Who waits for whom in collectives that are not over, followed to those who wait for nobody."""
    pending = {
        rank: min(open_ones, key=lambda each: each.created)
        for rank, made in calls.items()
        if (open_ones := [call for call in made if not call.done])
    }
    if not pending:
        return None
    entered: dict[tuple[str, int], set[int]] = {}
    for rank, made in calls.items():
        for call in made:
            entered.setdefault((call.group, call.number), set()).add(rank)
    waits: dict[int, set[int]] = {}
    for rank, call in pending.items():
        missing = members[call.group] - entered[call.group, call.number]
        waits[rank] = {call.peer} if call.peer >= 0 else missing
    awaited = set().union(*waits.values())
    free = sorted(awaited - set(pending))
    # A recorder that leaves out sends and receives does not show who waits in one, but the stack does.
    free = [rank for rank in free if rank not in told or not told[rank].communicates] or free
    idle = sorted(set(ranks) - set(pending))
    recorded = {group for state in told.values() for group in state.groups} | {DEFAULT_GROUP}
    inside = [rank for rank in sorted(pending) if not waits[rank]]
    unsure = bool(not free and idle and inside and pending[inside[0]].group not in recorded)
    evidence = tuple(f"{told[rank].place}: {call.text}" for rank, call in sorted(pending.items())[:_NAMED])
    if free or unsure:
        blamed = free or idle
        for_them = [rank for rank in sorted(pending) if waits[rank] & set(blamed)] or inside
        nearest = min(for_them, key=lambda rank: len(waits[rank]))
        return _not_entered(told, blamed, pending[nearest], sorted(pending), evidence, not unsure)
    if inside:
        what = f"{_named(told, inside)} entered {pending[inside[0]].text}, and none came out of it"
        return Cause("network", what, _REMEDIES["network"], (), False, evidence)
    what = "; ".join(
        f"{told[rank].place} waits in {pending[rank].text} for {_named(told, sorted(waits[rank]))}"
        for rank in sorted(pending)[:_NAMED]
    )
    blamed = sorted(pending)
    remedy = _REMEDIES["deadlock"]
    return Cause("deadlock", f"ranks wait for each other: {what}", remedy, tuple(blamed), True, evidence)


def _not_entered(
    told: Mapping[int, RankState],
    blamed: Sequence[int],
    call: Call,
    waiting: Sequence[int],
    evidence: tuple[str, ...],
    certain: bool,
) -> Cause:
    """Ranks for which others wait in ``call`` and which wait for nobody."""
    present = [told[rank] for rank in blamed if rank in told and (told[rank].frames or told[rank].calls)]
    who, others = _named(told, blamed), _named(told, waiting)
    has, wait = "has" if len(blamed) == 1 else "have", "waits" if len(waiting) == 1 else "wait"
    what = f"{who} {has} not entered {call.text}, where {others} {wait}"
    if not present:
        what += ", and told nothing"
        return Cause("missing", what, _REMEDIES["missing"], tuple(blamed), certain, evidence)
    frame = present[0].frame
    kind = _place(present[0].frames)
    if frame:
        what += f": {present[0].place} is in {frame}"
    return Cause(kind, what, _REMEDIES[kind], tuple(blamed), certain and bool(frame), evidence)


def _late(told: Mapping[int, RankState], calls: Mapping[int, Sequence[Call]]) -> Cause | None:
    """The rank that comes last to most collectives, where clocks agree."""
    table: dict[tuple[str, int], dict[int, float]] = {}
    for rank, made in calls.items():
        for call in made:
            table.setdefault((call.group, call.number), {})[rank] = call.created
    shared = [times for times in table.values() if len(times) > 1]
    last = Counter(max(times, key=lambda rank: times[rank]) for times in shared)
    if len(shared) < _COMPARED:
        return None
    rank, count = last.most_common(1)[0]
    behind = [
        times[rank] - median(t for r, t in times.items() if r != rank) for times in shared if rank in times
    ]
    late = median(behind)
    if count < _MOST * len(shared) or late < _LATE_SECONDS:
        return None
    what = f"{told[rank].place} comes last to {count} of {len(shared)} collectives, by {late:.2g} s"
    where = f", from {told[rank].frame}" if told[rank].frame else ""
    return Cause("slow", what + where, _REMEDIES["slow"], (rank,))


def _by_stacks(states: Sequence[RankState]) -> Cause:
    """The cause where no collectives are recorded: who is behind, or does something else than most."""
    slow = slowest(states)
    if slow:
        kind = _place(slow.frames)
        at = f" in {slow.frame}" if slow.frame else ""
        behind = f", after step {slow.step}" if slow.step is not None else ""
        return Cause(kind, f"all wait for {slow.place}{at}{behind}", _REMEDIES[kind], (slow.rank,))
    frames = {each.frame for each in states}
    if len(frames) == 1 and len(states) > 1 and (frame := frames.pop()):
        kind = _place(states[0].frames)
        return Cause(kind, f"all ranks are in {frame}", _REMEDIES[kind])
    return Cause("unknown", "no rank can be told from the others", _REMEDIES["unknown"])


def slowest(states: Iterable[RankState]) -> RankState | None:
    """The process for which the others wait, if steps or stacks tell it.

    It has made the fewest steps, or is the one that does something else than most.
    """
    found = sorted(states, key=lambda each: each.rank)
    steps = [each.step for each in found if each.step is not None]
    if len(steps) == len(found) and len(set(steps)) > 1:
        return min(found, key=lambda each: (each.step or 0, each.rank))
    # The outermost difference tells most: ranks that do the same are caught in different lines below it.
    for frames in zip_longest(*(map(_short, each.frames) for each in found), fillvalue=""):
        counts = Counter(frames)
        if len(counts) > 1:
            frame, count = min(counts.items(), key=lambda each: each[1])
            return found[frames.index(frame)] if count * 2 < len(found) else None
    return None


def recorded(dump: bytes) -> tuple[list[list[Any]], dict[str, list[int]]]:
    """The calls and groups of a Flight Recorder's dump, pickled or as JSON. Raises ValueError for others.

    Of each group the newest calls are kept.
    """
    try:
        record = json.loads(dump) if dump[:1] == b"{" else _Plain(io.BytesIO(dump)).load()
        groups = {
            _group(name, config.get("desc", "")): [
                int(rank) for rank in re.findall(r"\d+", str(config["ranks"]))
            ]
            for name, config in record.get("pg_config", {}).items()
            if name
        }
        newest: dict[str, deque[list[Any]]] = {}
        for entry in record["entries"]:
            call = _call(entry)
            newest.setdefault(call[0], deque(maxlen=_KEPT_CALLS)).append(call)
    except (AttributeError, EOFError, IndexError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise ValueError(f"it is no dump of torch's Flight Recorder: {error!r}") from error
    return [call for calls in newest.values() for call in calls], groups


def _call(entry: Mapping[str, Any]) -> list[Any]:
    """The fields of `Call` from an entry of the recorder."""
    name = str(entry["profiling_name"]).rpartition(":")[2]
    peer = _PEER.search(name)
    # "2<-1" is rank 2 that receives from rank 1, and "2->1" one that sends.
    frames = [f"{each['name']} ({each['filename']}:{each['line']})" for each in entry.get("frames", ())]
    own = [each for each in frames if not _NOT_THE_USERS.search(_file(each))]
    number = entry["p2p_seq_id"] if entry.get("is_p2p") else entry["collective_seq_id"]
    call = Call(
        group=_group(*entry["process_group"]),
        number=int(number),
        name=name,
        sizes=entry["input_sizes"],
        dtypes=entry.get("input_dtypes", []),
        done=bool(entry.get("retired")) or entry["state"] == "completed",
        created=entry["time_created_ns"] / 1e9,
        line=_short(own[0]).rpartition("(")[2].rstrip(")") if own else "",
        peer=int(peer[3]) if peer else -1,
    )
    return list(astuple(call))


class _Plain(pickle.Unpickler):
    """Reads numbers, texts and containers only, because a dump may come from anybody."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a dump")


def _group(name: str, description: str) -> str:
    if description == "default_pg":
        return DEFAULT_GROUP
    return f"group {name}" if description in ("", "undefined") else f"group {name} ({description})"


def _place(frames: Sequence[str]) -> str:
    """Where a process is, by its stack: "data", "checkpoint", "lock" or "script"."""
    found = (kind for kind, pattern in _PLACES if any(map(pattern.search, frames)))
    return next(found, "script")


def _named(told: Mapping[int, RankState], ranks: Sequence[int]) -> str:
    """Ranks in words: the node of a single one, and the first of many."""
    if len(ranks) == 1:
        return told[ranks[0]].place if ranks[0] in told else f"rank {ranks[0]}"
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:_NAMED]))}{more}"


def _file(frame: str) -> str:
    return frame.rpartition("(")[2]


def _short(frame: str) -> str:
    """A frame with the name of its file alone."""
    name, bracket, file = frame.rpartition("(")
    return f"{name}{bracket}{file.rpartition('/')[2]}"


def _shape(sizes: Any, dtypes: Any) -> str:
    shapes = ["×".join(map(str, each)) or "1" for each in sizes]
    return ", ".join(
        f"{shape} {kind}".strip() for shape, kind in zip_longest(shapes[:3], dtypes[:3], fillvalue="")
    )
