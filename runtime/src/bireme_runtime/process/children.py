"""Child processes of a supervisor, which may be process 1 of a container.

Functions that read /proc need Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_WATCHED = {*_END_SIGNALS, signal.SIGCHLD}
# Python ignores the last two, and what it starts would too.
_DEFAULT = [*_WATCHED, signal.SIGPIPE, signal.SIGXFSZ]


class Terminated(Exception):
    """This process received SIGTERM or SIGINT, whose number is `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(f"received {signal.Signals(number).name}")
        self.number = number


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    session: int
    state: str
    name: str
    threads: int

    @property
    def runs(self) -> bool:
        """Whether a thread is left: the first may be a zombie while another waits in the kernel."""
        return self.state != "Z" or self.threads > 1


def take_charge() -> None:
    """Deliver signals only to `wait`, and adopt orphaned descendants as process 1 does.

    Call it once, first.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    if os.getpid() != 1:
        adopt_orphans()


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has ended."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(command: Sequence[str], env: Mapping[str, str], output: int | tuple[int, int] | None = None) -> int:
    """Start a program with default signal handling and return its process id.

    ``output`` is a file descriptor for what it prints, or one each for its standard output and error; by
    default it prints to this process's output.
    """
    pair = (output, output) if isinstance(output, int) else output or ()
    moves = [(os.POSIX_SPAWN_DUP2, writer, each) for each, writer in enumerate(pair, start=1)]
    return os.posix_spawnp(
        command[0], list(command), dict(env), file_actions=moves, setsigmask=[], setsigdef=_DEFAULT
    )


def wait(seconds: float, ended: dict[int, int]) -> None:
    """Wait until a child ends or the time is over; reap ended children into ``ended`` {pid: wait status}.

    Raises Terminated when SIGTERM or SIGINT arrives.
    """
    info = signal.sigtimedwait(_WATCHED, max(0.0, seconds))
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = status
    if info and info.si_signo in _END_SIGNALS:
        raise Terminated(info.si_signo)


def pause(seconds: float) -> None:
    """Sleep; raises Terminated as soon as SIGTERM or SIGINT arrives."""
    deadline = time.monotonic() + seconds
    while (remaining := deadline - time.monotonic()) > 0:
        wait(remaining, {})


def exit_code(status: int) -> int:
    """The exit code in a wait status; minus the number of the signal that killed the process."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def children_of(parent: int, but: str = "") -> tuple[int, ...]:
    """The running children of a process, except those of that name."""
    return tuple(
        each.pid
        for each in _processes()
        if each.parent == parent and each.runs and not (but and each.name == but)
    )


def alive(pids: Sequence[int]) -> list[int]:
    """The processes among ``pids`` that still run; one that ended but is not yet reaped does not."""
    running = {each.pid for each in _processes() if each.runs}
    return [pid for pid in pids if pid in running]


def told(pid: int, what: str) -> bytes:
    """The content of a process's file in /proc, such as environ. Empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def kill_descendants(seconds: float = 5.0, but: int = 0) -> list[int]:
    """Send SIGKILL to all descendants of this process and reap them. Returns those that do not end in time.

    ``but``: the id of one that stays. A process in an uninterruptible wait (state D) ends only when the wait
    does.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = [pid for pid in descendants(os.getpid()) if pid != but]
        send(left, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(0.02)


def reap(sessions: Collection[int]) -> None:
    """Reap the orphans of these sessions that have ended, but not the processes that began the sessions."""
    for each in _processes():
        is_orphan = each.parent == os.getpid() and each.session in sessions and each.pid not in sessions
        if is_orphan and not each.runs:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(each.pid, os.WNOHANG)


def send(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def wait_for_end(pids: Sequence[int], seconds: float) -> list[int]:
    """Wait at most ``seconds`` for processes to end; returns those that still run."""
    deadline = time.monotonic() + seconds
    while True:
        left = alive(pids)
        if not left or time.monotonic() >= deadline:
            return left
        # A second signal changes nothing: the processes already have their time to save.
        with contextlib.suppress(Terminated):
            wait(0.05, {})


def descendants(ancestor: int) -> list[int]:
    """The running descendants of a process."""
    processes = [each for each in _processes() if each.runs]
    found: list[int] = []
    parents = {ancestor}
    while parents:
        found_now = [each.pid for each in processes if each.parent in parents and each.pid not in found]
        found += found_now
        parents = set(found_now)
    return found


def ancestors(pid: int) -> list[int]:
    """The processes above one, its parent first."""
    parents = {each.pid: each.parent for each in _processes()}
    found: list[int] = []
    while pid := parents.get(pid, 0):
        found.append(pid)
    return found


def _processes() -> list[_Process]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            # The second field, the name in parentheses, may contain spaces and parentheses.
            start, _, rest = (entry / "stat").read_text(errors="replace").rpartition(")")
            fields, name = rest.split(), start.partition("(")[2]
            parent, session = int(fields[1]), int(fields[3])
            found.append(_Process(int(entry.name), parent, session, fields[0], name, int(fields[17])))
    return found
