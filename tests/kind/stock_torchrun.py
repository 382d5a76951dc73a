"""Stock torchrun in the chart's pods, without Bireme's entry point and backend, for comparison."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.kind.training import Training

CLAIM_PATH = "/runs"
_FOLDER = "stock"
_SITE = Path(__file__).parent / "without_libuv"


def prepare(claim: Path) -> Path:
    """Write what Debian's torch needs into a folder of the claim, which workers mount at CLAIM_PATH."""
    folder = claim / _FOLDER
    shutil.copytree(_SITE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def values(*options: str) -> dict[str, Any]:
    """Values of torch-elastic that start torchrun as a user would, with c10d unless ``options`` differ.

    The chart's PET_* variables configure it, as they do the chart's own entry point. Nobody can join a later
    round with the store shared, which is torch's default.
    """
    return {
        "launch": {"command": ["torchrun", *options]},
        "env": {"PYTHONPATH": f"{CLAIM_PATH}/{_FOLDER}", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        "rendezvous": {"backend": "c10d"},
        "etcd": {"enabled": False},
    }


def kill(training: Training, index: int, program: str) -> float:
    """SIGKILL the first process of a worker whose command line has ``program``; returns the Unix time.

    Done from the node, from where the first process of a container can be killed too, and with it all others.
    """
    pod = f"HOSTNAME={training.job.name}-r1-{index}"
    # The brackets keep the pattern from matching the shell that looks for it.
    script = f"""for pid in $(pgrep -f '[{program[0]}]{program[1:]}'); do
        # With warm starts it has the command line of the agent.
        [ "$(cat /proc/$pid/comm)" = bireme-template ] && continue
        if tr '\\0' '\\n' < /proc/$pid/environ | grep -qx {pod}; then date +%s.%N; kill -KILL $pid; exit; fi
    done; exit 1"""
    node = str(training.worker(index).node)
    return float(training.shell.cluster.on_node(node, "bash", "-c", script))
