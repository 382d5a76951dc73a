"""What is checked before a worker joins: that its accelerators answer, and that it can save checkpoints.

A worker with a broken GPU or a full claim costs all others a restart each time it fails. Here it fails before
it joins, with a sentence, and its pod is replaced.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bireme_runtime.process import environment
from bireme_runtime.process.devices import GpuError, query_gpus
from bireme_runtime.process.environment import setting
from bireme_runtime.process.errors import TEMPORARY, Stop
from bireme_runtime.process.log import Say

_MIB, _PIECES = 1 << 20, 64


@dataclass(frozen=True)
class Wanted:
    """What a worker needs: ``accelerators`` (0: not checked), and in ``folder``, if there is one, free
    MiB and MiB a second when it writes (0: not measured)."""

    accelerators: int = setting("BIREME_PREFLIGHT_ACCELERATORS", 0, least=0)
    folder: str = setting("BIREME_PREFLIGHT_FOLDER", "")
    free_mib: int = setting("BIREME_PREFLIGHT_FREE_MIB", 0, least=0)
    write_mib: int = setting("BIREME_PREFLIGHT_WRITE_MIB", 0, least=0)


def check(env: Mapping[str, str], say: Say) -> None:
    """Check what the environment asks for. Raises Stop for what is wrong here: the pod is replaced."""
    wanted = environment.read(Wanted, env)
    why = accelerators_lack(wanted.accelerators, env, say) if wanted.accelerators else ""
    why = why or (_folder_lack(wanted, say) if wanted.folder else "")
    if why:
        node = env.get("BIREME_NODE", "this node")
        raise Stop(
            TEMPORARY,
            f"preflight: {node} cannot train: {why}; recovery.preflight.enabled=false leaves this out",
        )


def accelerators_lack(wanted: int, env: Mapping[str, str], say: Say) -> str:
    """What is wrong with the accelerators, "" when nothing is known to be."""
    try:
        rows = query_gpus(env, "index", "ecc.errors.uncorrected.volatile.total")
    except GpuError as error:
        return str(error)
    except OSError as error:
        say(f"preflight: the GPUs are not checked: {error}")
        return ""
    if rows is None:
        return ""
    if len(rows) < wanted:
        return f"nvidia-smi shows {len(rows)} of the {wanted} GPUs that the worker asked for"
    broken = [row[0] for row in rows if row[-1].isdigit() and int(row[-1])]
    if broken:
        return f"GPU {', '.join(broken)} has uncorrected memory errors since the driver was loaded"
    return ""


def _folder_lack(wanted: Wanted, say: Say) -> str:
    """Why checkpoints cannot be saved in the folder, "" when they can."""
    folder = Path(wanted.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        room = os.statvfs(folder)
        free = room.f_bavail * room.f_frsize // _MIB
        rate = _write_rate(folder, _PIECES if wanted.write_mib else 1)
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror or error}"
    if free < wanted.free_mib:
        return f"{folder} has {free} MiB free, {wanted.free_mib} are needed"
    if rate < wanted.write_mib:
        return f"{folder} takes {rate:.0f} MiB/s, {wanted.write_mib} are needed"
    if wanted.write_mib:
        say(f"preflight: {folder} takes {rate:.0f} MiB/s and has {free} MiB free")
    return ""


def _write_rate(folder: Path, pieces: int) -> float:
    """MiB a second for a file of ``pieces`` MiB that is written to the disk, not just to memory."""
    path = folder / f".bireme-preflight-{uuid.uuid4().hex}"
    try:
        since = time.monotonic()
        with path.open("wb") as file:
            for _ in range(pieces):
                file.write(b"\0" * _MIB)
            file.flush()
            os.fsync(file.fileno())
        return pieces / max(time.monotonic() - since, 1e-9)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
