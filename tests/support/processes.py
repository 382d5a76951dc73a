"""Whether a process has ended, and the autoscaler as a process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def gone(pid: int) -> bool:
    """Whether a process has ended, also when nobody has asked for its status yet (a zombie)."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@contextlib.contextmanager
def autoscaler(kubeconfig: Path, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """`bireme autoscale` looks at a cluster each second while the block runs, and writes to that log."""
    command = [str(Path(sys.executable).with_name("bireme")), "autoscale", "--every=1", *options]
    command.append(f"--kubeconfig={kubeconfig}")
    with log.open("w") as output, subprocess.Popen(command, stderr=output) as controller:
        try:
            yield controller
        finally:
            controller.terminate()
