"""Training scripts that run in the root file system of the local image, and the events in their logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rootfs import Rootfs, enter, load_rootfs

from bireme.core.paths import Paths
from tests.runtime.etcd_servers import free_port

PATHS = Paths.discover(start=Path(__file__))

MPI_IMAGE = load_rootfs("mpi")
TENSORFLOW_IMAGE = load_rootfs("tensorflow-2.15")
FOLDER = "/tmp/job"
"""The path of a job's folder inside."""
SCRIPTS = "/tmp/bireme"
CHECKPOINTS = "--checkpoints=/tmp/job/checkpoints"
MAKE_COCO = "import runpy; runpy.run_path('/tmp/bireme/tests/tiny_coco.py', run_name='__main__')"
Event = dict[str, Any]
SECONDS = 240
"""Limit of each wait; long, because the machine may be busy with other tests."""

# Debian's torch has no libuv, but torchrun's c10d backend uses it unless told otherwise.
TORCHRUN = """
import functools, torch.distributed as dist
dist.TCPStore = functools.partial(dist.TCPStore, use_libuv=False)
from torch.distributed.run import main
main()
"""


class Job:
    """A training script that runs in the image's root file system, under torchrun or by itself."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("w") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    @property
    def output(self) -> str:
        return self._log.read_text()

    def events(self, name: str | None = None) -> list[Event]:
        """The events in the log so far, in order."""
        lines = [
            line for line in self.output.splitlines() if line.startswith('{"event"') and line.endswith("}")
        ]
        return [event for event in map(json.loads, lines) if name in (None, event["event"])]

    def losses(self) -> dict[int, float]:
        """The loss of each step, as it was made last."""
        return {event["step"]: event["loss"] for event in self.events("step")}

    def wait_for_step(self, step: int) -> None:
        self.wait_until(lambda: any(event["step"] >= step for event in self.events("step")), f"step {step}")

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert self._process.poll() is None, f"ended before {what}:\n{self.output[-3000:]}"
            assert time.monotonic() < deadline, f"no {what} after {SECONDS} s:\n{self.output[-3000:]}"
            time.sleep(0.02)

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to the training process that has ``rank`` now."""
        os.kill(self._pid(rank), number)

    def is_alive(self, rank: int) -> bool:
        """Whether the latest training process with ``rank`` still runs."""
        try:
            return "(zombie)" not in Path(f"/proc/{self._pid(rank)}/status").read_text()
        except FileNotFoundError:
            return False

    def terminate(self) -> None:
        """Send SIGTERM to torchrun itself, as when its pod is deleted, and wait for its end."""
        self._process.terminate()
        self._process.wait(SECONDS)

    def status(self) -> int:
        """Wait for the end; returns the exit status."""
        return self._process.wait(SECONDS)

    def _pid(self, rank: int) -> int:
        return int([event["pid"] for event in self.events("start") if event["rank"] == rank][-1])

    def clean_up(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            for event in self.events("start"):
                try:
                    os.kill(event["pid"], signal.SIGKILL)
                except ProcessLookupError:
                    continue
        self._process.wait()


Start = Callable[..., Job]


def command_in(image: Rootfs, root: Path, folder: Path, command: list[str]) -> list[str]:
    """The command line that runs ``command`` in the image; ``folder`` is FOLDER inside."""
    binds = {PATHS.root / "images" / "torch": SCRIPTS, folder: FOLDER}
    env = {
        "PYTHONDONTWRITEBYTECODE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        **image.env,
    }
    return enter(root, command, binds, env)


def mpirun_in(image: Rootfs, root: Path, folder: Path, processes: int, program: list[str]) -> list[str]:
    """The command line that runs ``program`` in an image with MPI, in ``processes`` (0: no mpirun)."""
    binds = {PATHS.root / "images": SCRIPTS, PATHS.root / "tests/images": f"{SCRIPTS}/tests", folder: FOLDER}
    env = {
        "PYTHONDONTWRITEBYTECODE": "1",
        # The image has both in one folder.
        "PYTHONPATH": f"{SCRIPTS}/torch:{SCRIPTS}/mpi",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # Allow more processes than cores, which then yield while they wait for each other.
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        # On a busy machine, a step of one second can take half a minute.
        "BIREME_GRACE_SECONDS": str(SECONDS),
        **image.env,
    }
    launcher = ["mpirun", "-n", str(processes)] if processes else []
    return enter(root, [*launcher, "python3", *program], binds, env)


def torchrun(processes: int) -> list[str]:
    """The command line of torchrun, by address because this machine's name cannot be resolved inside."""
    rendezvous = [
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{free_port()}",
        "--local-addr=127.0.0.1",
    ]
    options = [f"--nproc-per-node={processes}", "--max-restarts=5", "--monitor-interval=0.2"]
    return ["python3", "-c", TORCHRUN, *options, *rendezvous]
