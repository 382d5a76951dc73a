"""Tests with real torchrun, in the root filesystem with Python and torch that BIREME_TORCH_ROOT names.

BIREME_TORCH_AGENT may name a folder with torch/distributed/{elastic,launcher,run.py} of another release: the
agent is then that release's, and the rest of torch that of the root filesystem.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.etcd_servers import RUNTIME, EtcdServer

ROOT = os.environ.get("BIREME_TORCH_ROOT", "")
AGENT = os.environ.get("BIREME_TORCH_AGENT", "")
# `make test` needs no root and leaves these out; `make test-torch` runs them.
collect_ignore_glob = [] if ROOT else ["test_*.py"]
if any("'2.6." in file.read_text() for file in Path(ROOT).glob("usr/lib/python3/*/torch/version.py")):
    # The Flight Recorder of torch 2.6 does not record gloo.
    collect_ignore_glob.append("test_planted_hangs.py")


class Job:
    """Workers of one run, each in its own mount namespace over one root filesystem."""

    def __init__(self, folder: Path, env: dict[str, str], steps: int, pause: float) -> None:
        self.folder = folder
        self.env = env
        self.script: list[str] | None = None
        self.arguments = [str(steps), str(pause)]
        # The command by which a worker enters its network, where it has one.
        self.networks: dict[str, list[str]] = {}
        # A folder with further Python packages, which workers find at /opt.
        self.packages: Path | None = None
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "train.py").write_bytes(Path(__file__).with_name("train.py").read_bytes())

    def start(self, name: str, index: int = 0, **env: str) -> None:
        """Start a worker. The same name may be started again, as a replaced pod."""
        inside = {
            "PATH": "/usr/bin:/bin", "PYTHONPATH": "/srv", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1", "JOB_COMPLETION_INDEX": str(index), "PET_LOCAL_ADDR": "127.0.0.1",
            "TMPDIR": "/mnt", **self.env, **env,
        }  # fmt: skip
        binds = [(RUNTIME, "srv"), (self.folder, "mnt"), ("/proc", "proc"), ("/dev", "dev")]
        if self.packages:
            binds.append((self.packages, "opt"))
        for name_there in ("elastic", "launcher", "run.py") if AGENT else ():
            part = f"torch/distributed/{name_there}"
            binds.append((f"{AGENT}/{part}", f"usr/lib/python3/dist-packages/{part}"))
        mounts = " && ".join(f"mount --rbind {source} {ROOT}/{target}" for source, target in binds)
        script = self.script or ["/mnt/train.py", "/mnt", name, *self.arguments]
        command = ["env", "-i", *(f"{key}={value}" for key, value in inside.items()),
                   "python3", "-m", "bireme_runtime.elastic.agent.supervisor", "--", *script]  # fmt: skip
        with (self.folder / f"{name}.err").open("ab") as errors:
            inside_root = f'{mounts} && exec chroot {ROOT} "$@"'
            self.workers[name] = subprocess.Popen(
                [*self.networks.get(name, ()), "unshare", "--mount", "sh", "-c", inside_root, "sh", *command],
                stdout=errors, stderr=errors,
            )  # fmt: skip

    def notes(self, name: str, event: str, since: float = 0) -> list[dict[str, Any]]:
        """The notes of a worker's training processes after a time."""
        path = self.folder / f"{name}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        notes = [json.loads(line) for line in lines if line.endswith("}")]
        return [note for note in notes if note["event"] == event and note["time"] > since]

    def wait_for(
        self, name: str, event: str, since: float = 0, seconds: float = 180, **facts: Any
    ) -> dict[str, Any]:
        """The first note of an event with these facts after a time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for note in self.notes(name, event, since):
                if all(note.get(key) == value for key, value in facts.items()):
                    return note
            time.sleep(0.05)
        words = {name: (self.folder / f"{name}.err").read_text()[-3000:] for name in self.workers}
        details = "\n".join(f"--- {key}\n{value}" for key, value in words.items())
        raise AssertionError(f"{name} had no {event} with {facts}:\n{details}")

    def wait_for_training(self, name: str, since: float, world: int) -> None:
        """Wait for a step of a start in a world of this size after a time."""
        self.wait_for(name, "step", self.wait_for(name, "start", since, world=world)["time"])

    def wait_for_file(self, name: str, seconds: float = 180) -> None:
        """Wait until a training process has made this file."""
        deadline = time.monotonic() + seconds
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, f"no file {name}"
            time.sleep(0.05)

    def hold(self) -> None:
        """Keep the training from its end, until it is let go."""
        (self.folder / "hold").touch()

    def let_go(self) -> None:
        (self.folder / "hold").unlink()

    def end(self, name: str, seconds: float = 240) -> int:
        """The exit code of a worker."""
        return self.workers[name].wait(seconds)

    def words(self, name: str) -> str:
        return (self.folder / f"{name}.err").read_text()

    def check_steps(self, last: int) -> None:
        """Assert that every step was made and that no world restarted before the last checkpoint's step."""
        done = sorted(
            {note["step"] for path in self.folder.glob("*.jsonl") for note in self.notes(path.stem, "step")}
        )
        assert done == list(range(1, last + 1))

    def stop(self) -> None:
        for worker in self.workers.values():
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
        for worker in self.workers.values():
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


@pytest.fixture
def job(tmp_path: Path, shared_etcd: EtcdServer, prefix: str) -> Iterator[Callable[..., Job]]:
    """Make a job with the etcd rendezvous or, by its environment, another one."""
    jobs: list[Job] = []

    def make(steps: int = 60, pause: float = 0.2, **env: str) -> Job:
        folder = tmp_path / f"job-{len(jobs)}"
        folder.mkdir()
        on_etcd = {
            "PET_RDZV_BACKEND": "bireme-etcd", "PET_RDZV_ENDPOINT": shared_etcd.endpoint,
            "PET_RDZV_ID": "run",
            "PET_RDZV_CONF": f"etcd_prefix={prefix}", "PET_NNODES": "1:3", "PET_NPROC_PER_NODE": "1",
            "PET_MAX_RESTARTS": "20", "PET_MONITOR_INTERVAL": "0.1", "BIREME_GRACE_SECONDS": "10",
        }  # fmt: skip
        jobs.append(Job(folder, {**on_etcd, **env}, steps, pause))
        return jobs[-1]

    yield make
    for each in jobs:
        each.stop()
