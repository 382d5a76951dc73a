"""One run of a Paddle job, as pserver 0 keeps it: who is there, which attempt counts, how far trainers are.

A pserver's part of the parameters dies with it, and trainers then hang for good. So every supervisor reports
here once a second, and the loss of a pserver begins a new *attempt*: all scripts start again, from the last
save. The budget of attempts and the last save lie on the claim, so pserver 0 itself may be lost too.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SERVER, TRAINER = "server", "trainer"
RUNNING, DONE, FAILED = "running", "done", "failed"
# What a participant says of its script.
WAITING, STARTING, SERVING, TRAINING, BROKEN, FINISHED = (
    "waiting", "starting", "serving", "training", "broken", "finished",
)  # fmt: skip
_LONGEST_POLL_SECONDS = 5.0


class Unreachable(Exception):
    """Pserver 0 does not answer."""


@dataclass(frozen=True)
class Report:
    """What a supervisor says once a second. ``boot`` names the life of its pod's container."""

    role: str
    index: int
    boot: str
    address: str
    attempt: int
    state: str
    trainers: int
    revision: int


@dataclass(frozen=True)
class View:
    """What a supervisor is told. ``servers`` is empty until all of them are there."""

    attempt: int
    outcome: str
    reason: str
    servers: tuple[str, ...]
    serving: bool
    trainers: int
    initialised: bool
    restore: str
    first_pass: int
    base_pass: int


@dataclass(frozen=True)
class Save:
    """The last save: its folder, and how many passes are complete in it."""

    folder: str
    passes: int


def last_save(output: Path) -> Save | None:
    """What ``output/last-save`` points to, if it carries its done mark."""
    try:
        folder = output / (output / "last-save").read_text().strip()
        return Save(str(folder), int(json.loads((folder / "done").read_text())["passes"]))
    except (OSError, ValueError, KeyError):
        return None


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there completely, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)


@dataclass
class _Seen:
    report: Report
    at: float


@dataclass(frozen=True)
class Rules:
    """The bounds of a run. Times in seconds."""

    servers: int
    trainers: int
    dynamic: bool
    max_restarts: int
    lost_seconds: float


@dataclass
class Run:
    """The run itself. All methods may be called from any thread."""

    rules: Rules
    output: Path
    run_id: str
    attempt: int = 0
    restarts: int = 0
    outcome: str = RUNNING
    reason: str = ""
    save: Save | None = None
    base_pass: int = 0
    initialised: bool = False
    trainers: int = 0
    _revision: int = 0
    _seen: dict[tuple[str, int], _Seen] = field(default_factory=dict)
    _progress: dict[int, tuple[int, int]] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def begin(self) -> None:
        """Take up the run where the claim says that it stands."""
        with self._changed:
            self._take_up()

    def _take_up(self) -> None:
        self.trainers = self.rules.trainers
        kept: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            kept = json.loads((self.output / "run.json").read_text())
        self.attempt = int(kept.get("attempt", 0))
        if (self.output / "done").exists():
            self.outcome = DONE
            return
        save = last_save(self.output)
        self.base_pass = save.passes if save else 0
        if kept.get("run") == self.run_id:
            self.restarts = int(kept["restarts"])
            self.base_pass = int(kept["base_pass"])
            self._restart("pserver 0 came back without its parameters")
        else:
            self._start()

    def report(self, said: Report) -> View:
        """Note a report and answer it."""
        with self._changed:
            key = (said.role, said.index)
            before = self._seen.get(key)
            self._seen[key] = _Seen(said, time.monotonic())
            if said.revision > self._revision:
                self._revision, self.trainers = said.revision, said.trainers
            if said.role == SERVER and self.outcome == RUNNING:
                self._judge_server(said, before.report if before else None)
            self._look()
            return self._view()

    def look(self) -> View:
        """See who has gone silent; called once a second."""
        with self._changed:
            self._look()
            return self._view()

    def mark_initialised(self, attempt: int) -> None:
        """The first trainer has put the parameters on the servers."""
        with self._changed:
            if attempt == self.attempt:
                self.initialised = True
                self._changed.notify_all()

    def is_initialised(self, attempt: int, seconds: float) -> bool:
        """Wait for it, for so long at most."""
        with self._changed:
            self._changed.wait_for(lambda: self.initialised or attempt != self.attempt, seconds)
            return self.initialised and attempt == self.attempt

    def size(self, number: int) -> int:
        """Of how many trainers pass ``number`` is; as many as there are when the first of them begins it."""
        with self._changed:
            return self._sizes.setdefault(number, self.trainers)

    def progress(self, index: int) -> tuple[int, int]:
        """The furthest (pass, step) that this trainer has reached in this attempt."""
        with self._changed:
            return self._progress.get(index, (self._first_pass(), 0))

    def reach(self, attempt: int, index: int, here: tuple[int, int], seconds: float) -> list[int]:
        """Note that a trainer is at (pass, step), and wait for the others; returns those still behind."""
        with self._changed:
            if attempt != self.attempt:
                return [index]
            self._progress[index] = max(self._progress.get(index, (0, 0)), here)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._behind(here) or attempt != self.attempt, seconds)
            return self._behind(here) if attempt == self.attempt else [index]

    def everybody_knows(self) -> bool:
        """Whether all who were there lately have come again since the run ended."""
        with self._changed:
            lately = time.monotonic() - self.rules.lost_seconds
            return all(seen.report.state == WAITING for seen in self._seen.values() if seen.at > lately)

    def _behind(self, here: tuple[int, int]) -> list[int]:
        # A pass that began with fewer trainers is theirs; one that scaling took away is not waited for.
        size = min(self._sizes.get(here[0] if here[1] else here[0] - 1, self.trainers), self.trainers)
        start = (self._first_pass(), 0)
        return [index for index in range(size) if self._progress.get(index, start) < here]

    def _judge_server(self, said: Report, before: Report | None) -> None:
        ours = before is not None and before.attempt == self.attempt and before.state in (STARTING, SERVING)
        if ours and before is not None and before.boot != said.boot:
            self._restart(f"pserver {said.index} came back without its parameters")
        elif said.attempt == self.attempt and said.state == BROKEN:
            self._restart(f"the process of pserver {said.index} ended")

    def _look(self) -> None:
        if self.outcome != RUNNING:
            return
        now = time.monotonic()
        for (role, index), seen in self._seen.items():
            is_silent = now - seen.at > self.rules.lost_seconds
            if role == SERVER and index and is_silent and seen.report.attempt == self.attempt:
                self._restart(f"pserver {index} is silent for {self.rules.lost_seconds:g} s")
                return
        if self._all_finished(now):
            self.outcome = DONE
            write_whole(self.output / "done", json.dumps({"attempt": self.attempt}))
            self._changed.notify_all()

    def _all_finished(self, now: float) -> bool:
        states = {
            index: seen.report.state if seen.report.attempt == self.attempt else WAITING
            for (role, index), seen in self._seen.items()
            if role == TRAINER and (not self.rules.dynamic or now - seen.at < self.rules.lost_seconds)
        }
        if self.rules.dynamic:
            return bool(states) and all(state == FINISHED for state in states.values())
        return all(states.get(index) == FINISHED for index in range(self.trainers))

    def _restart(self, reason: str) -> None:
        if self.restarts >= self.rules.max_restarts:
            self.outcome = FAILED
            self.reason = f"{reason}, and the {self.rules.max_restarts} restarts are used up"
            self._changed.notify_all()
            return
        self.restarts += 1
        self.reason = f"{reason}: restart {self.restarts} of {self.rules.max_restarts}"
        self._start()

    def _start(self) -> None:
        self.attempt += 1
        self.save = last_save(self.output)
        self.initialised = False
        self._progress.clear()
        self._sizes.clear()
        kept = {
            "run": self.run_id,
            "attempt": self.attempt,
            "restarts": self.restarts,
            "base_pass": self.base_pass,
        }
        write_whole(self.output / "run.json", json.dumps(kept))
        self._changed.notify_all()

    def _first_pass(self) -> int:
        return self.save.passes if self.save else 0

    def _view(self) -> View:
        found = [self._seen.get((SERVER, index)) for index in range(self.rules.servers)]
        there = [seen.report for seen in found if seen is not None]
        complete = len(there) == self.rules.servers
        serving = complete and all(each.attempt == self.attempt and each.state == SERVING for each in there)
        return View(
            attempt=self.attempt,
            outcome=self.outcome,
            reason=self.reason,
            servers=tuple(each.address for each in there) if complete else (),
            serving=serving,
            trainers=self.trainers,
            initialised=self.initialised,
            restore=self.save.folder if self.save else "",
            first_pass=self._first_pass(),
            base_pass=self.base_pass,
        )


def serve(run: Run, port: int) -> ThreadingHTTPServer:
    """Answer the other supervisors and the scripts, in a thread of its own."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Answers are small, and each is waited for.
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            content = json.dumps(_answer(run, self.path, said)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the log is the script's."""

    server = ThreadingHTTPServer(("", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _answer(run: Run, path: str, said: Mapping[str, Any]) -> Any:
    wait = min(float(said.get("seconds", 0)), _LONGEST_POLL_SECONDS)
    if path == "/report":
        return asdict(run.report(Report(**said)))
    if path == "/initialised":
        if said["mark"]:
            run.mark_initialised(said["attempt"])
        return run.is_initialised(said["attempt"], wait)
    if path == "/size":
        return run.size(said["pass"])
    if path == "/progress":
        return run.progress(said["index"])
    here = (int(said["pass"]), int(said["step"]))
    return run.reach(said["attempt"], said["index"], here, wait)


def client_of_script(env: Mapping[str, str]) -> Client:
    """A script is ended by its supervisor when pserver 0 is gone for good; until then it is patient."""
    patience = float(env.get("BIREME_WAIT_SECONDS", "600"))
    return Client(env["BIREME_PADDLE_COORDINATOR"], patience=patience)


class Client:
    """Talks to pserver 0, on one connection. Not for several threads.

    What is not answered is asked again for ``patience`` seconds; all questions may be asked twice.
    """

    def __init__(self, endpoint: str, seconds: float = 3.0, patience: float = 0.0) -> None:
        host, _, port = endpoint.rpartition(":")
        self._host, self._port, self._seconds, self._patience = host, int(port), seconds, patience
        self._connection: HTTPConnection | None = None

    def report(self, said: Report) -> View:
        """Report and be told. Raises Unreachable."""
        view = self._ask("/report", asdict(said))
        return View(**{**view, "servers": tuple(view["servers"])})

    def mark_initialised(self, attempt: int) -> None:
        """The parameters are on the servers."""
        self._ask("/initialised", {"attempt": attempt, "mark": True})

    def is_initialised(self, attempt: int, seconds: float = 0.0) -> bool:
        """Whether they are; waits for it a while."""
        return bool(self._ask("/initialised", {"attempt": attempt, "mark": False, "seconds": seconds}))

    def size(self, number: int) -> int:
        """Of how many trainers a pass is."""
        return int(self._ask("/size", {"pass": number}))

    def progress(self, index: int) -> tuple[int, int]:
        """How far a trainer has come before."""
        number, step = self._ask("/progress", {"index": index})
        return int(number), int(step)

    def reach(self, attempt: int, index: int, number: int, step: int, seconds: float = 0.0) -> list[int]:
        """Say how far this trainer is; returns those that are behind, after waiting a while for them."""
        said = {"attempt": attempt, "index": index, "pass": number, "step": step, "seconds": seconds}
        return [int(each) for each in self._ask("/reach", said)]

    def _ask(self, path: str, said: Mapping[str, Any]) -> Any:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return self._ask_once(path, said)
            except Unreachable:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def _ask_once(self, path: str, said: Mapping[str, Any]) -> Any:
        try:
            timeout = self._seconds + float(said.get("seconds", 0))
            if self._connection is None:
                self._connection = HTTPConnection(self._host, self._port, timeout=timeout)
            elif self._connection.sock is not None:
                self._connection.sock.settimeout(timeout)
            self._connection.request("POST", path, json.dumps(said))
            return json.loads(self._connection.getresponse().read())
        except (OSError, HTTPException, ValueError) as error:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            raise Unreachable(f"{self._host}:{self._port}: {error or type(error).__name__}") from error
