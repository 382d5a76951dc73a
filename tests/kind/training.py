"""A training job on kind: what its workers log, as it happens, and how its processes are killed."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from on_kind import Shell

from bireme.pytest_plugin import InstalledRelease

Event = dict[str, Any]

# Kills the processes of a container whose command line has the first word and none of the others.
KILL = """
import os, signal, sys
from pathlib import Path
wanted, *unwanted = sys.argv[1:]
for entry in Path("/proc").iterdir():
    if entry.name.isdigit() and entry.name not in ("1", str(os.getpid())):
        line = (entry / "cmdline").read_bytes().decode()
        if wanted in line and not any(word in line for word in unwanted):
            os.kill(int(entry.name), signal.SIGKILL)
            print(entry.name)
"""


@dataclass
class Training:
    """One job, and what it was installed with. ``events`` has the JSON lines of its workers as they came."""

    job: InstalledRelease
    shell: Shell
    installed: Mapping[str, Any]
    events: list[Event] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    _followed: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)

    def until(self, done: Callable[[Event], bool], seconds: float, what: str) -> Event:
        """The first event from now on for which ``done``; fails the test after ``seconds``."""
        seen, deadline = len(self.events), time.monotonic() + seconds
        while time.monotonic() < deadline:
            for event in self.events[seen:]:
                seen += 1
                if done(event):
                    return event
            time.sleep(0.1)
        pytest.fail(
            f"not within {seconds:.0f} s: {what}; the workers said last:\n" + "\n".join(self.said[-30:])
        )

    def until_trained(self, steps: int, world_size: int, seconds: float = 120) -> Event:
        """Wait until ``world_size`` processes together have made ``steps`` more steps."""
        first = self.until(
            lambda event: event["event"] == "step" and event["world_size"] == world_size,
            seconds,
            f"a step of {world_size} processes",
        )
        return self.until(
            lambda event: event["event"] == "step" and event["step"] >= first["step"] + steps,
            seconds,
            f"step {first['step'] + steps}",
        )

    def until_done(self, seconds: float = 180) -> Event:
        """Wait for the end of the training."""
        already = [event for event in self.events if event["event"] == "done"]
        return (
            already[0] if already else self.until(lambda event: event["event"] == "done", seconds, "the end")
        )

    def pod(self, index: int) -> str:
        """The live pod of a worker."""
        return next(
            pod.name for pod in self.job.pods() if pod.slot == f"{self.job.name}-r1-{index}" and pod.is_live
        )

    def kill(self, index: int, *, agent: bool) -> None:
        """SIGKILL a worker's torchrun agent, or its training process."""
        words = ("bireme_runtime.launch",) if agent else ("digits.py", "bireme_runtime")
        command = ["exec", "-n", self.job.namespace, self.pod(index), "--", "python3", "-c", KILL, *words]
        assert self.shell.kubectl(*command), f"worker {index} had no {words[0]} to kill"

    def scale(self, workers: int) -> None:
        """Upgrade to another number of workers; returns when so many are there."""
        self.job.upgrade(**{**self.installed, "values": {**self.installed["values"], "workers": workers}})

    def assert_nothing_was_lost(self, checkpoint_every: int) -> None:
        """Every restart resumed from the last checkpoint, or a later step, and every step was made."""
        reached = 0
        for event in self.events:
            if event["event"] == "step":
                reached = max(reached, event["step"])
            if event["event"] == "resume":
                assert event["step"] >= reached - checkpoint_every, f"went back from {reached}: {event}"
        assert not [line for line in self.said if "RendezvousClosedError" in line]

    @contextmanager
    def followed(self) -> Iterator[Training]:
        """Read the logs of all workers meanwhile, also of those that are deleted or come later."""
        watcher = threading.Thread(target=self._watch, daemon=True)
        watcher.start()
        try:
            yield self
        finally:
            self._over.set()
            watcher.join()
            for process in self._followed.values():
                process.kill()
                process.wait()

    def _watch(self) -> None:
        while not self._over.wait(0.3):
            for pod in self.job.objects("pods"):
                running = pod["status"]["phase"] in ("Running", "Succeeded", "Failed")
                if running and "batch.kubernetes.io/job-name" in pod["metadata"]["labels"]:
                    self._follow(pod["metadata"]["name"])

    def _follow(self, pod: str) -> None:
        if pod in self._followed:
            return
        command = [
            str(self.shell.toolbox.path("kubectl")),
            "--kubeconfig",
            str(self.shell.cluster.kubeconfig),
        ]
        command += ["logs", "-f", "-n", self.job.namespace, pod]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._followed[pod] = process
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.said.append(line.rstrip())
            if line.startswith('{"event"'):
                self.events.append(json.loads(line))
