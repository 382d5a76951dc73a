"""Training that makes no step: when that is, where each process stands, and which one the others wait for."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from bireme_runtime.elastic import progress

STACKS_SIGNAL = int(signal.SIGRTMIN) + 7
SITE = Path(__file__).with_name("site")
# Without a limit, a pause this long, and many times the longest until now, is only told.
_TOLD_SECONDS, _TOLD_TIMES = 600.0, 10.0
_STACK_SECONDS = 3.0
_PRINT_SECONDS = 0.2
_SPY_SECONDS = 5.0
# As faulthandler prints a call, and as py-spy does.
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.+)$')
_SPIED = re.compile(r"^\s+(?:[\w.<>]+\.)?(?P<name>[\w<>]+) \((?P<file>[^()]+):(?P<line>\d+)\)$")


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """What makes training processes print their stacks at the signal."""
    path = os.pathsep.join(filter(None, (str(SITE), env.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "BIREME_STACKS_SIGNAL": str(STACKS_SIGNAL)}


def overdue(seen: progress.Progress, seconds: float, first_seconds: float, now: float) -> float:
    """For how many seconds there has been no step, if that is too long; else 0.

    ``seconds`` may pass between two steps, and ``first_seconds`` until the first one of a start. With 0 they
    are learnt, and only pauses between two steps count.
    """
    if not seen.marks:
        # Its steps are not known, or another worker sees them.
        return 0.0
    silent = now - (seen.last or seen.since)
    if not seconds:
        limit = max(_TOLD_SECONDS, _TOLD_TIMES * seen.longest) if seen.last else float("inf")
    else:
        limit = seconds if seen.last else max(seconds, first_seconds)
    return silent if silent > limit else 0.0


@dataclass(frozen=True)
class RankState:
    """Where one training process stands: its last step, if it tells them, and the stack of its main thread.

    ``frames`` begin with the outermost call.
    """

    rank: int
    node: str
    step: int | None
    frames: Sequence[str]

    @property
    def frame(self) -> str:
        """What the process does, or "" where that is not known."""
        return self.frames[-1] if self.frames else ""


def slowest(stands: Iterable[RankState]) -> RankState | None:
    """The process for which the others wait, if that can be told.

    It has made the fewest steps, or is the one that does something else than most.
    """
    found = sorted(stands, key=lambda each: each.rank)
    steps = [each.step for each in found if each.step is not None]
    if len(steps) == len(found) and len(set(steps)) > 1:
        return min(found, key=lambda each: (each.step or 0, each.rank))
    # The outermost difference tells most: ranks that do the same are caught in different lines below it.
    for frames in zip_longest(*(each.frames for each in found), fillvalue=""):
        counts = Counter(frames)
        if len(counts) > 1:
            frame, count = min(counts.items(), key=lambda each: each[1])
            return found[frames.index(frame)] if count * 2 < len(found) else None
    return None


def spied_stacks(pid: int) -> list[str]:
    """The stacks of a process as py-spy prints them, where the image has it and it may trace; else nothing.

    It also sees what has no handler for the signal, such as `python -I`.
    """
    program = shutil.which("py-spy")
    if program is None:
        return []
    command = [program, "dump", "--pid", str(pid)]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        # The supervisor may reap it first, so its exit code tells nothing.
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SPY_SECONDS, check=False)
        if frames_of(done.stdout.splitlines()):
            return done.stdout.splitlines()
    return []


def print_stacks(pid: int, lines: Callable[[], list[str]]) -> list[str]:
    """Let a training process print its stacks, and return what it has printed.

    ``lines`` are those printed since the call. There are none of a process without its handler.
    """
    if not _catches(pid, STACKS_SIGNAL):
        return []
    os.kill(pid, STACKS_SIGNAL)
    deadline = time.monotonic() + _STACK_SECONDS
    printed: list[str] = []
    # The outermost calls are printed last.
    while time.monotonic() < deadline and not (frames_of(printed) and len(printed) == len(lines())):
        printed = lines()
        time.sleep(_PRINT_SECONDS)
    return lines()


def frames_of(lines: Iterable[str]) -> list[str]:
    """The main thread's calls, outermost first, by the stacks of faulthandler or py-spy.

    The signal of faulthandler interrupts the main thread.
    """
    main, frames = False, []
    for line in lines:
        if "(most recent call first):" in line or line.startswith("Thread "):
            main = "Current thread" in line or line.rstrip().endswith('"MainThread"')
        elif main and (found := _FRAME.match(line) or _SPIED.match(line)):
            frames.append(f"{found['name']} ({os.path.basename(found['file'])}:{found['line']})")
    return frames[::-1]


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, which would end it without one."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(caught and int(caught.group(1), 16) >> (number - 1) & 1)
