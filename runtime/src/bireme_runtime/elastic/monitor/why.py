"""Why a world makes no step: the rank for which the others wait, the collective, the line, and what to do.

The analysis needs no torch. It reads what each rank tells: the stack of its main thread, and the collectives
that torch's Flight Recorder has kept (docs.pytorch.org, "Flight Recorder for Debugging Stuck Jobs").
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import zip_longest
from statistics import median
from typing import Any

DEFAULT_GROUP = "the default group"
# What all ranks of a run write into etcd has to stay small.
_KEPT_CALLS = 12
_NAMED = 8
# A rank is late if it comes last to most of so many collectives, by so much.
_COMPARED, _MOST, _LATE_SECONDS = 5, 0.8, 0.1
# Whose shapes are the same on all ranks. Others may differ, as those of all_to_all.
_SAME_SHAPES = ("all_reduce", "allreduce", "broadcast", "all_gather", "reduce")
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

    ``frames`` begin with the outermost call, as ``name (file:line)``. ``calls`` are the last of each group,
    each the fields of `Call`. ``groups`` has the ranks of groups. The recorder does not name them all.
    ``signs`` speak against its node, each with its weight.
    """

    rank: int
    node: str = ""
    step: int | None = None
    frames: Sequence[str] = ()
    calls: Sequence[Sequence[Any]] = ()
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)
    signs: Mapping[str, int] = field(default_factory=dict)

    @property
    def frame(self) -> str:
        """What the process does, or "" where that is not known: the innermost call in the user's own code."""
        return _short((_users(self.frames) or list(self.frames) or [""])[-1])

    @property
    def communicates(self) -> bool:
        """Whether it is inside a call of torch.distributed."""
        return any(_file(each).startswith("distributed_c10d.py") for each in map(_short, self.frames))

    def with_dump(self, dump: bytes) -> RankState:
        """The same with what a dump of the Flight Recorder says. Raises ValueError as `recorded`."""
        calls, groups = recorded(dump)
        return replace(self, calls=calls, groups=groups)

    @property
    def place(self) -> str:
        """The rank and its node."""
        return f"rank {self.rank} on {self.node}" if self.node else f"rank {self.rank}"


@dataclass(frozen=True)
class Cause:
    """Why nothing goes on. ``ranks`` are to blame, if anybody is. ``certain``: the records leave no doubt.

    ``line`` is where in the script, if it is known.
    """

    kind: str
    sentence: str
    ranks: tuple[int, ...] = ()
    certain: bool = False
    evidence: tuple[str, ...] = ()
    line: str = ""

    @property
    def bug(self) -> str:
        """The fault of the script that a restart would meet again, and its line; empty for any other."""
        return f"{self.kind} at {self.line}" if self.line and self.kind in _OF_THE_CODE else ""

    @property
    def remedy(self) -> str:
        """What to do."""
        return _REMEDIES[self.kind]


_REMEDIES = {
    "data": "look at that rank's data loader: its workers, the storage that they read, and shared memory",
    "checkpoint": "look at the storage of the checkpoints, and let every rank take part in a collective save",
    "held": "look for who has stopped it, or at the storage or device for which it waits in the kernel",
    "lock": "look for who holds the lock or fills the queue at that line",
    "script": "look at that line: every rank has to reach the same collectives",
    "missing": "the process has ended or does not answer: read its log, and start again without its node",
    "mismatch": "make the ranks call the same collective with the same shape and type at that line",
    "order": "make all ranks call these collectives in the same order",
    "deadlock": "make all ranks use the groups in the same order, or use one group after the other",
    "network": "all have entered, so the network or a device is at fault: start again, without a node that "
    "does so twice",
    "slow": "compare that rank's node with the others: its clock, temperature, storage and neighbours",
    "exception": "mend that line: a restart meets it again",
    "ended": "read what it printed: its last words name the cause, or the command that it ran",
    "memory": "give it more memory, a smaller batch, or more workers among which the state is sharded",
    "sharedMemory": "give it more shared memory, or fewer workers of the data loader",
    "device": "start again without that node, whose device reports a fault",
    "evicted": "look at the node and at the pod's priority: it was taken away, and did not fail by itself",
    "unknown": "set TORCH_FR_BUFFER_SIZE=2000 to record collectives: newer torch does so with NCCL and gloo",
}
# No node and no network makes ranks call something else.
_OF_THE_CODE = ("mismatch", "order", "deadlock")
_PLACES = (
    ("held", re.compile(r"^state ")),
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
    run = _World(told, {rank: [Call(*each) for each in state.calls] for rank, state in told.items()}, world)
    found = run.mismatch(by_line=False) or run.mismatch(by_line=True) or run.waits() or run.late()
    found = found or _by_stacks(list(told.values()))
    return found if found.bug else _with_signs(found, told.values())


def _with_signs(cause: Cause, states: Iterable[RankState]) -> Cause:
    """The cause with what speaks against the nodes of those who are to blame, or of all: the most first."""
    blamed = [each for each in states if each.rank in cause.ranks or not cause.ranks]
    signs = {f"{each.node}: {sign}": weight for each in blamed for sign, weight in each.signs.items()}
    most = sorted(signs, key=lambda each: -signs[each])[:_NAMED]
    sentence = "; ".join([cause.sentence, *most[: cause.kind == "network"]])
    return replace(cause, sentence=sentence, evidence=(*cause.evidence, *most))


def loads(frames: Sequence[str]) -> bool:
    """Whether these are the calls of a data loader's process that does not wait to be asked."""
    at = next((at for at, each in enumerate(frames) if each.startswith("_worker_loop ")), len(frames))
    return bool(_users(frames[at:]))


class _World:
    """A world: the states that its ranks told, and the collective calls by group, number and rank."""

    def __init__(self, told: Mapping[int, RankState], calls: Mapping[int, Sequence[Call]], size: int) -> None:
        self.told = told
        self.all = set(range(max(size, max(told, default=-1) + 1)))
        self.pending: dict[int, Call] = {}
        self.made: dict[tuple[str, int], dict[int, Call]] = {}
        # As recorded, all for the default group, else those that used it.
        self.members: dict[str, set[int]] = {DEFAULT_GROUP: self.all}
        for rank, own in calls.items():
            for call in sorted(own, key=lambda each: each.created):
                if not call.done:
                    self.pending.setdefault(rank, call)
                if call.peer < 0:
                    self.made.setdefault((call.group, call.number), {})[rank] = call
                    self.members.setdefault(call.group, set()).add(rank)
        # The ranks that wait in each group.
        self.waiting: dict[str, set[int]] = defaultdict(set)
        for rank, call in self.pending.items():
            self.waiting[call.group].add(rank)
        self.recorded = {group: ranks for state in told.values() for group, ranks in state.groups.items()}
        for group, ranks in self.recorded.items():
            self.members[group] = set(ranks)

    def mismatch(self, by_line: bool) -> Cause | None:
        """The first collective for which ranks came with different ones, if not all of its group are over.

        ``by_line``: what they called is the same, but not where. That may be right, so it counts only where
        those ranks are the ones that wait.
        """

        def of(call: Call) -> object:
            return call.line if by_line else call.form

        for (group, number), made in sorted(self.made.items(), key=lambda each: each[0][1]):
            waiting = self.waiting[group]
            forms = Counter(of(call) for call in made.values())
            usual = forms.most_common(1)[0][0]
            odd = [rank for rank, call in sorted(made.items()) if of(call) != usual]
            if not waiting or not odd or (by_line and waiting != set(odd)):
                continue
            others = [rank for rank in sorted(made) if rank not in odd]
            mine, most, later = made[odd[0]], made[others[0]], self.made.get((group, number + 1), {})
            left_out = any(rank in later and of(later[rank]) == of(mine) for rank in others)
            extra = odd[0] in later and of(later[odd[0]]) == of(most)
            who, rest = self.named(odd), self.named(others)
            what = f"{who} made {mine.text}, where {rest} made {most.text}"
            if left_out and extra:
                what = f"{who} made {mine.name} and {most.name} in another order than {rest}: {mine.text}"
            elif left_out:
                what = f"{who} left out {most.text}, which {rest} made"
            elif extra:
                what = f"{who} made one collective more than {rest}: {mine.text}"
            kind = "order" if left_out and extra else "mismatch"
            evidence = (f"{who}: {mine.text}", f"{rest}: {most.text}")
            return Cause(kind, what, tuple(odd), len(odd) < len(others), evidence, mine.line)
        return None

    def waits(self) -> Cause | None:
        """Who waits for whom in collectives that are not over, followed to those who wait for nobody."""
        waiting = sorted(self.pending)
        missing = {
            rank: {call.peer}
            if call.peer >= 0
            else self.members[call.group] - self.made[call.group, call.number].keys()
            for rank, call in self.pending.items()
        }
        free = sorted(set().union(*missing.values()) - set(waiting))
        # A recorder that leaves out sends and receives does not show who waits in one, but the stack does.
        free = [rank for rank in free if rank not in self.told or not self.told[rank].communicates] or free
        evidence = tuple(f"{self.told[rank].place}: {self.pending[rank].text}" for rank in waiting[:_NAMED])
        if free:
            for_them = [rank for rank in waiting if missing[rank] & set(free)]
            nearest = min(for_them, key=lambda rank: len(missing[rank]))
            return self.not_entered(free, self.pending[nearest], True, evidence)
        inside = [rank for rank in waiting if not missing[rank]]
        if inside:
            call, idle = self.pending[inside[0]], sorted(self.all - set(waiting))
            if idle and call.group != DEFAULT_GROUP and call.group not in self.recorded:
                # Nobody knows who else is in this group.
                return self.not_entered(idle, call, False, evidence)
            what = f"{self.named(inside)} entered {call.text}, and none came out of it"
            return Cause("network", what, evidence=evidence)
        if not waiting:
            return None
        sentences = [
            f"{self.named([rank])} waits in {call.text} for {self.named(sorted(missing[rank]))}"
            for rank, call in sorted(self.pending.items())[:_NAMED]
        ]
        what = "ranks wait for each other: " + "; ".join(sentences)
        lines = ", ".join(sorted({call.line for call in self.pending.values() if call.line}))
        return Cause("deadlock", what, tuple(waiting), True, evidence, lines)

    def not_entered(
        self, blamed: Sequence[int], call: Call, certain: bool, evidence: tuple[str, ...]
    ) -> Cause:
        """Ranks for which others wait in ``call`` and which wait for nobody."""
        told = [self.told[rank] for rank in blamed if rank in self.told]
        present = [each for each in told if each.frames or each.calls]
        waiting = sorted(self.pending)
        has, wait = "has" if len(blamed) == 1 else "have", "waits" if len(waiting) == 1 else "wait"
        what = f"{self.named(blamed)} {has} not entered {call.text}, where {self.named(waiting)} {wait}"
        if not present:
            return Cause("missing", f"{what}, and told nothing", tuple(blamed), certain, evidence)
        frame = present[0].frame
        if frame:
            what += f": {present[0].place} is in {frame}"
        return Cause(place_of(present[0].frames), what, tuple(blamed), certain and bool(frame), evidence)

    def late(self) -> Cause | None:
        """The rank that comes last to most collectives, where clocks agree."""
        shared = [made for made in self.made.values() if len(made) > 1]
        last = Counter(max(made, key=lambda rank: made[rank].created) for made in shared)
        rank, count = last.most_common(1)[0] if last else (0, 0)
        behind = [
            made[rank].created - median(call.created for other, call in made.items() if other != rank)
            for made in shared
            if rank in made
        ]
        late = median(behind) if behind else 0.0
        if len(shared) < _COMPARED or count < _MOST * len(shared) or late < _LATE_SECONDS:
            return None
        state = self.told[rank]
        where = f", from {state.frame}" if state.frame else ""
        what = f"comes last to {count} of {len(shared)} collectives, by {late:.2g} s"
        return Cause("slow", f"{state.place} {what}{where}", (rank,))

    def named(self, ranks: Sequence[int]) -> str:
        """Ranks in words: the node of a single one, and the first of many."""
        if len(ranks) == 1:
            return self.told.get(ranks[0], RankState(ranks[0])).place
        more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
        return f"ranks {', '.join(map(str, ranks[:_NAMED]))}{more}"


def _by_stacks(states: Sequence[RankState]) -> Cause:
    """The cause where no collectives are recorded: who is behind, or does something else than most."""
    slow = slowest(states)
    if slow:
        at = f" in {slow.frame}" if slow.frame else ""
        behind = f", after step {slow.step}" if slow.step is not None else ""
        return Cause(place_of(slow.frames), f"all wait for {slow.place}{at}{behind}", (slow.rank,))
    frames = {each.frame for each in states}
    if len(states) > 1 and len(frames) == 1 and "" not in frames:
        return Cause(place_of(states[0].frames), f"all ranks are in {states[0].frame}")
    return Cause("unknown", "no rank can be told from the others")


def slowest(states: Iterable[RankState]) -> RankState | None:
    """The process for which the others wait, if steps or stacks tell it.

    It has made the fewest steps, is the only one outside of torch.distributed, or does something else than
    most.
    """
    found = sorted(states, key=lambda each: each.rank)
    steps = [each.step for each in found if each.step is not None]
    if len(steps) == len(found) and len(set(steps)) > 1:
        return min(found, key=lambda each: (each.step or 0, each.rank))
    outside = [each for each in found if not each.communicates]
    if len(found) > len(outside) == 1 and outside[0].frames:
        return outside[0]
    # The outermost difference tells most: ranks that do the same are caught in different lines below it.
    for frames in zip_longest(*(map(_short, each.frames) for each in found), fillvalue=""):
        counts = Counter(frames)
        if len(counts) > 1:
            frame, count = min(counts.items(), key=lambda each: each[1])
            return found[frames.index(frame)] if count * 2 < len(found) else None
    return None


def recorded(dump: bytes) -> tuple[list[list[Any]], dict[str, list[int]]]:
    """The calls and groups of a Flight Recorder's dump, pickled or as JSON. Raises ValueError for others.

    Of each group it returns the last calls that are over, and the first that are not.
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
        over: dict[str, deque[Call]] = defaultdict(lambda: deque(maxlen=_KEPT_CALLS))
        open_ones: dict[str, list[Call]] = defaultdict(list)
        for call in map(_call, record["entries"]):
            (over if call.done else open_ones)[call.group].append(call)
    except Exception as error:  # whatever torn bytes, or those of a stranger, raise
        raise ValueError(f"it is no dump of torch's Flight Recorder: {error!r}") from error
    kept = [*over.values(), *(calls[:_KEPT_CALLS] for calls in open_ones.values())]
    return [list(astuple(call)) for calls in kept for call in calls], groups


def _call(entry: Mapping[str, Any]) -> Call:
    """A call from an entry of the recorder."""
    name = str(entry["profiling_name"]).rpartition(":")[2]
    peer = _PEER.search(name)
    # "2<-1" is rank 2 that receives from rank 1, and "2->1" one that sends.
    frames = [f"{each['name']} ({each['filename']}:{each['line']})" for each in entry.get("frames", ())]
    own = _users(frames)
    number = entry["p2p_seq_id"] if entry.get("is_p2p") else entry["collective_seq_id"]
    return Call(
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


class _Plain(pickle.Unpickler):
    """Reads numbers, texts and containers only, because a dump may come from anybody."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a dump")


def _group(name: str, description: str) -> str:
    if description == "default_pg":
        return DEFAULT_GROUP
    return f"group {name}" if description in ("", "undefined") else f"group {name} ({description})"


def place_of(frames: Sequence[str]) -> str:
    """Where a process is, by its stack: "held", "data", "checkpoint", "lock" or "script"."""
    found = (kind for kind, pattern in _PLACES if any(map(pattern.search, frames)))
    return next(found, "script")


def _users(frames: Iterable[str]) -> list[str]:
    """The frames of the user's own code."""
    return [each for each in frames if not _NOT_THE_USERS.search(_file(each))]


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
