"""The pods of a Paddle job, as processes on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bireme_runtime.paddle.run import Client
from tests.runtime.etcd_servers import free_port
from tests.support.processes import gone

SOURCE = Path(__file__).parents[2] / "runtime" / "src"
SECONDS = 120


class PaddleJob:
    """The pods of one job, as processes on this machine."""

    def __init__(self, folder: Path, script: str) -> None:
        self.output = folder / "output"
        self.go = folder / "go"
        self.arguments = [str(self.go)]
        self._folder = folder
        self._control = free_port()
        self._ports = [free_port(), free_port()]
        self.pods: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        (folder / "script.py").write_text(script)
        self.release(revision=1, trainers=2)

    def release(self, revision: int, trainers: int) -> None:
        """Write the settings as an upgrade does."""
        settings = self._folder / "settings"
        settings.mkdir(exist_ok=True)
        (settings / "PADDLE_TRAINERS_NUM").write_text(str(trainers))
        (settings / "BIREME_REVISION").write_text(str(revision))

    def start(self, role: str, index: int, **more: str) -> None:
        env = {
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "JOB_COMPLETION_INDEX": str(index),
            "POD_IP": "127.0.0.1",
            "PADDLE_PORT": str(self._ports[index] if role == "server" else self._ports[0]),
            "BIREME_PADDLE_COORDINATOR": f"127.0.0.1:{self._control}",
            "BIREME_PADDLE_OUTPUT": str(self.output),
            "BIREME_PADDLE_SETTINGS": str(self._folder / "settings"),
            "BIREME_PADDLE_PSERVERS": "2",
            "PADDLE_TRAINERS_NUM": "2",
            "BIREME_RUN_ID": "run",
            "BIREME_LOST_SECONDS": "30",
            "TMPDIR": str(self._folder),
            "BIREME_RELEASE_TOKEN": "secret",
            **more,
        }
        command = [sys.executable, "-m", "bireme_runtime.paddle.supervisor", role, "--"]
        command += [str(self._folder / "script.py"), *self.arguments]
        with (self._folder / f"{role}-{index}.log").open("ab") as log:
            self.pods[role, index] = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def start_all(self, **more: str) -> None:
        for role in ("server", "trainer"):
            for index in range(2):
                self.start(role, index, **more)

    def train(self, **more: str) -> None:
        """Start all pods, and wait until both trainers train."""
        self.start_all(**more)
        self.until_both_train()

    def client(self) -> Client:
        """A client of pserver 0."""
        return Client(f"127.0.0.1:{self._control}", seconds=60, token="secret")

    def log(self, role: str, index: int) -> str:
        return (self._folder / f"{role}-{index}.log").read_text()

    def trained(self, index: int) -> list[list[str]]:
        """Attempt, number of trainers and restored save for each start of a trainer's script."""
        log = self.output / f"node_{index}" / "train.log"
        # The last line may be half written.
        lines = log.read_text().rpartition("\n")[0].splitlines() if log.exists() else []
        return [line.split(" ")[1:] for line in lines if line.startswith("trains ")]

    def until_both_train(self, times: int = 1) -> None:
        """Wait until the scripts of both trainers have started so many times."""
        self.until(lambda: len(self.trained(0)) == len(self.trained(1)) == times, f"both to train: {times}")

    def until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not done():
            logs = "\n".join(self.log(*pod) for pod in self.pods)
            assert time.monotonic() < deadline, f"not in {SECONDS} s: {what}\n{logs}"
            time.sleep(0.05)

    def codes(self) -> set[int]:
        """Wait for all supervisors; returns their exit codes."""
        return {pod.wait(SECONDS) for pod in self.pods.values()}

    def end(self) -> set[int]:
        """Let the scripts end; returns the exit codes of all supervisors."""
        self.go.write_text("")
        return self.codes()

    def kill(self, role: str, index: int) -> None:
        """Kill a supervisor and its script at once."""
        supervisor = self.pods.pop((role, index))
        children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
        for pid in (supervisor.pid, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
        supervisor.wait()
        # The script keeps its port until it has ended.
        self.until(lambda: all(gone(int(pid)) for pid in children), "the script to end")

    def terminate(self, role: str, index: int) -> None:
        """Send SIGTERM to a supervisor."""
        self.pods[role, index].terminate()

    def stop(self) -> None:
        """End all pods, and print what they said, which pytest shows below a test that failed."""
        for pod in self.pods.values():
            pod.terminate()
        for pod in self.pods.values():
            pod.wait(SECONDS)
        for log in sorted(self._folder.glob("*.log")):
            print(f"--- {log.stem}\n{log.read_text(errors='replace')}")
