"""The entry point of a Paddle role: `python3 -m bireme_runtime.paddle.supervisor ROLE -- SCRIPT ARGS…`.

ROLE is server, trainer or collective. The supervisor starts the script, with Paddle's variables, once all
participants that the role needs are running. It restarts a script that fails, restarts all roles from the
last save when a pserver (without pservers: a worker) is lost (run.py), and ends pservers, which never end by
themselves, when the trainers are done (docs/paddle.md).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bireme_runtime.dispatcher.client import Dispatcher, DispatcherError, Refused, leave_for
from bireme_runtime.dispatcher.notes import Notes
from bireme_runtime.paddle import run as runs
from bireme_runtime.process import children, devices, environment, http, webhook
from bireme_runtime.process.environment import setting
from bireme_runtime.process.errors import CONFIG, GIVEN_UP, TEMPORARY, USAGE, Stop, Unreachable, as_shell
from bireme_runtime.process.log import last_words, log_of

_USAGE = "usage: python3 -m bireme_runtime.paddle.supervisor server|trainer|collective -- SCRIPT ARGS…"
_LAUNCHER = (sys.executable, "-m", "bireme_runtime.paddle.launch")
_OF_ONE_PROCESS = {"PADDLE_TRAINER_ENDPOINTS", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ID", "PADDLE_PORT"}
_TICK_SECONDS = 0.5
_RESTART_SECONDS = 2.0
_SAVER_SECONDS = 15.0

say = log_of("paddle")


@dataclass(frozen=True)
class PaddleSettings:
    """The settings of this pod. Times are in seconds."""

    role: str
    rules: runs.Rules
    wait_for: Path | None
    index: int = setting("JOB_COMPLETION_INDEX")
    address: str = setting("POD_IP")
    port: int = setting("PADDLE_PORT")
    coordinator: str = setting("BIREME_PADDLE_COORDINATOR")
    output: Path = setting("BIREME_PADDLE_OUTPUT")
    settings: Path = setting("BIREME_PADDLE_SETTINGS")
    run_id: str = setting("BIREME_RUN_ID", "")
    wait_seconds: float = setting("BIREME_WAIT_SECONDS", 600.0)
    grace_seconds: float = setting("BIREME_GRACE_SECONDS", 20.0)
    script_restarts: int = setting("BIREME_SCRIPT_RESTARTS", 10)

    @classmethod
    def from_env(cls, role: str, env: Mapping[str, str]) -> PaddleSettings:
        """Read the chart's variables. Raises Stop when one is missing or cannot be used."""
        rules = environment.read(runs.Rules, env, dynamic=bool(env.get("BIREME_DISPATCHER")))
        awaited = env.get("BIREME_PADDLE_WAIT_FOR")
        return environment.read(cls, env, role=role, rules=rules, wait_for=Path(awaited) if awaited else None)


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Run the role until it ends; returns the exit code."""
    roles: dict[str, type[Role]] = {runs.SERVER: Server, runs.TRAINER: Trainer, runs.WORKER: Worker}
    role, command = (argv[0] if argv else ""), list(argv[1:])
    if command[:1] == ["--"]:
        command.pop(0)
    if role not in roles or not command:
        print(_USAGE, file=sys.stderr)
        return USAGE
    children.take_charge()
    reason = ""
    try:
        env = devices.for_processes(env, say)
        code = roles[role](PaddleSettings.from_env(role, env), command, env).run()
    except Stop as stop:
        code, reason = stop.code, str(stop)
        say(reason)
        last_words(reason, env)
    except children.Terminated as terminated:
        return as_shell(-terminated.number)
    finally:
        children.kill_descendants()
    webhook.tell(env, code, reason, lambda: _is_first(env))
    return code


def _is_first(env: Mapping[str, str]) -> bool:
    """Whether this pod is the first of the run to tell how it ended. A file on the claim notes that."""
    with contextlib.suppress(OSError):
        Path(env["BIREME_PADDLE_OUTPUT"], "told").touch(exist_ok=False)
        return True
    return False


class Script:
    """The role's script. Its output goes to the pod's log and to a file in the output folder."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._ended: dict[int, int] = {}
        self._pid = 0
        self._copier: threading.Thread | None = None
        # By a clock that does not jump: when something was printed, and the newest time of a log until then.
        self._printed = self._newest = 0.0

    @property
    def runs(self) -> bool:
        return self._pid > 0

    def start(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        reader, writer = os.pipe()
        os.set_inheritable(writer, True)
        try:
            self._pid = children.start(command, env, output=writer)
        finally:
            os.close(writer)
        self._printed = time.monotonic()
        self._copier = threading.Thread(target=self._copy, args=(reader,), daemon=True)
        self._copier.start()

    def quiet(self, logs: Path) -> float:
        """The seconds since the script printed something, also into files of the folder ``logs``."""
        newest = 0.0
        for path in logs.glob("*"):
            with contextlib.suppress(OSError):
                newest = max(newest, path.stat().st_mtime)
        if newest != self._newest:
            self._newest, self._printed = newest, time.monotonic()
        return time.monotonic() - self._printed

    def wait(self, seconds: float) -> int | None:
        """Wait for the script to end; returns its exit code, or None while it runs. Raises Terminated."""
        children.wait(seconds, self._ended)
        if not self.runs or self._pid not in self._ended:
            return None
        code = children.exit_code(self._ended.pop(self._pid))
        self._over()
        return code

    def kill(self) -> None:
        """Kill the script and its descendants."""
        children.kill_descendants()
        self._over()

    def ask_to_go(self) -> None:
        """Send SIGTERM, so that the script can save."""
        if self.runs:
            children.send([self._pid], signal.SIGTERM)

    def ends_within(self, seconds: float) -> bool:
        """Wait for the script to end, whatever signals arrive."""
        return not self.runs or not children.wait_for_end([self._pid], seconds)

    def terminate(self, seconds: float) -> None:
        """Send SIGTERM, so that the script can save, and SIGKILL after ``seconds``."""
        self.ask_to_go()
        self.ends_within(seconds)
        self.kill()

    def _over(self) -> None:
        self._pid = 0
        if self._copier:
            self._copier.join(timeout=5)
            self._copier = None

    def _copy(self, reader: int) -> None:
        with contextlib.suppress(OSError):
            self._log.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(reader, "rb", buffering=0) as source:
            while chunk := source.read(65536):
                self._printed = time.monotonic()
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
                # A full or lost volume must not stop the training.
                with contextlib.suppress(OSError), self._log.open("ab") as kept:
                    kept.write(chunk)


class Role(ABC):
    """Common to pservers and trainers: report, and follow the current attempt."""

    log_name = ""
    # The state of the run, where this role keeps it.
    _run: runs.Run | None = None

    def __init__(self, options: PaddleSettings, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.options = options
        self.env = dict(env)
        self._command = list(command)
        self.script = Script(options.output / f"node_{options.index}" / self.log_name)
        self._token = env.get("BIREME_RELEASE_TOKEN", "")
        self._client = runs.Client(options.coordinator, token=self._token)
        self.notes = Notes()
        self._boot = uuid.uuid4().hex
        self.attempt = 0
        self.state = runs.WAITING
        self._answered = self._since = time.monotonic()
        self._trouble = self._told = ""

    def run(self) -> int:
        """Until the run is over; returns the exit code."""
        try:
            while True:
                # Pserver 0 may have ended before it could report that. One that takes part is told by the
                # answers.
                if not (self.attempt or self._run) and (self.options.output / "done").exists():
                    say("this job is done: output/done exists")
                    return 0
                view = self._report()
                if view and view.outcome != runs.RUNNING:
                    return self._end(view)
                if view:
                    self._follow(view)
                code = self.script.wait(_TICK_SECONDS)
                if code is not None:
                    self._ended(code)
        except children.Terminated:
            self._leave(time.monotonic() + self.options.grace_seconds)
            self.script.kill()
            if not self._run:
                self._tell(runs.BROKEN)
            raise
        finally:
            self._settle_shards()
            self.notes.close()

    def _settle_shards(self, lost: str = "") -> None:
        """Give back the shard of a script that has ended. ``lost``: why that may be the shard's fault."""
        for note in self.notes.read():
            note.delete()
            leave_for(note, lost)

    @abstractmethod
    def _leave(self, deadline: float) -> None:
        """Let the script save before it is killed."""

    def _report(self) -> runs.View | None:
        view = self._tell(self.state)
        now = time.monotonic()
        if view:
            self._answered, self._told = now, ""
            return view
        silent = now - self._answered
        is_new = self.attempt or (self._told and self._trouble != self._told)
        if silent > self.options.rules.lost_seconds and is_new:
            say(f"lost {self.options.rules.name(0)}; waiting for a new attempt: {self._trouble}")
            self._told = self._trouble
            if self.attempt:
                self._reset()
        if silent > self.options.wait_seconds:
            name, address = self.options.rules.name(0), self.options.coordinator
            what = f"{name} at {address} did not answer in {silent:.0f} s"
            raise Stop(TEMPORARY, f"{what}: {self._trouble}")
        return None

    def _tell(self, state: str) -> runs.View | None:
        options = self.options
        address = f"{options.address}:{options.port}"
        revision, trainers = self._settings()
        report = runs.Report(
            options.role, options.index, self._boot, address, self.attempt, state, trainers, revision,
            self._quiet(),
        )  # fmt: skip
        try:
            return self._client.report(report)
        except Unreachable as error:
            self._trouble = str(error)
            return None

    def _quiet(self) -> float:
        return 0.0

    def _settings(self) -> tuple[int, int]:
        """The release's revision and number of trainers, which an upgrade may change at any time."""
        try:
            names = ("BIREME_REVISION", "PADDLE_TRAINERS_NUM")
            revision, trainers = (int((self.options.settings / name).read_text()) for name in names)
            return revision, trainers
        except (OSError, ValueError):
            return 0, self.options.rules.trainers

    def _reset(self) -> None:
        self.script.kill()
        self.attempt, self.state = 0, runs.WAITING
        self._since = time.monotonic()

    def _has_all(self, missing: str) -> bool:
        """Whether nothing is missing, also not the data. Raises Stop when it is missing for too long."""
        options = self.options
        if not missing and options.wait_for and not options.wait_for.exists():
            missing = f"{options.wait_for} does not exist"
        if missing and time.monotonic() - self._since > options.wait_seconds:
            raise Stop(TEMPORARY, f"{missing} after {options.wait_seconds:g} s")
        return not missing

    def _follow(self, view: runs.View) -> None:
        if self.attempt and view.attempt != self.attempt:
            say(view.reason)
            self._reset()
        if not self.attempt and self._is_ready(view):
            self.attempt = view.attempt
            self._start(view)

    @abstractmethod
    def _is_ready(self, view: runs.View) -> bool:
        """Whether the script of the attempt can start."""

    @abstractmethod
    def _start(self, view: runs.View) -> None:
        """Start the script."""

    @abstractmethod
    def _ended(self, code: int) -> None:
        """Continue after the script ended with this code."""

    def _end(self, view: runs.View) -> int:
        self.script.kill()
        self._settle_shards()
        self.state = runs.WAITING
        self._tell(runs.WAITING)
        self._wait_for_others()
        self._forget_shards()
        if view.outcome == runs.FAILED:
            raise Stop(GIVEN_UP, view.reason)
        say("all trainers are done")
        return 0

    def _wait_for_others(self) -> None:
        """Who keeps the run answers until all other participants know that it has ended."""
        deadline = time.monotonic() + 2 * self.options.rules.lost_seconds
        while self._run and time.monotonic() < deadline and not self._run.all_know_the_end():
            with contextlib.suppress(children.Terminated):
                children.pause(0.1)

    def _forget_shards(self) -> None:
        """Delete what the dispatcher keeps of this run, which has a dataset for each attempt (job.py)."""
        if self._run and self.env.get("BIREME_DISPATCHER"):
            name = self.env.get("BIREME_DISPATCHER_DATASET") or "default"
            with contextlib.suppress(DispatcherError):
                for attempt in range(1, self._run.attempt + 1):
                    with contextlib.suppress(Refused):
                        Dispatcher(dataset=f"{name}-{attempt}", wait_seconds=5, env=self.env).delete()

    def start_script(self, view: runs.View, role: str) -> None:
        """Start the script with the variables that current and old versions of Paddle read."""
        # A trainer that scaling has just added may not yet be counted in the view.
        trainers = max(view.trainers, self.options.index + 1 if self.options.role == runs.TRAINER else 1)
        endpoints = [f"trainer-{index}:{self.options.port}" for index in range(trainers)]
        self.script.start(
            [*_LAUNCHER, *self._command],
            {
                **self.env,
                "TRAINING_ROLE": role,
                "PADDLE_TRAINING_ROLE": role,
                "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(view.servers),
                "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
                "PADDLE_TRAINERS_NUM": str(trainers),
                "PADDLE_TRAINER_ID": str(self.options.index),
                "PADDLE_INIT_PSERVERS": ",".join(each.rpartition(":")[0] for each in view.servers),
                "PADDLE_INIT_NUM_GRADIENT_SERVERS": str(trainers),
                "PADDLE_INIT_TRAINER_ID": str(self.options.index),
                "BIREME_PADDLE_ATTEMPT": str(view.attempt),
                "BIREME_PADDLE_RESTORE": view.restore,
                "BIREME_PADDLE_FIRST_PASS": str(view.first_pass),
                **self.notes.environment,
            },
        )


class Core(Role):
    """A participant without which training cannot continue; number 0 also keeps the state of the run."""

    def run(self) -> int:
        if self.options.index == 0:
            options = self.options
            self._run = runs.Run(options.rules, options.output, options.run_id)
            try:
                options.output.mkdir(parents=True, exist_ok=True)
                self._run.begin()
            except (OSError, runs.Unreadable) as error:
                raise Stop(TEMPORARY, f"the run cannot begin: {error}") from None
            port = int(options.coordinator.rpartition(":")[2])
            server = runs.serve(self._run, port, self._token)
            # The pod's own host name may take half a minute to resolve.
            self._client = runs.Client(f"127.0.0.1:{port}", token=self._token)
            try:
                return super().run()
            except children.Terminated:
                # A collocated pserver receives SIGTERM as soon as its own trainer knows of the end.
                if self._run.outcome != runs.RUNNING:
                    self._wait_for_others()
                raise
            finally:
                server.close()
        return super().run()

    def _start(self, view: runs.View) -> None:
        # Reported first: if this pod is lost before its next report, the run knows that the attempt is over.
        self.state = runs.STARTING
        limit = time.monotonic() + self.options.rules.lost_seconds
        while not (told := self._tell(self.state)) and time.monotonic() < limit:
            # Pserver 0 may have got it although its answer was lost. Another state would count as a loss.
            children.pause(_TICK_SECONDS)
        if told and told.attempt == self.attempt and told.outcome == runs.RUNNING:
            self._answered = time.monotonic()
            self._start_now(view)
        else:
            self._reset()

    @abstractmethod
    def _start_now(self, view: runs.View) -> None:
        """Start the script."""


class Server(Core):
    """A parameter server."""

    log_name = "server.log"

    def _is_ready(self, view: runs.View) -> bool:
        return bool(view.servers)

    def _start_now(self, view: runs.View) -> None:
        say(f"attempt {view.attempt} of pserver {self.options.index}, on port {self.options.port}")
        self.start_script(view, "PSERVER")

    def _leave(self, deadline: float) -> None:
        """Serve on until trainer 0 has saved: what is on this server is lost with it.

        Trainer 0 may be asked to go as well, a moment later; and it is told that this server leaves.
        """
        heard = begun = time.monotonic()
        while self.script.runs and time.monotonic() < deadline:
            view, now = self._tell(runs.LEAVING), time.monotonic()
            if view:
                heard = now
                is_over = view.outcome != runs.RUNNING or view.attempt != self.attempt
                may_save = view.saver == runs.TRAINING and now < begun + _SAVER_SECONDS
                if is_over or not (view.saver == runs.LEAVING or may_save):
                    break
            elif now - heard > self.options.rules.lost_seconds:
                break
            if self.script.ends_within(_TICK_SECONDS):
                break
        self.script.terminate(1.0)

    def _report(self) -> runs.View | None:
        own = http.Address(self.options.address, self.options.port)
        if self.state == runs.STARTING and http.accepts(own, 1.0):
            self.state = runs.SERVING
        return super()._report()

    def _ended(self, code: int) -> None:
        say(f"the pserver's script ended with {code}")
        self.state = runs.BROKEN


class Trainer(Role):
    """A trainer."""

    log_name = "train.log"
    _failures = 0
    _not_before = 0.0

    def _is_ready(self, view: runs.View) -> bool:
        servers = self.options.rules.servers
        is_there = self._has_all("" if view.serving else f"not all {servers} pservers accept connections")
        return is_there and time.monotonic() >= self._not_before

    def _start(self, view: runs.View) -> None:
        say(f"attempt {view.attempt} of trainer {self.options.index} of {view.trainers}")
        self.start_script(view, "TRAINER")
        self.state = runs.TRAINING

    def _leave(self, deadline: float) -> None:
        self.script.ask_to_go()
        while time.monotonic() < deadline:
            # Pservers stay while trainer 0 saves.
            self._tell(runs.LEAVING)
            if self.script.ends_within(min(_TICK_SECONDS, max(0.0, deadline - time.monotonic()))):
                break

    def _follow(self, view: runs.View) -> None:
        super()._follow(view)
        if self.options.index == 0 and self.state == runs.TRAINING and view.server_leaves:
            say("a pserver is asked to go: saving before its part of the parameters is lost")
            self.script.ask_to_go()
            self.state = runs.LEAVING

    def _reset(self) -> None:
        super()._reset()
        # Without this, repeated losses of a pserver would count as failures of the first shards.
        self._settle_shards()

    def _ended(self, code: int) -> None:
        if code == 0:
            self.state = runs.FINISHED
            return
        if self.state == runs.LEAVING:
            # A new attempt begins when the pserver is gone.
            self.state = runs.BROKEN
            return
        self._failures += 1
        self._settle_shards(f"the script ended with {code}")
        if code == CONFIG or self._failures > self.options.script_restarts:
            raise Stop(as_shell(code), f"the script ended with {code}")
        say(f"the script ended with {code}: restart {self._failures} of {self.options.script_restarts}")
        self._not_before = time.monotonic() + _RESTART_SECONDS
        self._reset()


class Worker(Core):
    """A worker without parameter servers, whose script paddle.distributed.launch starts.

    All scripts start and start again together: one that is started later finds none of the others, and those
    that have lost one wait for it in their next all-reduce for ever.
    """

    log_name = "train.log"
    _logs = Path(tempfile.gettempdir(), "log")

    def _quiet(self) -> float:
        return self.script.quiet(self._logs) if self.script.runs else 0.0

    def _is_ready(self, view: runs.View) -> bool:
        workers = self.options.rules.trainers
        return self._has_all("" if view.serving else f"not all {workers} workers are here")

    def _start_now(self, view: runs.View) -> None:
        options = self.options
        say(f"attempt {view.attempt} of worker {options.index} of {view.trainers}")
        # The launcher starts its store only where the master's address is literally the node's own.
        launch = [sys.executable, "-m", "paddle.distributed.launch", "--master", view.servers[0]]
        launch += ["--job_id", f"attempt-{view.attempt}"]
        launch += ["--nnodes", str(view.trainers), "--rank", str(options.index), "--host", options.address]
        launch += ["--nproc_per_node", self.env.get("BIREME_PADDLE_PROCESSES", "1")]
        launch += ["--log_dir", str(self._logs)]
        # These variables would override the launcher's arguments.
        env = {name: value for name, value in self.env.items() if name not in _OF_ONE_PROCESS}
        env["BIREME_PADDLE_ATTEMPT"] = str(view.attempt)
        self.script.start([*launch, *self._command], env)
        self.state = runs.TRAINING

    def _leave(self, deadline: float) -> None:
        self.script.terminate(max(0.0, deadline - time.monotonic()))

    def _ended(self, code: int) -> None:
        if code == 0:
            self.state = runs.FINISHED
            return
        if code == CONFIG:
            raise Stop(as_shell(code), f"the script ended with {code}")
        say(f"the script ended with {code}")
        self.state = runs.BROKEN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
