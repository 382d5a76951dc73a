"""Child processes of a supervisor that may be PID 1 of a container. Linux only where it looks at /proc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_ENDINGS = (signal.SIGTERM, signal.SIGINT)
_WATCHED = {*_ENDINGS, signal.SIGCHLD}


class Terminated(Exception):
    """This process was told to end, by the signal `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    state: str


def take_charge() -> None:
    """Receive signals only when asking for them, and inherit orphans among the descendants as PID 1 does."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    if os.getpid() != 1:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(command: Sequence[str], env: Mapping[str, str], output: int | None = None) -> int:
    """Start a program with signals as usual, and return its process id; ``output`` gets what it prints."""
    moves = [] if output is None else [(os.POSIX_SPAWN_DUP2, output, each) for each in (1, 2)]
    return os.posix_spawnp(
        command[0], list(command), dict(env), file_actions=moves, setsigmask=[], setsigdef=list(_WATCHED)
    )


def wait(seconds: float, ended: dict[int, int]) -> None:
    """Wait until a child ends or the time is over; note ended children as {pid: wait status} and bury them.

    Raises Terminated when a signal to end came.
    """
    info = signal.sigtimedwait(_WATCHED, max(0.0, seconds))
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = status
    if info and info.si_signo in _ENDINGS:
        raise Terminated(info.si_signo)


def pause(seconds: float) -> None:
    """Sleep, but raise Terminated as soon as a signal to end comes."""
    deadline = time.monotonic() + seconds
    while (remaining := deadline - time.monotonic()) > 0:
        wait(remaining, {})


def exit_code(status: int) -> int:
    """The exit code in a wait status; minus the number for a signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def children(parent: int) -> tuple[int, ...]:
    """The living children of a process."""
    return tuple(each.pid for each in _processes() if each.parent == parent and each.state != "Z")


def alive(pids: Sequence[int]) -> list[int]:
    """Those of the processes that run; one that ended but is not yet buried does not."""
    running = {each.pid for each in _processes() if each.state != "Z"}
    return [pid for pid in pids if pid in running]


def environment(pid: int) -> bytes:
    """The environment that a process was started with, as /proc has it; nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def kill_descendants(seconds: float = 5.0) -> None:
    """KILL all processes that descend from this one, and bury them."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        left = descendants(os.getpid())
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left:
            return
        time.sleep(0.02)


def send(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to each of the processes that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def wait_for_end(pids: Sequence[int], seconds: float, each_look: Callable[[], None]) -> list[int]:
    """Wait for processes to end, for so many seconds at most, and return those that have not."""
    deadline = time.monotonic() + seconds
    while True:
        left = alive(pids)
        if not left or time.monotonic() >= deadline:
            return left
        each_look()
        # A second signal to end changes nothing: the time to save is granted already.
        with contextlib.suppress(Terminated):
            wait(0.05, {})


def descendants(ancestor: int) -> list[int]:
    """The living processes that descend from this one."""
    processes = [each for each in _processes() if each.state != "Z"]
    found: list[int] = []
    parents = {ancestor}
    while parents:
        born = [each.pid for each in processes if each.parent in parents and each.pid not in found]
        found += born
        parents = set(born)
    return found


def _processes() -> list[_Process]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            # The name, in parentheses, may hold anything.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            found.append(_Process(int(entry.name), int(fields[1]), fields[0]))
    return found
