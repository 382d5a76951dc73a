"""What a worker asked for, and whether its container has it: EFA, and kernels for its GPUs.

Without a provider, a plugin or a device, NCCL takes TCP and says so only in its own log; without kernels, the
first operation on a GPU fails in every process. As a program, this module is the init container that looks
for EFA: its last words stay in the pod's status.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bireme_runtime.process.errors import Stop
from bireme_runtime.process.exits import CONFIG, TEMPORARY
from bireme_runtime.process.log import Say, last_words, log_of

_FI_INFO = "/opt/amazon/efa/bin/fi_info"
_ASK_SECONDS = 60


@dataclass(frozen=True)
class Lack:
    """What is missing, and the exit code for it: another node may have a device, but not another image."""

    sentence: str
    code: int


def check_efa(env: Mapping[str, str], say: Say, root: Path = Path("/")) -> str:
    """Say and return what is missing for the EFA of BIREME_EFA; raises Stop if it is ``required``."""
    wish = env.get("BIREME_EFA", "")
    lack = efa_lack(env, root) if wish else None
    if lack is None:
        return ""
    if wish == "required":
        raise Stop(lack.code, f"EFA cannot be used: {lack.sentence}; efa=all asks for it")
    sentence = (
        f"EFA cannot be used, so that NCCL takes TCP: {lack.sentence}; efa=0 leaves the interfaces to others"
    )
    say(sentence)
    return sentence


def main(env: Mapping[str, str] = os.environ, root: Path = Path("/")) -> int:
    """Look for EFA and leave in the pod's status what is missing; returns the exit code."""
    say = log_of("devices")
    try:
        words, code = check_efa(env, say, root), 0
    except Stop as stop:
        words, code = str(stop), stop.code
        say(words)
    if words:
        last_words(words, env)
    return code


def efa_lack(env: Mapping[str, str], root: Path = Path("/")) -> Lack | None:
    """The first thing that is missing for EFA; None if all is there."""
    if not any(root.glob("dev/infiniband/uverbs*")):
        return Lack(
            "/dev/infiniband has no uverbs device, which the EFA device plugin gives to a pod that requests "
            "vpc.amazonaws.com/efa (charts/efa-device-plugin)",
            TEMPORARY,
        )
    if not any(root.glob("sys/class/infiniband/*")):
        return Lack(
            "/sys/class/infiniband is empty: this node's kernel has not loaded the EFA driver", TEMPORARY
        )
    return _provider_lack(env, root) or _plugin_lack(env)


def _provider_lack(env: Mapping[str, str], root: Path) -> Lack | None:
    own = root / _FI_INFO.lstrip("/")
    program = shutil.which("fi_info", path=env.get("PATH", "")) or (str(own) if own.exists() else "")
    if not program:
        # An image may have libfabric without its programs.
        missing = "the image has no libfabric with an EFA provider (images/efa.sh installs it)"
        return None if has_library("libfabric.so.1", env) else Lack(missing, CONFIG)
    try:
        asked = subprocess.run(
            [program, "-p", "efa"],
            env=dict(env),
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Lack(f"fi_info -p efa does not answer: {error}", TEMPORARY)
    if asked.returncode:
        words = (asked.stderr or asked.stdout).strip().splitlines()[-1:] or [f"exit code {asked.returncode}"]
        return Lack(f"libfabric finds no EFA provider (fi_info -p efa: {words[0]})", TEMPORARY)
    return None


def _plugin_lack(env: Mapping[str, str]) -> Lack | None:
    """Only workers with GPUs have NCCL; the chart sets NCCL_NET_PLUGIN for them."""
    name = env.get("NCCL_NET_PLUGIN", "")
    if not name or "/" in name or name == "none":
        return None
    library = name if name.endswith(".so") else f"libnccl-net-{name}.so"
    if has_library(library, env):
        return None
    needed = "aws-ofi-nccl 1.15 or newer, which images/efa.sh installs"
    return Lack(f"the image has no {library}, NCCL's plugin for EFA ({needed})", CONFIG)


def has_library(name: str, env: Mapping[str, str]) -> bool:
    """Whether the dynamic loader finds the library ``name`` for a process with this environment."""
    folders = [folder for folder in env.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if any(Path(folder, name).exists() for folder in folders):
        return True
    ldconfig = shutil.which("ldconfig", path=f"{env.get('PATH', '')}:/usr/sbin:/sbin")
    if not ldconfig:
        return False
    known = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
    return any(line.split(" ", 1)[0] == name for line in map(str.strip, known.splitlines()))


class GpuError(Exception):
    """Why nvidia-smi gives no answer, as a sentence."""


def query_gpus(env: Mapping[str, str], *fields: str) -> list[list[str]] | None:
    """What nvidia-smi prints for ``fields``, a row for each GPU; None for an image without nvidia-smi.

    Raises GpuError when nvidia-smi fails, and OSError when it cannot be started.
    """
    program = shutil.which("nvidia-smi", path=env.get("PATH", ""))
    if program is None:
        return None
    query = [f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(
            [program, *query], capture_output=True, text=True, timeout=_ASK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise GpuError(f"nvidia-smi does not answer within {_ASK_SECONDS} s") from None
    if asked.returncode:
        last = (asked.stdout + asked.stderr).strip().splitlines()[-1:] or [f"exit code {asked.returncode}"]
        raise GpuError(f"nvidia-smi fails: {last[0]}")
    rows = (row.rsplit(",", len(fields) - 1) for row in asked.stdout.splitlines() if row.strip())
    return [[cell.strip() for cell in row] for row in rows]


def gpu_capabilities(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The compute capability of each model of GPU; none where nvidia-smi gives no answer."""
    try:
        rows = query_gpus(env, "name", "compute_cap") or []
    except (GpuError, OSError):
        return {}
    return {row[0]: row[1] for row in rows if len(row) == 2}


def has_kernels(architectures: Sequence[str], capability: str) -> bool:
    """Whether a build for ``architectures`` (sm_90, compute_90) runs on GPUs of ``capability`` (9.0).

    Kernels run on later GPUs of the same major version; PTX is compiled for any later one. Those whose name
    ends with a letter run on one capability only.
    """
    try:
        major, minor = (int(part) for part in capability.split("."))
    except ValueError:
        return True
    for architecture in architectures:
        known = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", architecture)
        if not known:
            continue
        kind, letter, built = known[1], known[4], (int(known[2]), int(known[3]))
        if built == (major, minor):
            return True
        if not letter and built < (major, minor) and (kind == "compute" or built[0] == major):
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
