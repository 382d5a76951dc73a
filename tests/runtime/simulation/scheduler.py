"""Virtual time. Threads are real, but one runs at a time, and only the seed decides which.

A machine has clocks of its own, which run a little fast or slow. Threads belong to one of its processes,
which can be stopped, and go on as if nothing had been, or killed.
"""

from __future__ import annotations

import _thread
import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_NEVER = float("inf")


class Killed(BaseException):
    """The process of this thread was killed. It passes every `except Exception`."""


class Broken(AssertionError):
    """Something that must never happen has happened."""


class Stuck(AssertionError):
    """Nothing can happen any more, or far too much happens."""


@dataclass(eq=False)
class Machine:
    """The clocks of one machine. CLOCK_MONOTONIC stands still while the machine is suspended."""

    name: str
    rate: float = 1.0
    ahead: float = 0.0
    asleep: float = 0.0

    def monotonic(self, now: float) -> float:
        return 1000.0 + (now - self.asleep) * self.rate

    def wall(self, now: float) -> float:
        return 1_800_000_000.0 + now + self.ahead

    def boottime(self, now: float) -> float:
        return 5000.0 + now * self.rate


@dataclass(eq=False)
class Process:
    """A process of a machine: its threads, whether it is stopped, and whether it is dead."""

    name: str
    machine: Machine
    threads: list[SimThread] = field(default_factory=list)
    stopped: bool = False
    dead: bool = False
    pending: list[SimThread] = field(default_factory=list)


class Scheduler:
    """Runs threads and callbacks in the order of virtual time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.trace: list[str] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._main = _thread.allocate_lock()
        self._main.acquire()
        self.current: SimThread | None = None
        self._all: list[SimThread] = []
        self.steps = 0
        self.failure: BaseException | None = None

    def log(self, text: str) -> None:
        self.trace.append(f"{self.now:9.3f} {text}")

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(when, self.now), next(self._numbers), action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

    def spawn(self, process: Process, target: Callable[[], Any], name: str = "") -> SimThread:
        thread = SimThread(self, process, target, name)
        self._all.append(thread)
        process.threads.append(thread)
        self.at(self.now, thread.resume)
        return thread

    def stop(self, process: Process) -> None:
        process.stopped = True

    def go_on(self, process: Process) -> None:
        process.stopped = False
        pending, process.pending = process.pending, []
        for thread in pending:
            self.at(self.now, thread.resume)

    def kill(self, process: Process) -> None:
        """SIGKILL: none of its threads does anything any more, stopped or not."""
        process.dead, process.stopped = True, False
        for thread in process.threads:
            self.at(self.now, thread.resume)

    def run(self, until: float, over: Callable[[], bool]) -> None:
        while self._queue and self._queue[0][0] <= until and not over():
            self.now, _, action = heapq.heappop(self._queue)
            self.steps += 1
            if self.steps > 2_000_000:
                raise Stuck("two million steps: somebody asks without a pause")
            action()

    def close(self) -> None:
        """End all threads."""
        for thread in self._all:
            thread.process.dead, thread.process.stopped = True, False
        for thread in self._all:
            while not thread.ended:
                thread.resume()

    # Called by threads ----------------------------------------

    def thread(self) -> SimThread:
        assert self.current is not None, "only threads of the simulation may wait"
        return self.current

    def wait(self, ready: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until `ready`, which whoever changes something must check by `wake`; returns whether it is."""
        thread = self.thread()
        deadline = _NEVER if seconds is None else self.now + max(0.0, seconds) / thread.process.machine.rate
        if deadline < _NEVER and not ready():
            self.at(deadline, thread.resume)
        while not ready():
            if self.now >= deadline:
                return False
            thread.pause()
        return True

    def sleep(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)


class SimThread:
    """A thread of the simulation, which runs only when it is resumed, until it waits."""

    def __init__(self, sim: Scheduler, process: Process, target: Callable[[], Any], name: str) -> None:
        self.sim, self.process, self.name = sim, process, name
        self.ended = False
        self._target = target
        self._turn = _thread.allocate_lock()
        self._turn.acquire()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self.process.dead:
                self._target()
        except Killed:
            pass
        except BaseException as error:
            self.sim.failure = self.sim.failure or error
        self.ended = True
        self.sim._main.release()

    def resume(self) -> None:
        """Called by the scheduler: let it run until it waits again."""
        if self.ended:
            return
        if self.process.stopped:
            if self not in self.process.pending:
                self.process.pending.append(self)
            return
        before, self.sim.current = self.sim.current, self
        self._turn.release()
        self.sim._main.acquire()
        self.sim.current = before

    def pause(self) -> None:
        """Called by the thread itself."""
        self.sim._main.release()
        self._turn.acquire()
        if self.process.dead:
            raise Killed


# What the modules under test find under the names of the standard library ----------------------------


class SimTime:
    """The module `time`."""

    CLOCK_BOOTTIME = 7

    def __init__(self, sim: Scheduler) -> None:
        self._sim = sim

    def monotonic(self) -> float:
        return self._sim.thread().process.machine.monotonic(self._sim.now)

    def time(self) -> float:
        return self._sim.thread().process.machine.wall(self._sim.now)

    def clock_gettime(self, clock: int) -> float:
        assert clock == self.CLOCK_BOOTTIME
        return self._sim.thread().process.machine.boottime(self._sim.now)

    def sleep(self, seconds: float) -> None:
        self._sim.sleep(seconds)


class SimLock:
    """threading.Lock and RLock."""

    def __init__(self, sim: Scheduler) -> None:
        self._sim = sim
        self._owner: SimThread | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = self._sim.thread()
        while self._owner not in (None, me):
            # Locks are held for moments only; a thread that dies with one takes its process along.
            self._sim.sleep(0.001)
        self._owner, self._depth = me, self._depth + 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None


class SimCondition(SimLock):
    """threading.Condition."""

    def __init__(self, sim: Scheduler) -> None:
        super().__init__(sim)
        self._waiting: dict[SimThread, bool] = {}

    def wait(self, timeout: float | None = None) -> bool:
        me, depth = self._sim.thread(), self._depth
        self._owner, self._depth = None, 0
        self._waiting[me] = False
        told = self._sim.wait(lambda: self._waiting[me], timeout)
        del self._waiting[me]
        self.__enter__()
        self._depth = depth
        return told

    def notify_all(self) -> None:
        for thread in self._waiting:
            self._waiting[thread] = True
            self._sim.at(self._sim.now, thread.resume)


class SimEvent:
    """threading.Event."""

    def __init__(self, sim: Scheduler) -> None:
        self._sim = sim
        self._set = False
        self._waiting: list[SimThread] = []

    def set(self) -> None:
        self._set = True
        for thread in self._waiting:
            self._sim.at(self._sim.now, thread.resume)

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        self._waiting.append(self._sim.thread())
        try:
            return self._sim.wait(self.is_set, timeout)
        finally:
            self._waiting.remove(self._sim.thread())


class SimThreading:
    """The module `threading`."""

    def __init__(self, sim: Scheduler) -> None:
        self._sim = sim

    def Lock(self) -> SimLock:
        return SimLock(self._sim)

    def Condition(self) -> SimCondition:
        return SimCondition(self._sim)

    def Event(self) -> SimEvent:
        return SimEvent(self._sim)

    def Thread(
        self, target: Callable[..., Any], args: tuple[Any, ...] = (), name: str = "", daemon: bool = True
    ) -> _Started:
        return _Started(self._sim, lambda: target(*args), name)

    def current_thread(self) -> SimThread:
        return self._sim.thread()


class _Started:
    """threading.Thread."""

    def __init__(self, sim: Scheduler, target: Callable[[], Any], name: str) -> None:
        self._sim, self._target, self._name = sim, target, name
        self._thread: SimThread | None = None

    def start(self) -> None:
        self._thread = self._sim.spawn(self._sim.thread().process, self._target, self._name)

    def join(self, timeout: float | None = None) -> None:
        thread = self._thread
        assert thread is not None
        deadline = self._sim.now + (timeout or 60.0)
        while not thread.ended and self._sim.now < deadline:
            self._sim.sleep(0.02)


class SimSecrets:
    """The module `secrets`."""

    def __init__(self, sim: Scheduler) -> None:
        self._random = sim.random

    def randbits(self, bits: int) -> int:
        return self._random.getrandbits(bits)

    def randbelow(self, limit: int) -> int:
        return self._random.randrange(limit)

    def token_hex(self, count: int) -> str:
        return f"{self._random.getrandbits(8 * count):0{2 * count}x}"
