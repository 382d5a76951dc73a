"""Why a run makes no step: what its ranks tell, or what torch and py-spy have written into files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bireme.core.errors import BiremeError
from bireme_runtime.elastic.monitor import hang
from bireme_runtime.elastic.monitor.why import RankState

_FILE_BYTES = 256 << 20


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
