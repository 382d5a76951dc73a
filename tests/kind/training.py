"""A training job on kind: its workers' logs as they are written, and ways to kill its processes."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from bireme.clusters.api import ApiError
from bireme.live.pods import ObservedPod
from bireme.testing.pytest_plugin import InstalledRelease
from tests.kind.shell import Shell, until

Event = dict[str, Any]

KIND = "values/kind.yaml"
CHECKPOINT_EVERY = 20
# Steps of a training that goes on until it is told to stop.
ENDLESS = 1_000_000
# Workers without accelerators, so that more of them fit than the nodes have accelerators.
ANYWHERE = {"accelerators": 0, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}

# Kills the processes of a container whose command line contains the first word and none of the others.
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


def outcome(job: InstalledRelease) -> str | None:
    """``Complete`` or ``Failed``, or None while the Job has not ended."""
    (found,) = job.objects("jobs")
    ends = [
        each["type"]
        for each in found["status"].get("conditions", [])
        if each["type"] in ("Complete", "Failed") and each["status"] == "True"
    ]
    return ends[0] if ends else None


class Reader:
    """Passes each line that a command prints to ``take`` once, also when the command starts again."""

    def __init__(self, command: Sequence[str], take: Callable[[str], None]) -> None:
        self._command, self._take = command, take
        self._taken = 0
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None

    def read_on(self) -> None:
        """Start the command if it does not run."""
        if self._thread is None or not self._thread.is_alive():
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            self._thread = threading.Thread(target=self._read, args=(self._process,), daemon=True)
            self._thread.start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for number, line in enumerate(process.stdout, start=1):
            if number > self._taken:
                self._taken = number
                self._take(line.rstrip())


@dataclass
class Training:
    """One job with the arguments of its installation.

    ``output`` has the lines of its workers as they came, ``events`` those that are JSON. ``stop_file`` is
    the file that ends it, in its pods.
    """

    job: InstalledRelease
    shell: Shell
    installed: Mapping[str, Any]
    script: str
    stop_file: str = ""
    events: list[Event] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    _followed: dict[str, Reader] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)

    def until(self, done: Callable[[Event], bool], seconds: float, what: str) -> Event:
        """The first event from now on for which ``done`` is true; fails the test after ``seconds``."""
        seen, deadline = len(self.events), time.monotonic() + seconds
        while time.monotonic() < deadline:
            for event in self.events[seen:]:
                seen += 1
                if done(event):
                    return event
            time.sleep(0.1)
        pytest.fail(
            f"not within {seconds:.0f} s: {what}; the last lines of the workers:\n"
            + "\n".join(self.output[-30:])
        )

    def until_trained(self, steps: int, world_size: int | None = None, seconds: float = 300) -> Event:
        """Wait until a world of ``world_size`` processes (None: any) has made ``steps`` more steps."""
        first = self.until(
            lambda event: event["event"] == "step" and world_size in (None, event["world_size"]),
            seconds,
            f"a step of {world_size or 'some'} processes",
        )
        return self.until(
            lambda event: event["event"] == "step" and event["step"] >= first["step"] + steps,
            seconds,
            f"step {first['step'] + steps}",
        )

    @property
    def step(self) -> int:
        """The highest step so far."""
        return max((event["step"] for event in self.of("step")), default=0)

    @property
    def pods(self) -> frozenset[str]:
        """The names of all worker pods so far."""
        return frozenset(self._followed)

    def until_started(self, world_size: int, seconds: float = 300) -> Event:
        """Wait until a training process starts in a world of this size."""
        return self.until(
            lambda event: event["event"] == "start" and event["world_size"] == world_size,
            seconds,
            f"a process of {world_size} to start",
        )

    def worlds(self) -> list[int]:
        """The sizes of the worlds that have trained so far, in order."""
        return [event["world_size"] for event in self.of("start") if event["rank"] == 0]

    def complete(self, seconds: float = 300) -> Event:
        """Stop a training that has no last step, and wait for its end. Returns the last event."""

        def told() -> bool:
            pod = self.worker(0).name
            touch = ("exec", "-n", self.job.namespace, pod, "--", "touch", self.stop_file)
            return self.shell.attempt(*touch) is not None

        until(told, what=f"worker 0 to write {self.stop_file}")
        return self.until_complete(None, seconds)

    def until_complete(self, steps: int | None, seconds: float = 240) -> Event:
        """Wait until the Job is Complete, no step lost, after so many (None: any); returns the last event."""
        until(lambda: bool(self.of("done")), seconds, "the end of the training")
        done = self.of("done")[0]
        # Each rank tells the end, and rank 0 the steps, whose log may come later.
        until(lambda: self.step >= done["step"], what="the last step in the log of rank 0")
        assert done["step"] == (steps or self.step)
        self.assert_nothing_was_lost()
        until(lambda: outcome(self.job) is not None, what="the job to finish")
        assert outcome(self.job) == "Complete"
        return done

    def worker(self, index: int) -> ObservedPod:
        """The live pod of a worker, in whichever run; waits until there is one."""
        found: list[ObservedPod] = []

        def there() -> bool:
            slot = re.compile(rf"{self.job.name}-r\d+-{index}")
            found[:] = [pod for pod in self.job.pods() if slot.fullmatch(pod.slot or "") and pod.is_live]
            return bool(found)

        until(there, what=f"a live pod of worker {index}")
        return found[0]

    def delete(self, index: int) -> None:
        """Delete a worker's pod."""
        self.job.delete_pod(self.worker(index).name)

    def kill(self, index: int, *, agent: bool) -> None:
        """SIGKILL a worker's torchrun agent or its training process, as soon as it exists."""
        words = ("bireme_runtime.elastic.agent.launch",) if agent else (self.script, "bireme_runtime")
        program = ("--", "python3", "-c", KILL, *words)

        def killed() -> bool:
            pod = self.worker(index).name
            return bool(self.shell.attempt("exec", "-n", self.job.namespace, pod, *program))

        until(killed, what=f"worker {index} to have a {words[0]} to kill")

    def scale(self, workers: int) -> None:
        """Upgrade to another number of workers; returns when all of them run."""
        self.upgrade({"workers": workers})

    def upgrade(self, values: Mapping[str, Any]) -> None:
        """Upgrade to the first values changed by these; returns when the pods are as planned."""
        self.job.upgrade(**{**self.installed, "values": {**self.installed["values"], **values}})

    def assert_nothing_was_lost(self, most: int = CHECKPOINT_EVERY) -> None:
        """Every restart made at most so many steps again; no worker found the rendezvous closed."""
        reached = 0
        # Of two logs, the later lines of one may be read first.
        for event in sorted(self.events, key=lambda event: float(event["time"])):
            if event["event"] == "step":
                reached = max(reached, event["step"])
            if event["event"] == "resume":
                assert event["step"] >= reached - most, f"went back from {reached}: {event}"
        assert not [line for line in self.output if "RendezvousClosedError" in line]

    def of(self, name: str) -> list[Event]:
        """The events of one name so far."""
        return [event for event in self.events if event["event"] == name]

    @contextmanager
    def followed(self) -> Iterator[Training]:
        """Read the logs of all workers while the block runs, also of workers that are deleted or added."""
        watcher = threading.Thread(target=self._watch, daemon=True)
        watcher.start()
        try:
            yield self
        finally:
            self._over.set()
            watcher.join()
            for reader in self._followed.values():
                reader.stop()

    def _watch(self) -> None:
        while not self._over.wait(0.3):
            with suppress(ApiError):  # an API server that restarts
                pods = [pod for pod in self.job.objects("pods") if self._is_worker(pod)]
                for pod in pods:
                    self._follow(pod["metadata"]["name"], pod["status"]["phase"])

    @staticmethod
    def _is_worker(pod: Mapping[str, Any]) -> bool:
        return "batch.kubernetes.io/job-name" in pod["metadata"]["labels"]

    def _follow(self, pod: str, phase: str) -> None:
        """Read the log of a pod. Reconnect while the pod runs."""
        is_new = pod not in self._followed and phase in ("Running", "Succeeded", "Failed")
        if is_new:
            place = ("--kubeconfig", str(self.shell.cluster.kubeconfig), "-n", self.job.namespace)
            command = [str(self.shell.toolbox.path("kubectl")), "logs", "-f", pod, *place]
            self._followed[pod] = Reader(command, self._take)
        if is_new or phase == "Running":
            self._followed[pod].read_on()

    def _take(self, line: str) -> None:
        self.output.append(line)
        if line.startswith('{"event"'):
            self.events.append(json.loads(line))
