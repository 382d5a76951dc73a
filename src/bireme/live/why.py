"""Why a run makes no step: what its ranks tell, how its pods ended, or what torch and py-spy have written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bireme.core.errors import BiremeError
from bireme.live.pods import ObservedPod
from bireme_runtime.elastic.monitor import hang
from bireme_runtime.elastic.monitor.last_words import bug_of, lost_a_peer
from bireme_runtime.elastic.monitor.why import Cause, RankState

_FILE_BYTES = 256 << 20
# By what a pod said at its end. A process on SIGBUS has mapped more of /dev/shm than there is.
_ENDS = (
    ("sharedMemory", re.compile(r"(?i)bus error|exit code 135\b|signal 7\b|insufficient shared memory")),
    ("memory", re.compile(r"(?i)OOMKilled|out ?of ?memory|MemoryError")),
    ("device", re.compile(r"\bXid\b|\bECC\b|CUDA error|fallen off the bus|GPU is lost")),
)
_NAMED = 8


def read(folder: Path) -> list[RankState]:
    """What the files of a folder tell of each rank, whose number is the last in a file's name.

    Those are dumps of torch's Flight Recorder, pickled or JSON, and stacks by py-spy or faulthandler. Raises
    BiremeError when none is.
    """
    if not folder.is_dir():
        raise BiremeError(f"--files {folder}: there is no such folder")
    found: dict[int, RankState] = {}
    refused = []
    for path in sorted(each for each in folder.iterdir() if each.is_file()):
        numbers = re.findall(r"\d+", path.name)
        rank = int(numbers[-1]) if numbers else -1
        try:
            found[rank] = _with(found.get(rank, RankState(rank)), path)
        except (OSError, ValueError) as error:
            refused.append(f"{path.name}: {error}")
    if not found:
        raise BiremeError("\n".join([f"--files {folder}: no file tells of a rank", *refused[:5]]))
    return list(found.values())


def _with(state: RankState, path: Path) -> RankState:
    if state.rank < 0:
        raise ValueError("its name has no rank")
    if path.stat().st_size > _FILE_BYTES:
        raise ValueError(f"it is larger than {_FILE_BYTES >> 20} MiB")
    data = path.read_bytes()
    frames = hang.frames_of(data.decode(errors="replace").splitlines())
    if frames:
        return replace(state, frames=frames)
    return state.with_dump(data)


def told(answers: Mapping[str, Mapping[str, Any] | None]) -> tuple[list[RankState], list[str]]:
    """What the workers' answers to /v1/ranks tell, and the names of those without an answer."""
    silent = [name for name, answer in answers.items() if answer is None]
    ranks = [RankState(**each) for answer in answers.values() if answer for each in answer["ranks"]]
    return ranks, silent


def crash(pods: Iterable[ObservedPod]) -> Cause | None:
    """Why pods ended: the first that failed by itself, and who ended after it. None where none has failed."""
    ended = sorted((each for each in pods if each.exit_code or each.ousted), key=lambda each: each.ended)
    first = next((each for each in ended if not lost_a_peer(each.last_words)), None)
    if first is None:
        return None
    said = f"{first.reason}\nexit code {first.exit_code}\n{first.last_words}"
    # A supervisor's own sentence may follow the traceback.
    bug = bug_of(first.last_words) or bug_of(first.last_words.rpartition("\n")[0])
    found = (kind for kind, pattern in _ENDS if pattern.search(said))
    kind = "evicted" if first.ousted else next(found, "exception" if bug else "ended")
    words = first.last_words.rpartition("\n")[2] or first.reason
    how = first.ousted or f"exit code {first.exit_code}" + (f": {words}" if words else "")
    after = [each.name for each in ended if each is not first]
    more = f" and {len(after) - _NAMED} more" if len(after) > _NAMED else ""
    evidence = (f"with it ended {', '.join(after[:_NAMED])}{more}",) if after else ()
    where = f" on {first.node}" if first.node else ""
    line = bug.rpartition(" at ")[2]
    return Cause(kind, f"{first.name}{where} ended first, {how}", (), bool(first.ended), evidence, line)
