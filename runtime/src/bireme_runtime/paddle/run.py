"""The state of a Paddle job's run, kept by pserver 0: participants, current attempt, trainers' progress.

When a pserver is lost, its part of the parameters is lost and all trainers hang. So every supervisor reports
here twice a second, and the loss of a pserver starts a new *attempt*, in which all scripts start again from
the last save. The number of restarts and the last save are on the claim, so pserver 0 itself may be lost too.

Without pservers worker 0 keeps it, and the loss of any worker starts a new attempt: the others hang as well.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bireme_runtime.process import environment, http, server
from bireme_runtime.process.disk import write_whole
from bireme_runtime.process.environment import setting
from bireme_runtime.process.errors import BiremeError, Unreachable

SERVER, TRAINER, WORKER = "server", "trainer", "collective"
RUNNING, DONE, FAILED = "running", "done", "failed"
# The states of a participant's script. One that is leaving was asked to go, and still serves or saves.
WAITING, STARTING, SERVING, TRAINING, LEAVING, BROKEN, FINISHED = (
    "waiting", "starting", "serving", "training", "leaving", "broken", "finished",
)  # fmt: skip
_LONGEST_POLL_SECONDS = 5.0


@dataclass(frozen=True)
class Report:
    """What a supervisor reports periodically. ``boot`` identifies the start of its container.

    ``quiet`` are the seconds since the script of a worker printed something.
    """

    role: str
    index: int
    boot: str
    address: str
    attempt: int
    state: str
    trainers: int
    revision: int
    quiet: float = 0.0


@dataclass(frozen=True)
class View:
    """The response to a report. ``servers`` is empty until all pservers (or workers) have reported.

    ``serving`` says that all pservers serve, or that no worker is in an attempt that is over.
    ``saver`` is the state of trainer 0 in this attempt; ``server_leaves`` asks it to save.
    """

    attempt: int
    outcome: str
    reason: str
    servers: tuple[str, ...]
    serving: bool
    trainers: int
    initialised: bool
    restore: str
    first_pass: int
    saver: str
    server_leaves: bool


@dataclass(frozen=True)
class Save:
    """The last save: its folder, and the number of passes that it contains completely.

    ``trained`` are the shards of the next pass that it contains, as spans of their indices in the list with
    the digest ``shards``. ``steps`` are those of trainer 0.
    """

    folder: str
    passes: int
    steps: int = 0
    trained: tuple[tuple[int, int], ...] = ()
    shards: str = ""


class Unreadable(BiremeError):
    """What the claim has of the run cannot be read. To begin anew would lose what is trained."""


def last_save(output: Path) -> Save | None:
    """The save to which ``output/last-save`` points; None if there was none yet. Raises Unreadable."""
    pointer = output / "last-save"
    try:
        name = pointer.read_text().strip()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Unreadable(f"{pointer} cannot be read: {error}") from error
    folder = output / name
    try:
        done = json.loads((folder / "done").read_text())
        trained = tuple((int(first), int(end)) for first, end in done.get("trained", ()))
        steps, shards = int(done.get("steps", 0)), str(done.get("shards", ""))
        return Save(str(folder), int(done["passes"]), steps, trained, shards)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        advice = f"write the name of another save into {pointer}, or delete it to begin anew"
        raise Unreadable(f"the last save, {folder}, cannot be read ({error}): {advice}") from error


_SAVE = re.compile(r"\w[\w.-]*")


@dataclass
class _Seen:
    report: Report
    at: float


@dataclass(frozen=True)
class Rules:
    """The settings of a run. Times are in seconds. A run without ``servers`` has workers instead of trainers.

    Workers that have all been quiet for ``hang_seconds`` start again; 0 means never.
    """

    dynamic: bool
    trainers: int = setting("PADDLE_TRAINERS_NUM")
    servers: int = setting("BIREME_PADDLE_PSERVERS", 0)
    max_restarts: int = setting("BIREME_MAX_RESTARTS", 10)
    lost_seconds: float = setting("BIREME_LOST_SECONDS", 8.0)
    hang_seconds: float = setting("BIREME_HANG_SECONDS", 0.0)

    @property
    def core(self) -> tuple[str, int]:
        """The role without any of whose participants training cannot continue, and their number."""
        return (SERVER, self.servers) if self.servers else (WORKER, self.trainers)

    def name(self, index: int) -> str:
        """What a participant of the core is called in messages."""
        return f"{'pserver' if self.servers else 'worker'} {index}"


@dataclass
class Run:
    """The run itself. Threads may share it."""

    rules: Rules
    output: Path
    run_id: str
    attempt: int = 0
    restarts: int = 0
    outcome: str = RUNNING
    reason: str = ""
    save: Save | None = None
    initialised: bool = False
    trainers: int = 0
    _revision: int = 0
    _seen: dict[tuple[str, int], _Seen] = field(default_factory=dict)
    _progress: dict[int, tuple[int, int]] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    # Held while the claim is written. Who holds it never waits for _changed, so a slow save delays no report.
    _claim: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        """Start the run, or continue the one whose state is on the claim."""
        with self._changed:
            self.trainers = self.rules.trainers
            run, self.attempt, restarts = self._kept()
            if (self.output / "done").exists():
                self.outcome = DONE
            elif run == self.run_id:
                self.restarts = restarts
                self._restart(self._restarted(0))
            else:
                (self.output / "told").unlink(missing_ok=True)
                self._start(0)

    def _kept(self) -> tuple[str, int, int]:
        """The run on the claim, with its attempt and its restarts. Raises Unreadable."""
        file = self.output / "run.json"
        try:
            kept = json.loads(file.read_text())
            return str(kept["run"]), int(kept["attempt"]), int(kept["restarts"])
        except FileNotFoundError:
            return "", 0, 0
        except (OSError, ValueError, KeyError, TypeError) as error:
            # An attempt of the same number would take over what the dispatcher knows of the former.
            advice = "delete it, and start another run (the value `run`)"
            raise Unreadable(f"{file} cannot be read ({error}): {advice}") from error

    def report(self, report: Report) -> View:
        """Record a report; returns the response."""
        with self._changed:
            key = (report.role, report.index)
            before = self._seen.get(key)
            # The number of workers is fixed, because they all have to start again with another one.
            if report.revision > self._revision and self.rules.servers:
                self._revision, self.trainers = report.revision, report.trainers
            if report.role == self.rules.core[0] and self.outcome == RUNNING:
                self._check_core(report, before.report if before else None)
            # Not before: what fails is to be tried again with the next report.
            self._seen[key] = _Seen(report, time.monotonic())
            self._update()
            return self._view()

    def mark_initialised(self, attempt: int) -> None:
        """Record that the first trainer has pushed the parameters to the servers."""
        with self._changed:
            if attempt == self.attempt:
                self.initialised = True
                self._changed.notify_all()

    def is_initialised(self, attempt: int, seconds: float) -> bool:
        """Wait at most ``seconds`` until the parameters are on the servers; returns whether they are."""
        with self._changed:
            self._changed.wait_for(lambda: self.initialised or attempt != self.attempt, seconds)
            return self.initialised and attempt == self.attempt

    def begun_from(self) -> tuple[int, Save | None]:
        """The current attempt, and the save from which it began."""
        with self._changed:
            return self.attempt, self.save

    def point_to(self, attempt: int, name: str) -> str:
        """Make a complete save the last one; returns why not.

        That is decided here, so that a script of an attempt that is over changes nothing any more. Where this
        pserver 0 is on a node that is cut off, another may have begun a newer attempt: the claim tells.
        """
        with self._changed:
            if attempt != self.attempt:
                return f"attempt {attempt} is over"
        with self._claim:
            if not _SAVE.fullmatch(name):
                return f"{name!r} is not the name of a save"
            if not (self.output / name / "done").exists():
                return f"{name} is not complete"
            try:
                run, newest, _ = self._kept()
                if (run, newest) != (self.run_id, attempt):
                    return f"attempt {attempt} is over: attempt {newest} of run {run} has begun"
                write_whole(self.output / "last-save", f"{name}\n")
            except (OSError, Unreadable) as error:
                return f"last-save cannot be written: {error}"
            return ""

    def size(self, number: int) -> int:
        """The number of trainers of pass ``number``, fixed when the first trainer starts the pass."""
        with self._changed:
            return self._sizes.setdefault(number, self.trainers)

    def progress(self, index: int) -> tuple[int, int]:
        """The furthest (pass, step) that this trainer has reached in this attempt."""
        with self._changed:
            return self._progress.get(index, (self._first_pass(), 0))

    def reach(self, attempt: int, index: int, here: tuple[int, int], seconds: float) -> list[int]:
        """Record that a trainer is at (pass, step) and wait for the others; returns those still behind."""
        with self._changed:
            if attempt != self.attempt:
                return [index]
            self._progress[index] = max(self._progress.get(index, (0, 0)), here)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._behind(here) or attempt != self.attempt, seconds)
            return self._behind(here) if attempt == self.attempt else [index]

    def all_know_the_end(self) -> bool:
        """Whether all recent participants have reported since the run ended."""
        with self._changed:
            since = time.monotonic() - self.rules.lost_seconds
            return all(seen.report.state == WAITING for seen in self._seen.values() if seen.at > since)

    def _behind(self, here: tuple[int, int]) -> list[int]:
        # Trainers that joined after the start of the pass, or that scaling removed, are not waited for.
        size = min(self._sizes.get(here[0] if here[1] else here[0] - 1, self.trainers), self.trainers)
        start = (self._first_pass(), 0)
        return [index for index in range(size) if self._progress.get(index, start) < here]

    def _check_core(self, report: Report, before: Report | None) -> None:
        ours = before is not None and before.attempt == self.attempt and before.state not in (WAITING, BROKEN)
        if ours and before is not None and before.boot != report.boot:
            self._restart(self._restarted(report.index))
        elif ours and report.attempt != self.attempt:
            # It had no answer for too long, and its process is gone.
            self._restart(f"{self.rules.name(report.index)} has left")
        elif report.attempt == self.attempt and report.state == BROKEN:
            self._restart(f"the process of {self.rules.name(report.index)} ended")

    def _restarted(self, index: int) -> str:
        loss = " without its parameters" if self.rules.servers else ""
        return f"{self.rules.name(index)} restarted{loss}"

    def _update(self) -> None:
        if self.outcome != RUNNING:
            return
        now = time.monotonic()
        core = self._core()
        for seen in core:
            index, is_silent = seen.report.index, now - seen.at > self.rules.lost_seconds
            if index and is_silent and seen.report.attempt == self.attempt:
                self._restart(f"{self.rules.name(index)} has not reported for {self.rules.lost_seconds:g} s")
                return
        quiet = [seen.report.quiet for seen in core if seen.report.attempt == self.attempt]
        hang = self.rules.hang_seconds
        if hang and len(quiet) == self.rules.core[1] and min(quiet) > hang:
            self._restart(f"no worker has printed anything for {hang:g} s")
            return
        if self._all_finished(now):
            write_whole(self.output / "done", json.dumps({"attempt": self.attempt}))
            self.outcome = DONE
            self._changed.notify_all()

    def _core(self) -> list[_Seen]:
        role, count = self.rules.core
        return [seen for index in range(count) if (seen := self._seen.get((role, index)))]

    def _all_finished(self, now: float) -> bool:
        trains = TRAINER if self.rules.servers else WORKER
        states = {
            index: seen.report.state if seen.report.attempt == self.attempt else WAITING
            for (role, index), seen in self._seen.items()
            # Trainer 0 saves, so it is waited for, even if it is between two pods.
            if role == trains
            and (not self.rules.dynamic or not index or now - seen.at < self.rules.lost_seconds)
        }
        if self.rules.dynamic:
            return 0 in states and all(state == FINISHED for state in states.values())
        return all(states.get(index) == FINISHED for index in range(self.trainers))

    def _restart(self, reason: str) -> None:
        if self.restarts >= self.rules.max_restarts:
            self.outcome = FAILED
            self.reason = f"{reason}, and all {self.rules.max_restarts} restarts are used up"
            self._changed.notify_all()
            return
        self._start(self.restarts + 1)
        self.reason = f"{reason}: restart {self.restarts} of {self.rules.max_restarts}"

    def _start(self, restarts: int) -> None:
        with self._claim:
            save, attempt = last_save(self.output), self.attempt + 1
            kept = {"run": self.run_id, "attempt": attempt, "restarts": restarts}
            write_whole(self.output / "run.json", json.dumps(kept))
        # Now that the claim has it: no two attempts have the same number.
        self.attempt, self.restarts, self.save = attempt, restarts, save
        self.initialised = False
        self._progress.clear()
        self._sizes.clear()
        self._changed.notify_all()

    def _first_pass(self) -> int:
        return self.save.passes if self.save else 0

    def _view(self) -> View:
        core = self._core()
        there = [seen.report for seen in core]
        complete = len(there) == self.rules.core[1]
        first = self._seen.get((TRAINER, 0))
        saver = first.report.state if first and first.report.attempt == self.attempt else WAITING
        if self.rules.servers:
            ready = all(each.attempt == self.attempt and each.state == SERVING for each in there)
        else:
            since = time.monotonic() - self.rules.lost_seconds
            ready = all(seen.at > since and seen.report.attempt in (0, self.attempt) for seen in core)
        return View(
            attempt=self.attempt,
            outcome=self.outcome,
            reason=self.reason,
            servers=tuple(each.address for each in there) if complete else (),
            serving=complete and ready,
            trainers=self.trainers,
            initialised=self.initialised,
            restore=self.save.folder if self.save else "",
            first_pass=self._first_pass(),
            saver=saver,
            server_leaves=any(each.state == LEAVING and each.attempt == self.attempt for each in there),
        )


def serve(run: Run, port: int, token: str = "") -> server.Background:
    """Serve the other supervisors and the scripts, in threads."""

    def answer(request: server.Request) -> server.Response:
        if request.method != "POST":
            return server.Response.of(405, "only POST")
        try:
            return server.Response.of(200, _answer(run, request.path, request.json()))
        except (ValueError, LookupError, TypeError) as error:
            return server.Response.of(400, f"the request cannot be used: {error!r}")
        except (OSError, Unreadable) as error:
            # The claim is full, for example. The run is as it was, and all ask again.
            return server.Response.of(503, str(error))

    # Each trainer and each script keeps a connection.
    return server.Background(answer, "", port, token, most=4000)


def _answer(run: Run, path: str, body: Mapping[str, Any]) -> Any:
    wait = min(float(body.get("seconds", 0)), _LONGEST_POLL_SECONDS)
    if path == "/report":
        return asdict(run.report(Report(**body)))
    if path == "/initialised":
        if body["mark"]:
            run.mark_initialised(body["attempt"])
        return run.is_initialised(body["attempt"], wait)
    if path == "/begun-from":
        attempt, save = run.begun_from()
        return {"attempt": attempt, "save": asdict(save) if save else None}
    if path == "/point-to":
        return run.point_to(body["attempt"], body["name"])
    if path == "/size":
        return run.size(body["pass"])
    if path == "/progress":
        return run.progress(body["index"])
    here = (int(body["pass"]), int(body["step"]))
    return run.reach(body["attempt"], body["index"], here, wait)


def client_of_script(env: Mapping[str, str]) -> Client:
    """The client of a script. It retries for long: if pserver 0 is lost, the supervisor ends the script."""
    retry_seconds = environment.seconds(env, "BIREME_WAIT_SECONDS", 600)
    address = environment.required(env, "BIREME_PADDLE_COORDINATOR")
    return Client(address, retry_seconds=retry_seconds, token=env.get("BIREME_RELEASE_TOKEN", ""))


class Client:
    """A client of pserver 0, on one connection. For one thread.

    Requests without a response are repeated for ``retry_seconds``; all of them may be repeated.
    """

    def __init__(
        self, endpoint: str, seconds: float = 3.0, retry_seconds: float = 0.0, token: str = ""
    ) -> None:
        self._seconds, self._retry_seconds = seconds, retry_seconds
        self._connection = http.Connection(http.parse_address(endpoint), seconds, token=token)

    def report(self, report: Report) -> View:
        """Send a report; returns the response. Raises Unreachable."""
        view = self._ask("/report", asdict(report))
        return View(**{**view, "servers": tuple(view["servers"])})

    def mark_initialised(self, attempt: int) -> None:
        """Record that the parameters are on the servers."""
        self._ask("/initialised", {"attempt": attempt, "mark": True})

    def is_initialised(self, attempt: int, seconds: float = 0.0) -> bool:
        """Whether the parameters are on the servers; waits for that at most ``seconds``."""
        return bool(self._ask("/initialised", {"attempt": attempt, "mark": False, "seconds": seconds}))

    def begun_from(self, attempt: int) -> Save | None:
        """The save from which the attempt began."""
        while (begun := self._ask("/begun-from", {}))["attempt"] != attempt:
            # The attempt is over: the supervisor is about to end this process.
            time.sleep(0.2)
        save = begun["save"]
        if save is None:
            return None
        return Save(**{**save, "trained": tuple((first, end) for first, end in save["trained"])})

    def point_to(self, attempt: int, name: str) -> str:
        """Make a complete save the last one; returns why that was not done."""
        return str(self._ask("/point-to", {"attempt": attempt, "name": name}))

    def size(self, number: int) -> int:
        """The number of trainers of a pass."""
        return int(self._ask("/size", {"pass": number}))

    def progress(self, index: int) -> tuple[int, int]:
        """The furthest (pass, step) that a trainer has reached."""
        number, step = self._ask("/progress", {"index": index})
        return int(number), int(step)

    def reach(self, attempt: int, index: int, number: int, step: int, seconds: float = 0.0) -> list[int]:
        """Record this trainer's progress; returns the trainers behind it, after at most ``seconds``."""
        body = {"attempt": attempt, "index": index, "pass": number, "step": step, "seconds": seconds}
        return [int(each) for each in self._ask("/reach", body)]

    def _ask(self, path: str, body: Mapping[str, Any]) -> Any:
        deadline = time.monotonic() + self._retry_seconds
        while True:
            try:
                timeout = self._seconds + float(body.get("seconds", 0))
                reply = self._connection.ask("POST", path, json.dumps(body).encode(), timeout=timeout)
                answer = json.loads(reply.body)
                if reply.status == 200:
                    return answer
                raise Unreachable(str(answer))
            except (Unreachable, ValueError) as error:
                self._connection.close()
                if time.monotonic() > deadline:
                    raise Unreachable(str(error)) from error
            time.sleep(0.2)
