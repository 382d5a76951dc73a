"""Failures of training processes: who failed first, and whether starting again helps.

Keys in etcd, under `<prefix>.failures/<run id>/`:

    rounds/<round>/<worker>   why processes of a worker failed in a round, written by the worker itself
    nodes/<worker>            the node of the worker that started last under this index
    hang                      the round whose workers are asked for their stacks, and a node whose worker ends
    stacks/<round>/<worker>   where the processes of a worker stand
    excluded/<node>           why no worker starts on this node, under a lease that ends the exclusion
    progress                  the highest steps of the run, written again whenever there is progress

A failure counts as one without progress while `progress` has not been written after it. When so many rounds
in a row have failed, starting again does not help: the run ends if processes failed on several nodes, or if
there is only one; else only the worker on that node ends. A bug, which is the same in two rounds on two
nodes, ends the run at once.
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from bireme_runtime.elastic import progress
from bireme_runtime.elastic.monitor.last_words import lost_a_peer
from bireme_runtime.elastic.monitor.why import RankState
from bireme_runtime.etcd import client as etcd

_KEPT_ROUNDS = 20
# Of one round; where many workers fail at once, they write one after another, and most find that it is known.
_KEPT_OF_A_ROUND = 32
_WORKERS_PER_SECOND = 1000

# The node of a failure that nobody can be blamed for.
UNKNOWN = ""

Verdict = Literal["", "run", "worker"]


@dataclass(frozen=True)
class Failure:
    """The first failed process of a worker in a round. ``code`` is negative for a signal."""

    round: int
    world: int
    worker: str
    node: str
    rank: int
    code: int
    time: float
    words: str
    outside: bool = False
    """Somebody else killed the process."""
    bug: str = ""
    """The fault of the script that a restart would meet again, and its line; empty for any other."""
    revision: int = 0

    @property
    def by_itself(self) -> bool:
        """Whether it did not fail because it had lost another process."""
        return not lost_a_peer(self.words)

    @property
    def last_line(self) -> str:
        """What it said last."""
        return self.words.rstrip().rpartition("\n")[2].strip()

    @property
    def sentence(self) -> str:
        """Who failed, and how."""
        how = f"exit code {self.code}" if self.code >= 0 else f"signal {-self.code}"
        said = f": {self.last_line}" if self.words else ""
        if self.node == UNKNOWN:
            return f"round {self.round} was ended, and no rank is to blame{said}"
        return f"rank {self.rank} on {self.node} failed in round {self.round} ({how}){said}"


def first_of(failures: Iterable[Failure]) -> Failure | None:
    """The failure of a round that caused the others: the first of those that failed by themselves, if any."""
    found = sorted(failures, key=lambda each: (not each.by_itself, each.time, each.rank))
    return found[0] if found else None


def repeated_bug(failures: Iterable[Failure]) -> str:
    """The bug that ended two rounds, on two nodes where nodes are to blame; empty if there is none."""
    rounds: dict[str, set[int]] = {}
    nodes: dict[str, set[str]] = {}
    for each in failures:
        rounds.setdefault(each.bug, set()).add(each.round)
        nodes.setdefault(each.bug, set()).add(each.node)
    found = (bug for bug in rounds if bug and len(rounds[bug]) > 1)
    return next((bug for bug in found if len(nodes[bug]) > 1 or UNKNOWN in nodes[bug]), "")


def blame_of_shard(cause: Failure | None, rank: int, for_all: bool) -> str:
    """Why a shard that ``rank`` had when a round ended may have caused that; empty if it has not.

    ``for_all``: all ranks of the world worked on it. ``cause``: who failed first, as far as is known; None
    when members came, went or were lost.
    """
    was_told = cause is not None and cause.code in (-signal.SIGTERM, -signal.SIGINT)
    if cause is None or was_told or not cause.by_itself:
        return ""
    return cause.sentence if for_all or cause.rank == rank else ""


def blamed(failures: Iterable[Failure]) -> list[Failure]:
    """The cause in each round, in the order of the rounds."""
    rounds: dict[int, list[Failure]] = {}
    for each in failures:
        rounds.setdefault(each.round, []).append(each)
    return [cause for _, found in sorted(rounds.items()) if (cause := first_of(found))]


def judge(failures: Iterable[Failure], mine: str, nodes: Iterable[str], limit: int) -> Verdict:
    """What has to end after these failures without progress, as the worker on node ``mine`` sees it."""
    found = list(failures)
    rounds = {each.round for each in found}
    own = {each.round for each in found if not each.outside}
    # A kill from outside may be the kernel's, for memory; but it is half as likely to come from the script.
    if limit and repeated_bug(found):
        return "run"
    if not limit or len(rounds) + len(own) < 2 * limit:
        return ""
    # Where all have lost a peer, nobody is to blame, and the run ends.
    guilty = {each.node for each in found if each.by_itself} or {UNKNOWN}
    if len(guilty) > 1 or len({*nodes, *guilty}) == 1 or UNKNOWN in guilty:
        return "run"
    return "worker" if mine in guilty else ""


@dataclass(frozen=True)
class StackRequest:
    """The round whose workers are asked for their stacks, and a node whose worker shall end."""

    round: int = 0
    node: str = ""


class Ledger:
    """The failures that one worker knows: its own, without etcd."""

    shared = False
    """Whether the other workers of the run read and write it too."""

    def __init__(self) -> None:
        self._own: list[Failure] = []
        self._stands: list[RankState] = []
        self._marks: progress.Marks = {}
        self._lock = threading.Lock()

    def enter(self, worker: str, node: str) -> None:
        """This worker starts on this node."""

    def advance(self, marks: Mapping[str, list[int]], lasted: bool = False) -> None:
        """These are the highest steps. ``lasted``: the processes ran so long that it counts as progress."""
        with self._lock:
            known = progress.merged(self._marks, marks)
            if lasted or known != self._marks:
                self._own.clear()
            self._marks = known

    def marks(self) -> progress.Marks:
        """The highest steps of the run, as far as they were told."""
        return self._marks

    def add(self, failure: Failure) -> None:
        """Record a failure of this worker."""
        # Without etcd rounds have no numbers.
        self._own.append(replace(failure, round=len(self._own)))

    def recent(self) -> list[Failure]:
        """The failures since the last progress."""
        return list(self._own)

    def all(self) -> list[Failure]:
        """The failures that are known, of the last rounds."""
        return list(self._own)

    def of_round(self, number: int) -> list[Failure]:
        """The failures of one round that workers have told each other."""
        return []

    def ask_for_stacks(self, round: int) -> bool:
        """Ask all workers for their stacks. False when another worker of this round has asked already."""
        return True

    def asked(self) -> StackRequest:
        """Who is asked for stacks, and who shall end."""
        return StackRequest()

    def stand(self, round: int, worker: str, stands: Iterable[RankState]) -> None:
        """Tell where the processes of this worker stand."""
        self._stands = list(stands)

    def stands(self, round: int) -> tuple[int, list[RankState]]:
        """How many workers have told where their processes stand, and what they told."""
        return 1, self._stands

    def end_node(self, round: int, node: str) -> None:
        """The worker on this node shall end."""

    def exclude(self, node: str, why: str, seconds: float) -> None:
        """No worker shall start on this node for so long."""

    def excluded(self) -> dict[str, str]:
        """The nodes on which no worker shall start, and why."""
        return {}

    def verdict(self, mine: str, limit: int) -> Verdict:
        """What has to end. Without etcd a worker does not know what happens to the others."""
        recent = self.recent()
        others = [""] if recent and recent[-1].world > 1 else []
        return judge(recent, mine, [mine, *others], limit)


class EtcdLedger(Ledger):
    """The failures of all workers, in etcd. Without an answer of etcd nothing counts."""

    shared = True

    def __init__(self, client: etcd.Client, prefix: str, run_id: str) -> None:
        super().__init__()
        self._client = client
        self._root = f"{prefix}.failures/{run_id}/"
        self._key, self._hang = f"{self._root}progress", f"{self._root}hang"
        self._may_have_asked = 0

    def enter(self, worker: str, node: str) -> None:
        self._client.put(f"{self._root}nodes/{worker}", node)

    def advance(self, marks: Mapping[str, list[int]], lasted: bool = False) -> None:
        with self._lock:
            while lasted or progress.merged(self._marks, marks) != self._marks:
                kv = self._client.get(self._key)
                self._marks = _marks(kv)
                known = progress.merged(self._marks, marks)
                if known == self._marks and not lasted:
                    return
                compare = [etcd.key_is_unchanged(self._key, kv.mod_revision if kv else 0)]
                if self._client.txn(compare, [etcd.put_op(self._key, json.dumps(known))]).succeeded:
                    self._marks = known
                    return

    def marks(self) -> progress.Marks:
        return progress.merged(_marks(self._client.get(self._key)), self._marks)

    def add(self, failure: Failure) -> None:
        if failure.world > _KEPT_OF_A_ROUND:
            time.sleep(random.uniform(0, failure.world / _WORKERS_PER_SECOND))
            known = self._client.count(self._round(failure.round), self._round(failure.round + 1))
            if known >= _KEPT_OF_A_ROUND:
                return
        record = {key: value for key, value in asdict(failure).items() if key != "revision"}
        self._client.put(self._round(failure.round) + failure.worker, json.dumps(record))
        oldest = failure.round - _KEPT_ROUNDS
        if oldest > 0:
            self._client.delete_span(self._round(0), self._round(oldest))

    def recent(self) -> list[Failure]:
        kv = self._client.get(self._key)
        return [each for each in self.all() if each.revision > (kv.mod_revision if kv else 0)]

    def all(self) -> list[Failure]:
        return self._failures(f"{self._root}rounds/")

    def of_round(self, number: int) -> list[Failure]:
        return self._failures(self._round(number))

    def _failures(self, prefix: str) -> list[Failure]:
        found = self._client.range(prefix).keys
        return [failure for kv in found if (failure := _failure(kv))]

    def nodes(self) -> dict[str, str]:
        """The node of each worker that has started."""
        return self._values("nodes")

    def _values(self, name: str) -> dict[str, str]:
        folder = f"{self._root}{name}/"
        return {kv.key[len(folder) :]: kv.value for kv in self._client.range(folder).keys}

    def ask_for_stacks(self, round: int) -> bool:
        kv = self._client.get(self._hang)
        if _asked(kv).round >= round:
            return _asked(kv).round == round == self._may_have_asked
        compare = [etcd.key_is_unchanged(self._hang, kv.mod_revision if kv else 0)]
        record = json.dumps({"round": round, "node": ""})
        # If the answer is lost, the next call looks whether it was done, maybe after that call's reading.
        is_again, self._may_have_asked = self._may_have_asked == round, round
        is_done = self._client.txn(compare, [etcd.put_op(self._hang, record)]).succeeded
        if not is_done and is_again:
            return _asked(self._client.get(self._hang)).round == round
        self._may_have_asked = round if is_done else 0
        return is_done

    def asked(self) -> StackRequest:
        return _asked(self._client.get(self._hang))

    def stand(self, round: int, worker: str, stands: Iterable[RankState]) -> None:
        self._client.delete_span(f"{self._root}stacks/", self._stacks(round))
        self._client.put(self._stacks(round) + worker, json.dumps([asdict(each) for each in stands]))

    def stands(self, round: int) -> tuple[int, list[RankState]]:
        told = self._client.range(self._stacks(round)).keys
        return len(told), [RankState(**each) for kv in told for each in json.loads(kv.value)]

    def end_node(self, round: int, node: str) -> None:
        self._client.put(self._hang, json.dumps({"round": round, "node": node}))

    def exclude(self, node: str, why: str, seconds: float) -> None:
        lease = self._client.lease_grant(max(2, round(seconds)))
        self._client.put(f"{self._root}excluded/{node}", why, lease)

    def excluded(self) -> dict[str, str]:
        return self._values("excluded")

    def verdict(self, mine: str, limit: int) -> Verdict:
        return judge(self.recent(), mine, self.nodes().values(), limit)

    def _stacks(self, number: int) -> str:
        return f"{self._root}stacks/{number:010d}/"

    def _round(self, number: int) -> str:
        return f"{self._root}rounds/{number:010d}/"


def _marks(kv: etcd.KeyValue | None) -> progress.Marks:
    try:
        record = json.loads(kv.value) if kv else {}
        return {str(form): [int(each) for each in numbers] for form, numbers in record.items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def _asked(kv: etcd.KeyValue | None) -> StackRequest:
    try:
        return StackRequest(**json.loads(kv.value)) if kv else StackRequest()
    except (TypeError, ValueError):
        return StackRequest()


def _failure(kv: etcd.KeyValue) -> Failure | None:
    try:
        record: dict[str, Any] = json.loads(kv.value)
        return Failure(**record, revision=kv.mod_revision)
    except (TypeError, ValueError):
        # Somebody else's key.
        return None
