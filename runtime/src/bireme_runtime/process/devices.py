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
from pathlib import Path

from bireme_runtime.process.errors import CONFIG, TEMPORARY, Stop
from bireme_runtime.process.log import Say, last_words, log_of

_FI_INFO = "/opt/amazon/efa/bin/fi_info"
_ASK_SECONDS = 60
# aws-ofi-nccl as its own packages and NVIDIA's images call it, and the one that NCCL takes by itself.
_PLUGINS = ("libnccl-net-ofi.so", "libnccl-net-aws-ofi.so", "libnccl-net.so")
_PARTS = {
    "dev/infiniband/uverbs*": "/dev/infiniband has no uverbs device, which the EFA device plugin gives to "
    "a pod that requests vpc.amazonaws.com/efa (charts/efa-device-plugin)",
    "sys/class/infiniband/*": "/sys/class/infiniband is empty: "
    "this node's kernel has not loaded the EFA driver",
}
_LEAST_LOCKED = 2**30
_CAP_IPC_LOCK = 14


def check_efa(env: Mapping[str, str], say: Say, root: Path = Path("/")) -> str:
    """Say and return what is missing for the EFA of BIREME_EFA; raises Stop if it is ``required``."""
    wish = env.get("BIREME_EFA", "")
    lack = efa_lack(env, root) if wish else None
    if lack is None:
        return ""
    if wish == "required":
        raise Stop(lack.code, f"EFA cannot be used: {lack}; efa=all asks for it")
    sentence = f"EFA cannot be used, so that NCCL takes TCP: {lack}; efa=0 leaves the interfaces to others"
    say(sentence)
    return sentence


def for_processes(env: Mapping[str, str], say: Say, root: Path = Path("/")) -> Mapping[str, str]:
    """``env`` for the worker's processes, with NCCL_NET_PLUGIN where only the image's name for it is known.

    Looks for EFA first; raises Stop like `check_efa`. What the values or the image say stays.
    """
    check_efa(env, say, root)
    is_open = not env.get("NCCL_NET_PLUGIN") and any(root.glob("dev/infiniband/uverbs*"))
    name = (_plugin(env) or "").removeprefix("libnccl-net").removesuffix(".so").lstrip("-") if is_open else ""
    if name:
        say(f"NCCL takes the image's plugin for EFA: NCCL_NET_PLUGIN={name}")
    return {**env, "NCCL_NET_PLUGIN": name} if name else env


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


def efa_lack(env: Mapping[str, str], root: Path = Path("/")) -> Stop | None:
    """Why EFA cannot be used, if so. Another node may have a missing device, but no other image."""
    for pattern, sentence in _PARTS.items():
        if not any(root.glob(pattern)):
            return Stop(TEMPORARY, sentence)
    return _memory_lack(root) or _provider_lack(env, root) or _plugin_lack(env)


def _provider_lack(env: Mapping[str, str], root: Path) -> Stop | None:
    own = root / _FI_INFO.lstrip("/")
    program = shutil.which("fi_info", path=env.get("PATH", "")) or (str(own) if own.exists() else "")
    if not program:
        # An image may have libfabric without its programs.
        missing = "the image has no libfabric with an EFA provider (images/efa.sh installs it)"
        return None if has_library("libfabric.so.1", env) else Stop(CONFIG, missing)
    try:
        asked = _ask(program, "-p", "efa", env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Stop(TEMPORARY, f"fi_info -p efa does not answer: {error}")
    if asked.returncode:
        return Stop(TEMPORARY, f"libfabric finds no EFA provider (fi_info -p efa: {_last_line(asked)})")
    return None


def _plugin(env: Mapping[str, str]) -> str | None:
    """The library that NCCL is told to take or that the image has; "" if it has none, None without NCCL."""
    name = env.get("NCCL_NET_PLUGIN", "")
    if env.get("BIREME_ACCELERATORS") != "nvidia.com/gpu" or "/" in name or name == "none":
        return None
    named = (name if name.endswith(".so") else f"libnccl-net-{name}.so",)
    return next((each for each in (named if name else _PLUGINS) if has_library(each, env)), "")


def _plugin_lack(env: Mapping[str, str]) -> Stop | None:
    if _plugin(env) != "":
        return None
    library = env.get("NCCL_NET_PLUGIN") or _PLUGINS[0]
    needed = "aws-ofi-nccl, which images/efa.sh installs"
    return Stop(CONFIG, f"the image has no {library}, NCCL's plugin for EFA ({needed})")


def _memory_lack(root: Path) -> Stop | None:
    """EFA registers memory, which the kernel locks. Kubernetes has no field for that limit."""
    limits, status = ((root / "proc/self" / name).read_text() for name in ("limits", "status"))
    limit = re.search(r"^Max locked memory +(\d+)", limits, re.MULTILINE)
    rights = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    has_right = rights is not None and int(rights[1], 16) >> _CAP_IPC_LOCK & 1
    if limit is None or has_right or int(limit[1]) >= _LEAST_LOCKED:
        return None
    locks = f"a process may lock {int(limit[1]) // 1024} KiB of memory, and EFA needs more than a GiB"
    return Stop(TEMPORARY, f"{locks}: the node's containerd needs LimitMEMLOCK=infinity (docs/gpu.md)")


def has_library(name: str, env: Mapping[str, str]) -> bool:
    """Whether the dynamic loader finds the library ``name`` for a process with this environment."""
    folders = [folder for folder in env.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if any(Path(folder, name).exists() for folder in folders):
        return True
    ldconfig = shutil.which("ldconfig", path=f"{env.get('PATH', '')}:/usr/sbin:/sbin")
    if not ldconfig:
        return False
    known = _ask(ldconfig, "-p").stdout
    return any(line.split(" ", 1)[0] == name for line in map(str.strip, known.splitlines()))


def _ask(*command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=_ASK_SECONDS, check=False)


def _last_line(asked: subprocess.CompletedProcess[str]) -> str:
    return [f"exit code {asked.returncode}", *(asked.stdout + asked.stderr).strip().splitlines()][-1]


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
        asked = _ask(program, *query)
    except subprocess.TimeoutExpired:
        raise GpuError(f"nvidia-smi does not answer within {_ASK_SECONDS} s") from None
    if asked.returncode:
        raise GpuError(f"nvidia-smi fails: {_last_line(asked)}")
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
