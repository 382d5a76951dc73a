"""What a supervisor sees of the training: the processes' output, their progress, and their failures."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from bireme_runtime.dispatcher.client import leave_for
from bireme_runtime.dispatcher.notes import Notes
from bireme_runtime.elastic import progress
from bireme_runtime.elastic.agent import launchers, preflight, report
from bireme_runtime.elastic.monitor import failures, hang, history, why
from bireme_runtime.elastic.monitor.last_words import bug_of
from bireme_runtime.elastic.monitor.status import Starts
from bireme_runtime.elastic.snapshots import keeper
from bireme_runtime.etcd import client as etcd
from bireme_runtime.process import children
from bireme_runtime.process.environment import integer, setting
from bireme_runtime.process.log import Say
from bireme_runtime.process.output import Copier
from bireme_runtime.process.threads import in_one_thread

Answer = TypeVar("Answer")

# The first words of Python about an exception, and of C++ about one that ends the process.
_BEGINS = (b"Traceback (most recent call last):", b"terminate called after throwing")
_ENDS = b"  what():"
# torch and others put the rank in front of each line.
_BEFORE = re.compile(rb"^(\[[^\]]{1,40}\]:? ?)?")
_RECENT_SECONDS = 15.0
# torch says this of a process that ended by an exception, which may take long on a busy machine.
_EXITED = re.compile(r"failed \(exitcode: [1-9]")
_DRAIN_SECONDS = 1.0
_KILL_SECONDS = 10.0
_COUNT_SECONDS, _SIGN_SECONDS = 60.0, 5.0
_SIGNS, _LOADERS = 4, 8
_WORDS = 1000
_KILLED = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
_PUBLISH_SECONDS = 5.0
_MOST_UNTOLD, _TRIES = 100, 3
_ASKED_PER_SECOND = 20
# Who asks again within this time gets the same answer, so that nobody keeps the processes busy.
_RANKS_SECONDS = 5.0
# A batch without a number does not end a run.
_BAD_LOSSES = 3
# A start that lasts so long counts as progress: its steps may be counted from each start.
_LONG_SECONDS = 3600.0


class Said:
    """The tracebacks in the output of processes, and their last lines where there are none."""

    def __init__(self) -> None:
        self._found: deque[tuple[float, list[str]]] = deque(maxlen=8)
        self._last: deque[tuple[float, str]] = deque(maxlen=5)
        self._open: list[str] | None = None
        self._prefix = b""

    def start(self) -> None:
        """The processes start anew."""
        self._found.clear()
        self._last.clear()
        self._open = None

    def take(self, line: bytes) -> None:
        """Take one line."""
        now = time.monotonic()
        if self._open is None:
            prefix = _BEFORE.match(line)
            self._prefix = prefix.group() if prefix else b""
            if line[len(self._prefix) :].startswith(_BEGINS):
                self._open = []
                self._found.append((now, self._open))
            self._last.append((now, _text(line)))
        if self._open is not None and line.startswith(self._prefix):
            rest = line[len(self._prefix) :]
            self._open.append(_text(rest))
            goes_on = rest.startswith((b" ", b"\t", *_BEGINS)) and not rest.startswith(_ENDS)
            if not goes_on or len(self._open) > 200:
                self._open = None

    def words(self) -> str:
        """The end of the first traceback of the last seconds, which caused the others; or the last lines."""
        since = time.monotonic() - _RECENT_SECONDS
        recent = [lines for when, lines in self._found if when >= since]
        last = [line for when, line in self._last if when >= since]
        if not recent and self._found and last and _EXITED.search(last[-1]):
            recent = [self._found[-1][1]]
        lines = recent[0] if recent else last
        return "\n".join(lines[-20:])[-_WORDS:]


def _text(line: bytes) -> str:
    return line[:500].decode(errors="replace").rstrip()


@dataclass(frozen=True)
class Limits:
    """When to give up: failures in a row without a new step, and seconds.

    ``quiet_seconds`` of a start count as progress in a script whose steps are unknown. After ``hang_seconds``
    without a step, or ``first_seconds`` without the first one of a start, processes are started again.
    ``hang_learnt``: also after the learnt time of hang.py, where no other is given.
    For ``exclude_seconds`` no worker starts on a node that has given up alone.
    ``on_nan`` and ``on_slow`` say what happens when the loss is no number, and when steps take twice as long.
    """

    failures: int = setting("BIREME_FAILURES_WITHOUT_PROGRESS", 5)
    quiet_seconds: float = setting("BIREME_STABLE_SECONDS", 300.0)
    hang_seconds: float = setting("BIREME_HANG_SECONDS", 0.0)
    first_seconds: float = setting("BIREME_FIRST_STEP_SECONDS", 1800.0)
    on_nan: str = setting("BIREME_ON_NAN", "warn", "warn", "restart", "fail")
    on_slow: str = setting("BIREME_ON_SLOW", "warn", "warn", "restart")
    exclude_seconds: float = setting("BIREME_EXCLUDE_NODE_SECONDS", 0.0)
    hang_learnt: bool = setting("BIREME_HANG_LEARNT", False)


class Observer:
    """Follows the processes of one worker, and says when starting them again does not help."""

    def __init__(
        self,
        ledger: failures.Ledger,
        seen: progress.Progress,
        worker: str,
        node: str,
        limits: Limits,
        say: Say,
        past: history.History | None = None,
        folder: str = "",
    ) -> None:
        self._ledger, self._progress, self._say = ledger, seen, say
        self._history, self._folder = past, folder
        self._worker, self._node, self._limits = worker, node, limits
        self._printed: list[str] | None = None
        self._printing = threading.Lock()
        self._told: tuple[float, list[why.RankState]] = (-_RANKS_SECONDS, [])
        # When the node's counters were read, a minute before the last step or later, and what they were.
        self._counted: tuple[float, Counter[str]] = (-_COUNT_SECONDS, Counter())
        self._counting: Future[None] | None = None
        self._signing: Future[dict[str, int]] | None = None
        # The highest steps of the run when this worker started.
        self._marks: progress.Marks | None = None
        self._told_in = self._asked_in = self._leads_in = self._bad_in = 0
        # What etcd has not been told yet, because it did not answer.
        self._untold: deque[Callable[[], object]] = deque(maxlen=_MOST_UNTOLD)
        self._hang, self._cause = "", "hang"
        self._slowest: why.RankState | None = None
        self._bug = ""
        self._next_publish = self._next_follow = 0.0
        self._notes = Notes()
        # When trainers with a note were first seen to have ended.
        self._ended: dict[str, float] = {}
        # The first failure of this worker's own processes in the round that is over.
        self._failure: failures.Failure | None = None
        # Process id, rank and local rank of each training process.
        self._processes: list[tuple[int, int, int]] = []
        self.said = Said()
        self.starts = Starts()
        self.keeper: keeper.Service | None = None
        self._blocked = 0.0
        self.copier = Copier(self._take)
        self.verdict: failures.Verdict = ""
        self.sentence = ""

    @property
    def environment(self) -> dict[str, str]:
        """What the training processes need to tell their steps."""
        return {progress.BOARD: self._progress.board.path, **self._notes.environment}

    def enter(self) -> None:
        """This worker starts."""
        self._tell(lambda: self._ledger.enter(self._worker, self._node))
        if self._marks is None:
            self._marks = self._ask(self._ledger.marks, None)

    def advanced(self) -> bool:
        """Whether the run has made new steps since this worker started, as far as etcd says."""
        now, before = self._ask(self._ledger.marks, None), self._marks
        return now is not None and before is not None and progress.merged(before, now) != before

    def excluded(self) -> str:
        """Why no worker shall start on this node; empty if one may, or if etcd is silent three times."""
        for _ in range(_TRIES):
            known = self._ask(self._ledger.excluded, None)
            if known is not None:
                return known.get(self._node, "")
            time.sleep(1.0)
        return ""

    def starting(self, facts: Mapping[str, Any]) -> None:
        """The agent is about to start the processes of a round."""
        # What the new processes print stays in the pipe until the block ends, so it counts for this round.
        with self.copier.drained(_DRAIN_SECONDS):
            self.publish(last=True)
            self._blocked = self.keeper.blocked if self.keeper else 0.0
            self._processes = []
            self.said.start()
            known: progress.Marks = self._ask(self._ledger.marks, {})
            self._progress.start(known, int(facts["world"]))
        # All who are in this round have told of their failures in the last one.
        self._settle_shards()
        self._failure = None
        cause = self.starts.began(facts)
        # A hang that was found while the last round ended must not be blamed on this one.
        self._forget_hang()
        past = self._history
        if past is not None and self.starts.rank == 0:
            more = self.keeper.round() if self.keeper else {}
            number = self.starts.round
            self._tell(lambda: past.world(number, cause, more))

    def _forget_hang(self) -> None:
        self._hang, self._cause, self._slowest, self._bug = "", "hang", None, ""

    def started(self, facts: Mapping[str, Any]) -> None:
        """The processes have started."""
        self._processes = [(int(pid), int(rank), int(slot)) for pid, rank, slot in facts["processes"]]
        self.starts.ranks = {slot: rank for _, rank, slot in self._processes}

    def failed(self, facts: Mapping[str, Any]) -> bytes:
        """A process of this worker has failed. Returns the answer for the agent, as report.py has them."""
        when = time.time()
        self._processes = []
        with self.copier.drained(_DRAIN_SECONDS):
            words = self.said.words()
        failure = failures.Failure(
            int(facts["round"]), int(facts["world"]), self._worker, self._node,
            int(facts["rank"]), int(facts["code"]), when, words,
            outside=int(facts["code"]) in _KILLED and not self._hang,
        )  # fmt: skip
        if self._hang:
            failure = replace(failure, words=self._hang, bug=self._bug)
            if self._slowest and not self._bug:
                failure = replace(failure, rank=self._slowest.rank, node=self._slowest.node)
            elif failure.world > 1:
                failure = replace(failure, node=failures.UNKNOWN)
        elif not failure.outside:
            failure = replace(failure, bug=bug_of(failure.words))
        self._say(failure.sentence)
        self.starts.because(self._cause if self._hang else "failure")
        self._forget_hang()
        self._failure = failure
        marks, lasted = self._progress.look(), time.monotonic() - self._progress.since
        answer = self._ask(lambda: self._judge(failure, marks, lasted), b"")
        if not answer:
            self._untold.append(lambda: self._judge(failure, marks, lasted))
        return report.STOP if self.verdict else answer or report.GO_ON

    def tick(self) -> None:
        """Once a second: look at the steps, and at what the others ask for."""
        now = time.monotonic()
        self._tell_rest()
        # All workers together ask some twenty times a second.
        pause = self.starts.world / _ASKED_PER_SECOND
        if self.starts.world > 1 and now >= self._next_follow:
            self._next_follow = now + pause
            self._ask(self._follow, None)
        if now >= self._next_publish:
            self._next_publish = now + max(_PUBLISH_SECONDS, pause)
            self.publish()
            is_due = max(self._progress.since, self._progress.last) > self._counted[0] + _COUNT_SECONDS
            if is_due:
                self._counting = in_one_thread(self._counting, self._count)
            # Here, so that /metrics answers also when etcd does not.
            self.starts.excluded = self._ask(self._ledger.excluded, self.starts.excluded)
        self._settle_shards(wait=True)
        self._progress.look()
        limits, round = self._limits, self.starts.round
        silent = hang.overdue(self._progress, limits.hang_seconds, limits.first_seconds, now)
        if silent and self.starts.world and self._told_in != self.starts.count:
            count = self.starts.count
            if self._tell(lambda: self._lead(round, silent), again=False):
                self._told_in = count
        if self.starts.world and not self._hang:
            self._look_for_events()

    def publish(self, last: bool = False) -> None:
        """Tell the others of the progress that this worker has seen. ``last``: the processes have ended."""
        self._ask(lambda: self._ledger.advance(self._progress.look()), None)
        past, starts, seen = self._history, self.starts, self._progress
        if past is not None and seen.first and starts.rank in (0, starts.last_rank):
            ahead, lost = time.time() - time.monotonic(), seen.lost
            if self.keeper:
                lost["blockedSeconds"] = round(self.keeper.blocked - self._blocked, 2)
            points = [(at + ahead, step) for at, step in (seen.first, (seen.last, seen.number))]
            self._ask(lambda: past.steps(starts.round, points, lost, last), None)

    def ranks(self) -> list[why.RankState]:
        """Latest known state of the processes of this worker, some seconds old at most."""
        with self._printing:
            if time.monotonic() - self._told[0] > _RANKS_SECONDS:
                self._told = (time.monotonic(), self._stands())
            return self._told[1]

    def close(self) -> None:
        """All processes have ended: copy what they have printed."""
        self.copier.close(2.0)
        if not self._tell_rest():
            time.sleep(1.0)
            self._tell_rest()
        self.publish(last=True)
        self._settle_shards()
        self._notes.close()

    def _settle_shards(self, wait: bool = False) -> None:
        """Leave the dispatcher for trainers that have ended, and say which shards may be to blame.

        ``wait``: until others may have told of their failures, but not until the trainer's lease ends.
        """
        now, notes = time.monotonic(), self._notes.read()
        running = children.alive([note.pid for note in notes]) if notes else []
        ended = [note for note in notes if note.pid not in running]
        self._ended = {note.trainer: self._ended.get(note.trainer, now) for note in ended}
        due = [n for n in ended if not wait or now >= self._ended[n.trainer] + n.lease_seconds / 3]
        if not due:
            return
        found = [self._failure] if self._failure else []
        found += self._ask(lambda: self._ledger.of_round(self.starts.round), [])
        cause = failures.first_of(found)
        until = now + max(note.lease_seconds for note in due)
        for note in due:
            note.delete()
            leave_for(note, failures.blame_of_shard(cause, note.rank, note.for_all), until)

    def _give_up(self, verdict: failures.Verdict, sentence: str) -> None:
        where = "" if verdict == "run" else f", all of them on {self._node}"
        self.sentence = f"{sentence}; {self._limits.failures} failures without a new step{where}"
        self.verdict = verdict
        # The verdict stands also when etcd does not answer any more.
        if verdict == "run" and (bug := failures.repeated_bug(self._ledger.recent())):
            self.sentence = f"{sentence}; {bug} has ended two rounds, so a restart would meet it again"
        if verdict == "worker" and self._limits.exclude_seconds:
            why, seconds = self.sentence, self._limits.exclude_seconds
            self._tell(lambda: self._ledger.exclude(self._node, why, seconds))

    def _follow(self) -> None:
        """Do what another worker asks for."""
        asked = self._ledger.asked()
        if not asked.round:
            return
        # By now the next round may have begun.
        if asked.node == self._node and asked.round >= self.starts.round - 1 and not self.verdict:
            self._give_up("worker", "the others waited for this worker")
        if self._asked_in != asked.round == self.starts.round:
            self._ledger.stand(asked.round, self._worker, self.ranks())
            self._asked_in = asked.round

    def _lead(self, round: int, silent: float) -> None:
        """No step for too long: find out for whom all wait, and have the processes started again.

        Where this raises because etcd does not answer, `tick` calls it again.
        """
        what = f"no step for {silent:.0f} s"
        self._say(f"{what}: the stacks of all processes follow")
        if self._leads_in != round and self._ledger.ask_for_stacks(round):
            self._leads_in = round
        self._asked_in = round
        self._ledger.stand(round, self._worker, self.ranks())
        if self._leads_in != round:
            return
        world = self.starts.world if self._ledger.shared else 1
        deadline = time.monotonic() + 3 * max(_PUBLISH_SECONDS, world / _ASKED_PER_SECOND)
        count, stands = self._ledger.stands(round)
        while count < world and time.monotonic() < deadline:
            time.sleep(0.2)
            count, stands = self._ledger.stands(round)
        cause = why.explain(stands)
        slow = next((each for each in stands if cause.ranks == (each.rank,)), None)
        if cause.kind != "unknown":
            what += f"; {cause.sentence}"
            self._say("\n".join((cause.sentence, *cause.evidence, cause.remedy)))
        self._say(f"{what}; {count} of {world} workers have told where they stand")
        restarts = self._limits.hang_seconds or self._limits.hang_learnt
        if restarts and self.starts.round == round and self.starts.world:
            self._hang, self._slowest, self._bug = what, slow, cause.bug
            self._kill()

    def _look_for_events(self) -> None:
        """A loss that is no number, or steps that take twice as long: do what the limits say."""
        seen, limits = self._progress, self._limits
        if seen.bad_losses >= _BAD_LOSSES and self._bad_in != self.starts.count:
            self._bad_in = self.starts.count
            what = f"the loss is NaN or infinite, {seen.bad_losses} times in a row"
            self._happened("nan", limits.on_nan, f"{what}, at step {seen.number}")
        slow = seen.pace.doubled()
        if slow and not self._hang:
            old, new = slow
            self._happened("slow", limits.on_slow, f"a step takes {new:.3g} s instead of {old:.3g} s")

    def _happened(self, cause: str, policy: str, what: str) -> None:
        self._say(what)
        self.starts.happened[cause] += 1
        self.starts.events.append({"time": time.time(), "event": cause, "sentence": what})
        if policy == "fail":
            self.sentence, self.verdict = f"{what}, which ends the run", "run"
        elif policy == "restart":
            self._hang, self._cause = what, cause
            self._kill()

    def _kill(self) -> None:
        """Kill the processes of this worker, for which all start again; without that, it ends alone."""
        pids = [pid for pid, _, _ in self._processes]
        children.send(pids, signal.SIGKILL)
        deadline = time.monotonic() + _KILL_SECONDS
        while left := children.alive(pids):
            if time.monotonic() >= deadline:
                # The agent sees no failure while it lives, and the others would wait for it.
                self.sentence, self.verdict = f"process {left[0]} does not end on SIGKILL", "worker"
                return
            time.sleep(0.1)

    def _stands(self) -> list[why.RankState]:
        """Where the processes of this worker stand. Their stacks are printed to the log, one by one."""
        steps = self._progress.board.steps()
        found = []
        ranks = self._processes
        if launchers.starts_nodes(os.environ):
            ranks = [each for pid, _, _ in ranks for each in launchers.ranks_below(pid)] or ranks
        self._signing = in_one_thread(self._signing, self._signs)
        dumps = hang.dumps(self._folder, [pid for pid, _, _ in ranks])
        silent = {"its GPUs or network devices do not answer": sys.maxsize}
        signs = self._signing.result() if wait([self._signing], _SIGN_SECONDS).done else silent
        for pid, rank, slot in ranks:
            frames = self._frames(pid, f"rank {rank}")
            if why.place_of(frames) == "data":
                loaders = [
                    self._frames(each, f"a data loader of rank {rank}")
                    for each in children.descendants(pid)[:_LOADERS]
                ]
                frames = next(filter(why.loads, loaders), frames)
            step = steps[slot][0] if slot in steps else None
            state = why.RankState(rank, self._node, step, frames, signs=signs)
            try:
                found.append(state.with_dump(dumps[pid]) if dumps.get(pid) else state)
            except ValueError as error:
                self._say(f"rank {rank} has recorded no collectives: {error}")
                found.append(state)
        return found

    def _frames(self, pid: int, name: str) -> list[str]:
        """The calls of a process, whose stacks are printed to the log."""
        self._say(f"the stacks of {name} (process {pid}):")
        self._printed = []
        lines = hang.print_stacks(pid, lambda: list(self._printed or ()))
        self._printed = None
        return hang.frames_of(lines) or hang.held(pid)

    def _count(self) -> None:
        """Read the counters of this node."""
        self._counted = (time.monotonic(), hang.counters())

    def _signs(self) -> dict[str, int]:
        """What is wrong with the GPUs of this node, and the counters of its network that have risen most."""
        wanted = integer(os.environ, "BIREME_PREFLIGHT_ACCELERATORS", 0)
        lack = preflight.accelerators_lack(wanted, os.environ, self._say)
        risen = (hang.counters() - self._counted[1]).most_common(_SIGNS)
        return {lack: sys.maxsize} if lack else {f"{name} rose by {rise}": rise for name, rise in risen}

    def _judge(self, failure: failures.Failure, marks: progress.Marks, lasted: float) -> bytes:
        """Whether to go on after this failure; after new steps the agent has all its restarts again.

        ``marks``: the steps that this worker had seen. ``lasted``: seconds since its processes had started.
        """
        knows = bool(marks or self._ledger.marks())
        self._ledger.advance(marks, lasted >= (_LONG_SECONDS if knows else self._limits.quiet_seconds))
        fresh = knows and not self._ledger.recent()
        # A process that was killed from outside tells nothing of the script, unless its steps do.
        if knows or not failure.outside:
            self._ledger.add(failure)
            limit = self._limits.failures
            verdict = self._ledger.verdict(self._node, limit)
            if verdict:
                self._give_up(verdict, failure.sentence)
            if failure.node != self._node and self._ledger.verdict(failure.node, limit) == "worker":
                self._ledger.end_node(failure.round, failure.node)
        return report.REFILL if fresh else report.GO_ON

    def _tell_rest(self) -> bool:
        """Tell etcd, in order, what it does not know yet. Returns whether that is all."""
        while True:
            try:
                action = self._untold.popleft()
            except IndexError:
                return True
            if not self._tell(action, again=False):
                self._untold.appendleft(action)
                return False

    def _tell(self, action: Callable[[], object], again: bool = True) -> bool:
        """Tell etcd something; returns whether it has answered. If not, `tick` does it ``again``."""
        is_told = self._ask(lambda: (action(), True)[1], False)
        if again and not is_told:
            self._untold.append(action)
        return is_told

    def _ask(self, action: Callable[[], Answer], otherwise: Answer) -> Answer:
        """What etcd answers, or what holds without an answer."""
        try:
            return action()
        except etcd.EtcdError as error:
            self._say(f"etcd does not know of this worker's progress and failures: {error}")
            return otherwise

    def _take(self, line: bytes) -> None:
        self._progress.take(line)
        self.said.take(line)
        if self._printed is not None:
            self._printed.append(line.decode(errors="replace"))
