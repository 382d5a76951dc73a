"""Training that makes no step: when that is, and what each process tells of where it stands."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from bireme_runtime.elastic import progress
from bireme_runtime.process import children

STACKS_SIGNAL = int(signal.SIGRTMIN) + 7
RECORDS = "BIREME_RECORDS"
SITE = Path(__file__).with_name("site")
# Without a limit, a pause this long, and many times the longest until now, is only told.
_TOLD_SECONDS, _TOLD_TIMES = 600.0, 10.0
_STACK_SECONDS, _HELD_SECONDS = 6.0, 1.0
_RECORD_SECONDS = 3.0
_RECORD_BYTES = 64 << 20
_PRINT_SECONDS, _TORN_SECONDS = 0.05, 1.0
# As faulthandler prints a call, and as py-spy does.
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.+)$')
_HELD = re.compile(r"^State:\s*([TtD] \(.+\))$", re.MULTILINE)
_COUNTERS = ("net/*/statistics/*", "infiniband/*/ports/*/*counters/*")
_OF_FAULTS = re.compile("err|drop|discard|retrans|timeout|out_of|downed|impaired|unresponsive")
_SPIED = re.compile(r"^\s+(?:[\w.<>]+\.)?(?P<name>[\w<>]+) \((?P<file>[^()]+):(?P<line>\d+)\)$")


def environment(env: Mapping[str, str], folder: str) -> dict[str, str]:
    """What makes training processes tell what they do, their collectives in this folder."""
    path = os.pathsep.join(filter(None, (str(SITE), env.get("PYTHONPATH"))))
    told = {"PYTHONPATH": path, "BIREME_STACKS_SIGNAL": str(STACKS_SIGNAL), RECORDS: folder}
    # torch before 2.9 reads the second name.
    sizes = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    return told | {name: env.get(name, size) for name, size in sizes.items()}


def overdue(seen: progress.Progress, seconds: float, first_seconds: float, now: float) -> float:
    """Seconds since the last step if they are too many, else 0.

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


def print_stacks(pid: int, lines: Callable[[], list[str]]) -> list[str]:
    """Let a training process print its stacks, and return what it has printed.

    ``lines`` are those printed since the call. There are none of a process without its handler.
    """
    if not _catches(pid, STACKS_SIGNAL):
        return []
    os.kill(pid, STACKS_SIGNAL)
    began = changed = time.monotonic()
    printed: list[str] = []
    while True:
        frames, quiet = frames_of(printed), time.monotonic() - changed
        # The outermost calls are printed last, much later where the process gets no CPU.
        if frames and quiet > (_PRINT_SECONDS if _is_outermost(frames[0]) else _TORN_SECONDS):
            break
        waited = time.monotonic() - began
        if waited > _STACK_SECONDS or (waited > _HELD_SECONDS and held(pid)):
            break
        time.sleep(_PRINT_SECONDS)
        before, printed = printed, lines()
        if len(printed) != len(before):
            changed = time.monotonic()
    return printed


def _is_outermost(frame: str) -> bool:
    return frame.startswith(("<module> ", "_run_module_as_main "))


def held(pid: int) -> list[str]:
    """Why a process runs nothing, in place of its calls: it is stopped, or waits in the kernel."""
    found = _HELD.search(_status(pid))
    return [f"state {found[1]}"] if found else []


def counters(root: Path = Path("/")) -> Counter[str]:
    """What this node's network has counted of errors, drops and retransmits."""
    found: Counter[str] = Counter()
    for path in (each for pattern in _COUNTERS for each in root.glob(f"sys/class/{pattern}")):
        if _OF_FAULTS.search(path.name):
            with contextlib.suppress(OSError, ValueError):
                found[f"{path.relative_to(root).parts[3]} {path.name}"] += int(path.read_text())
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = (root / "proc/net/snmp").read_text().splitlines()
        names, numbers = (line.split() for line in lines if line.startswith("Tcp:"))
        found["TCP RetransSegs"] = int(dict(zip(names, numbers))["RetransSegs"])
    return found


def dumps(folder: str, pids: Iterable[int]) -> dict[int, bytes]:
    """What torch's Flight Recorder in these processes holds, as far as they answer in time."""
    asked = {}
    for pid in pids:
        path = Path(folder, str(pid))
        dump = path.with_suffix(".dump")
        dump.unlink(missing_ok=True)
        # Without a reader, the process has no such thread.
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            asked[pid] = dump
    found: dict[int, bytes] = {}
    deadline = time.monotonic() + _RECORD_SECONDS
    while len(found) < len(asked) and time.monotonic() < deadline:
        time.sleep(_RECORD_SECONDS / 100)
        for pid, dump in asked.items():
            with contextlib.suppress(OSError):
                if pid not in found and dump.stat().st_size <= _RECORD_BYTES:
                    found[pid] = dump.read_bytes()
    return found


def frames_of(lines: Iterable[str]) -> list[str]:
    """The main thread's calls, outermost first, by the stacks of faulthandler or py-spy.

    Where no thread is named so, it is the one that runs the script, or that the signal interrupted.
    """
    threads: list[tuple[str, list[str]]] = []
    for line in lines:
        if "(most recent call first):" in line or line.startswith("Thread "):
            threads.append((line.rstrip(), []))
        elif threads and (found := _FRAME.match(line) or _SPIED.match(line)):
            threads[-1][1].insert(0, f"{found['name']} ({found['file']}:{found['line']})")
    for chosen in ('"MainThread"', "", "Current thread"):
        for title, frames in threads:
            runs = bool(frames) and _is_outermost(frames[0])
            if chosen in title and (chosen or runs):
                return frames
    return []


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, which would end it without one."""
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", _status(pid), re.MULTILINE)
    return bool(caught and int(caught.group(1), 16) >> (number - 1) & 1)


def _status(pid: int) -> str:
    return children.told(pid, "status").decode(errors="replace")
