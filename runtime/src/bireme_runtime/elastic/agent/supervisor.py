"""The entry point of a worker: `python3 -m bireme_runtime.elastic.agent.supervisor [--] SCRIPT ARGS…`.

It starts torchrun, configured by PET_* variables, and supervises it: it restarts torchrun inside the
container when torchrun's agent dies, returns the script's own failure, gives the training processes time to
save on SIGTERM, and removes the member from the rendezvous at once when it ends (docs/failures.md).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bireme_runtime.elastic import fence, progress
from bireme_runtime.elastic.agent import launchers, preflight, report, torch_handler, warm
from bireme_runtime.elastic.agent.observer import Limits, Observer
from bireme_runtime.elastic.monitor import failures, hang, history
from bireme_runtime.elastic.monitor.status import WorkerStatus
from bireme_runtime.elastic.rendezvous import membership, rules
from bireme_runtime.elastic.rendezvous.lock import RunLock
from bireme_runtime.elastic.snapshots import keeper, plan
from bireme_runtime.etcd import client as etcd
from bireme_runtime.process import children, devices, environment, webhook
from bireme_runtime.process.environment import setting
from bireme_runtime.process.errors import (
    CONFIG,
    FAILED,
    GIVEN_UP,
    NO_PERMISSION,
    TEMPORARY,
    UNCOUNTED,
    USAGE,
    SettingError,
    Stop,
    as_shell,
)
from bireme_runtime.process.http import accepts, parse_address
from bireme_runtime.process.log import last_words, log_of
from bireme_runtime.process.server import Background
from bireme_runtime.process.threads import in_thread
from bireme_runtime.process.waiting import BoundedWait

LAUNCHER = (sys.executable, "-m", "bireme_runtime.elastic.agent.launch")
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 0.2, 15.0
_ETCD_SECONDS = 2.0
_RELEASE_SECONDS = 4.0
_FENCE_SECONDS = 0.25
_ANSWER_SECONDS = 0.02

# The ends of torchrun after which another start would end the same way.
_FINAL = {
    report.USAGE: (USAGE, "torchrun refuses its arguments"),
    report.CONFIG: (CONFIG, "torchrun cannot start as configured"),
    report.MACHINE: (TEMPORARY, "torchrun cannot run here"),
}
_NOT_RENEWED = "this worker's lease was not renewed in time, and the others may go on without it"

say = log_of("agent")


@dataclass(frozen=True)
class AgentSettings:
    """The settings of the supervisor. Times are in seconds."""

    min_nodes: int
    max_nodes: int
    conf: Mapping[str, str]
    limits: Limits
    node: str
    backend: str = setting("PET_RDZV_BACKEND", "static")
    endpoint: str = setting("PET_RDZV_ENDPOINT", "")
    run_id: str = setting("PET_RDZV_ID", "none")
    index: str = setting("JOB_COMPLETION_INDEX", "")
    restarts: int = setting("BIREME_AGENT_RESTARTS", 20)
    wait_seconds: float = setting("BIREME_WAIT_SECONDS", 600.0)
    grace_seconds: float = setting("BIREME_GRACE_SECONDS", 20.0)
    stable_seconds: float = setting("BIREME_STABLE_SECONDS", 300.0)
    pattern: str = setting("BIREME_PROGRESS_PATTERN", "")
    metrics_port: int = setting("BIREME_METRICS_PORT", 0)
    warm: bool = setting("BIREME_WARM_START", False)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> AgentSettings:
        """Read PET_* and BIREME_* variables. Raises Stop when one cannot be used."""
        low, _, high = env.get("PET_NNODES", "1:1").partition(":")
        try:
            least, most = int(low), int(high or low)
            conf = _parse_conf(env.get("PET_RDZV_CONF", ""))
        except ValueError as error:
            raise SettingError(f"PET_NNODES or PET_RDZV_CONF cannot be used: {error}") from None
        limits, node = environment.read(Limits, env), env.get("BIREME_NODE") or socket.gethostname()
        given = {"min_nodes": least, "max_nodes": most, "conf": conf, "limits": limits, "node": node}
        return environment.read(cls, env, **given)


def _parse_conf(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    for key, equals, _ in pairs:
        if not equals:
            raise ValueError(f"PET_RDZV_CONF has {key!r}, which is not key=value")
    return {key.strip(): value.strip() for key, _, value in pairs}


@dataclass(frozen=True)
class End:
    """How one run of torchrun ended: one of the causes in report.py, the exit code, and a sentence."""

    cause: str
    code: int
    reason: str


class Backend:
    """What the supervisor does for a rendezvous backend, beside torchrun. For most backends nothing."""

    def __init__(self, token: int = 1) -> None:
        # Without leases there is no deadline, and processes are thought to train as soon as they run: any
        # token but 0 says that they do.
        self.board = fence.Board.new()
        self.board.token = token
        # What is known of the failures of the run, and its worlds, where something keeps them.
        self.ledger = failures.Ledger()
        self.history: history.History | None = None

    def wait(self) -> None:
        """Wait until torchrun can start. Raises Stop when that takes too long."""

    def environment(self) -> dict[str, str]:
        """Variables for the next torchrun."""
        return {}

    def succeeded(self) -> bool:
        """Whether the run has ended with success."""
        return False

    def hold(self) -> None:
        """Keep the membership of a torchrun that is stopped while its processes save.

        Called once a second.
        """

    def release(self) -> None:
        """Remove the membership of the last torchrun, which has ended."""

    def forget(self) -> None:
        """Delete what is kept of a run that is over, except the record that it is over."""

    def has_begun(self) -> bool:
        """Whether torchrun has started before in a worker of this run. True if that is unknown."""
        return False

    def waits(self) -> str:
        """For what else the workers wait, beside each other."""
        return ""

    def spares(self) -> tuple[str, ...]:
        """The names of the workers that wait while others train."""
        return ()

    def is_first(self, index: str) -> bool:
        """Whether no other worker has told how the run ended."""
        return index in ("", "0")


class EtcdBackend(Backend):
    """The backend `bireme-etcd`, which keeps leases and the mark of success in etcd."""

    def __init__(self, options: AgentSettings, env: Mapping[str, str]) -> None:
        super().__init__(token=0)
        try:
            settings = rules.RunSettings.from_config(
                options.run_id, options.min_nodes, options.max_nodes, options.conf
            )
            # Memory that this worker's processes share: their login, and what they know of etcd's data.
            login = f"/proc/{os.getpid()}/fd/{os.memfd_create('bireme-login')}"
            self._shared = {etcd.LOGIN_FILE: login, etcd.HISTORY: etcd.History.new().path}
            self._client = etcd.client_from(
                options.endpoint, {**env, **self._shared}, _ETCD_SECONDS, options.conf
            )
            self._client.expect(torch_handler.first_workers(env))
        except (ValueError, OSError) as error:
            raise Stop(CONFIG, str(error)) from None
        self._wait_seconds, self._settings, self._root = options.wait_seconds, settings, settings.root
        lock = env.get("BIREME_LOCK", "")
        self._lock = RunLock(self._client, replace(settings, lock=lock)) if lock else None
        self._base = ""
        run = self._client, settings.prefix, settings.run_id
        self.ledger = ledger = failures.EtcdLedger(*run)
        self.history = history.History(*run, ledger)

    def wait(self) -> None:
        try:
            etcd.wait_until_up(self._client, self._wait_seconds, say)
        except etcd.AuthError as error:
            raise Stop(NO_PERMISSION, str(error)) from error
        except etcd.EtcdError as error:
            raise Stop(TEMPORARY, str(error)) from error

    def environment(self) -> dict[str, str]:
        self._base = membership.new_base(socket.gethostname())
        self.board.clear()
        return {"BIREME_MEMBER": self._base, fence.BOARD: self.board.path, **self._shared}

    def succeeded(self) -> bool:
        try:
            return membership.outcome_of(self._client, self._root) == rules.SUCCESS
        except etcd.EtcdError as error:
            say(f"cannot read from etcd whether the run has ended: {error}")
            return False

    def hold(self) -> None:
        with contextlib.suppress(etcd.EtcdError):
            for lease in self._leases():
                asked = fence.now()
                self._client.lease_keepalive(lease)
                self.board.extend(asked + fence.KILL_SHARE * self._settings.lease_ttl)

    def release(self) -> None:
        deadline = time.monotonic() + _RELEASE_SECONDS
        while True:
            try:
                for lease in self._leases():
                    self._client.lease_revoke(lease)
                return
            except etcd.EtcdError as error:
                if time.monotonic() >= deadline:
                    return say(f"cannot revoke the lease; it will expire: {error}")
                time.sleep(0.2)

    def forget(self) -> None:
        with contextlib.suppress(etcd.EtcdError):
            for kind in (".failures", ".history"):
                root = f"{self._settings.prefix}{kind}/{self._settings.run_id}"
                self._client.delete_span(f"{root}/", f"{root}0")

    def has_begun(self) -> bool:
        try:
            return membership.has_begun(self._client, self._root)
        except etcd.EtcdError as error:
            say(f"cannot read from etcd whether the run has begun: {error}")
            return True

    def waits(self) -> str:
        return self._lock.awaited() if self._lock and not self.board.token else ""

    def spares(self) -> tuple[str, ...]:
        return membership.spares_of(self._client, self._root)

    def is_first(self, index: str) -> bool:
        key = self._root + "told"
        action = [etcd.key_is_same(key, 0)], [etcd.put_op(key, index)]
        try:
            return self._client.txn(*action).succeeded
        except etcd.Ambiguous:
            # A write comes before the reading, so that the first one cannot be carried out after it.
            if self._client.txn(*action).succeeded:
                return True
            kv = self._client.get(key)
            return kv is not None and kv.value == index

    def _leases(self) -> tuple[int, ...]:
        return membership.leases_of(self._client, self._root, self._base) if self._base else ()


class C10dBackend(Backend):
    """torch's own backend `c10d`, a store on worker 0. docs/failures.md lists its limits."""

    def __init__(self, options: AgentSettings) -> None:
        super().__init__()
        self._options = options
        try:
            self._endpoint = parse_address(options.endpoint)
        except ValueError:
            rule = "must be the host:port of worker 0 for c10d"
            raise Stop(CONFIG, f"PET_RDZV_ENDPOINT={options.endpoint!r} {rule}") from None

    def wait(self) -> None:
        name, wait = self._endpoint.host, BoundedWait(self._options.wait_seconds, say)
        while True:
            try:
                socket.getaddrinfo(name, self._endpoint.port)
                return
            except OSError as error:
                if not wait.a_moment(f"the name {name}", f": {error}"):
                    what = f"the name of worker 0, {name}, does not resolve: {error}"
                    raise Stop(TEMPORARY, what) from None

    def environment(self) -> dict[str, str]:
        conf = dict(self._options.conf)
        if self._options.index and "is_host" not in conf:
            conf["is_host"] = "true" if self._options.index == "0" else "false"
        return {
            "PET_RDZV_CONF": ",".join(f"{key}={value}" for key, value in conf.items()),
            # With a shared store, a worker that joins late would wait for an address that is sent only once.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),
        }

    def has_begun(self) -> bool:
        # Worker 0 listens as soon as its torchrun has started.
        return accepts(self._endpoint, _ETCD_SECONDS)


class Supervisor:
    """Runs torchrun until the run succeeds, the script fails for good, or SIGTERM arrives."""

    def __init__(
        self,
        options: AgentSettings,
        backend: Backend,
        launcher: Sequence[str],
        arguments: Sequence[str],
        env: Mapping[str, str],
    ) -> None:
        self._options = options
        self.reason = ""
        self._backend = backend
        self._arguments = tuple(arguments)
        self._stable_seconds = 0.0
        self._command = (*launcher, *arguments)
        try:
            seen = progress.Progress(options.pattern)
        except re.error as error:
            raise Stop(CONFIG, f"BIREME_PROGRESS_PATTERN={options.pattern} cannot be used: {error}") from None
        ledger, past = backend.ledger, backend.history
        self._folder = tempfile.mkdtemp(prefix="bireme-")
        self._observer = Observer(
            ledger, seen, options.index or socket.gethostname(), options.node,
            options.limits, say, past, self._folder,
        )  # fmt: skip
        self._status = WorkerStatus(
            self._observer.starts, seen, ledger, backend.waits, past, backend.spares, self._observer.ranks
        )
        told = hang.environment(env, self._folder)
        self._env = {**env, **self._observer.environment, **told, launchers.FOLDER: self._folder}
        self._template: warm.Template | None = None
        if env.get(plan.FOLDER):
            self._observer.keeper = keeper.Service(env, say)
            self._status.snapshots = self._observer.keeper.state

    def run(self) -> int:
        """Run and supervise torchrun; returns the exit code of the worker."""
        children.take_charge()
        is_over = False
        try:
            # After that: a thread that does not block SIGTERM would take it, and end this process.
            self._observer.copier.start()
            self._serve_status()
            with _repeating(self._observer.tick, 1.0):
                code = self._run()
            is_over = True
            return code
        except children.Terminated as end:
            try:
                self._end_processes()
            except Stop as stop:
                say(str(stop))
            return as_shell(-end.number)
        except Stop as stop:
            self.reason = str(stop)
            say(self.reason)
            last_words("\n".join(filter(None, (self._observer.said.words(), self.reason))), self._env)
            is_over = self._observer.verdict == "run"
            return self._code(stop)
        finally:
            children.kill_descendants(1.0)
            self._observer.close()
            if is_over:
                # After the last that this worker tells; who ends last leaves nothing.
                self._backend.forget()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _serve_status(self) -> None:
        if self._options.metrics_port:
            try:
                Background(self._status.answer, "", self._options.metrics_port)
            except OSError as error:
                say(f"no metrics at port {self._options.metrics_port}: {error}")

    def _end_processes(self) -> None:
        """End all processes but the template, then the membership: none trains beside the next world.

        Raises Stop, with the membership left to its lease, when a process does not end: it waits in the
        kernel, mostly for a file system.
        """
        left = self._kill_processes()
        if left:
            self._backend.board.expel()
            what = f"process {left[0]} cannot be killed, because it waits in the kernel (state D)"
            consequence = "the lease of this worker is left to expire, and this pod ends with the process"
            raise Stop(TEMPORARY, f"{what}: {consequence}")
        self._backend.release()

    def _kill_processes(self) -> list[int]:
        return children.kill_descendants(but=self._template.pid if self._template else 0)

    def _code(self, stop: Stop) -> int:
        """The exit code for this end. The Job fails at once only for what is wrong in all workers.

        It does not count a pod that ends after new steps, so that pods are not used up by a long run.
        """
        if stop.code == TEMPORARY and not self._observer.verdict and self._observer.advanced():
            return UNCOUNTED
        if stop.code not in (USAGE, CONFIG) or not self._backend.has_begun():
            return stop.code
        say("the run has begun: only this pod is replaced")
        return TEMPORARY

    def _run(self) -> int:
        check_script(self._arguments)
        if self._options.warm:
            self._template = warm.start(self._command, self._env, self._observer.copier.writers)
        restarts = 0
        while True:
            self._while_listening(self._backend.wait)
            self._while_listening(self._observer.enter)
            if self._while_listening(self._backend.succeeded):
                say("the run has already succeeded: there is nothing to do")
                return 0
            why = self._while_listening(self._observer.excluded)
            if why:
                raise Stop(UNCOUNTED, f"no worker starts on {self._options.node} for a while: {why}")
            self._stable_seconds = 0.0
            end = self._attempt()
            if end.cause == report.SUCCESS:
                return 0
            self._end_processes()
            if self._observer.verdict:
                code = GIVEN_UP if self._observer.verdict == "run" else TEMPORARY
                raise Stop(code, self._observer.sentence)
            if self._backend.succeeded():
                waited = end.cause == report.RENDEZVOUS
                how = "while this worker waited" if waited else "although this worker's last processes failed"
                say(f"the run has succeeded, {how}")
                return 0
            if end.cause == report.SCRIPT:
                # Its code is passed on, except those by which a worker ends the Job.
                code = FAILED if end.code in (USAGE, UNCOUNTED, GIVEN_UP, CONFIG) else end.code
                raise Stop(code, f"the script failed for good, with code {end.code}: {end.reason}")
            if end.cause in _FINAL:
                code, what = _FINAL[end.cause]
                raise Stop(code, f"{what}: {end.reason}")
            restarts = 1 if self._stable_seconds >= self._options.stable_seconds else restarts + 1
            if restarts > self._options.restarts:
                raise Stop(TEMPORARY, f"the agent ended {restarts} times; the last reason: {end.reason}")
            self._observer.starts.because("agent")
            delay = min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2 ** (restarts - 1))
            say(
                f"{end.reason}; restarting the agent in {delay:.1f} s "
                f"({restarts} of {self._options.restarts} restarts)"
            )
            children.pause(delay)

    def _while_listening(self, action: Callable[[], Any]) -> Any:
        """Call ``action`` in a thread; raises Terminated if SIGTERM or SIGINT arrives meanwhile."""
        asked = in_thread(action)
        while not asked.done():
            children.pause(0.02)
        return asked.result()

    def _attempt(self) -> End:
        seen = self._observer
        listener = report.Listener(starting=seen.starting, started=seen.started, failed=seen.failed)
        env = {**self._env, **self._backend.environment(), **listener.environment}
        ended: dict[int, int] = {}
        try:
            agent = self._start_agent(env, tuple(listener.environment), ended)
        finally:
            listener.started()
        try:
            while agent not in ended:
                since = time.monotonic()
                children.wait(_FENCE_SECONDS, ended)
                if self._backend.board.token:
                    self._stable_seconds += time.monotonic() - since
                if self._backend.board.expired and agent not in ended:
                    self._kill_processes()
                    return End(report.AGENT, -signal.SIGKILL, f"{_NOT_RENEWED}: its processes were killed")
                if self._observer.verdict and agent not in ended:
                    return End(report.AGENT, FAILED, self._observer.sentence)
            return _end_of(children.exit_code(ended[agent]), listener.end())
        except children.Terminated:
            if agent not in ended:
                self._let_save(agent)
            raise

    def _start_agent(self, env: Mapping[str, str], pipes: Sequence[str], ended: dict[int, int]) -> int:
        """Start torchrun, forked from the template if there is one; returns its process id.

        ``pipes``: the variables that hold numbers of descriptors.
        """
        if self._template is not None:
            try:
                request = warm.agent_request(self._arguments, env, pipes)
                self._template.ask(request, [int(env[name]) for name in pipes])
                while (agent := self._template.answer(0)) is None:
                    children.wait(_ANSWER_SECONDS, ended)
                return agent
            except warm.Unusable as reason:
                say(f"starts are cold: {reason}")
                self._template.close()
                self._template = None
        return children.start(self._command, env, self._observer.copier.writers)

    def _let_save(self, agent: int) -> None:
        """Send SIGTERM to the training processes and wait for them during the grace period.

        The agent is stopped (SIGSTOP) meanwhile: it would restart the first that ends and kill the others.
        """
        children.send([agent], signal.SIGSTOP)
        trainers = children.children_of(agent, but=warm.TEMPLATE_NAME)
        children.send(trainers, signal.SIGTERM)
        grace = self._options.grace_seconds
        say(f"received SIGTERM: {len(trainers)} training processes have {grace:.0f} s to save")
        deadline = time.monotonic() + grace
        with _repeating(self._backend.hold, 1.0):
            while left := children.wait_for_end(trainers, min(grace, _FENCE_SECONDS)):
                if self._backend.board.expired:
                    # Before the block ends: the thread in it may be waiting for etcd.
                    children.kill_descendants()
                    say(f"{_NOT_RENEWED}: {len(left)} training processes have no more time to save")
                    return
                if time.monotonic() >= deadline:
                    break
        if left:
            say(f"{len(left)} training processes did not end in time")


@contextlib.contextmanager
def _repeating(action: Callable[[], None], seconds: float) -> Any:
    """Call ``action`` repeatedly, in a thread, while the block runs; log when it fails."""
    over = threading.Event()

    def repeat() -> None:
        while True:
            try:
                action()
            except Exception as error:
                say(f"{type(error).__name__}: {error}")
            if over.wait(seconds):
                return

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_ETCD_SECONDS)


def _end_of(code: int, told: Mapping[str, Any]) -> End:
    if told and code >= 0:
        return End(told["cause"], int(told["code"]), told["error"])
    if code < 0:
        return End(report.AGENT, code, f"the agent was killed by {signal.Signals(-code).name}")
    return End(report.SCRIPT if code else report.SUCCESS, code, f"torchrun ended with code {code}")


def make_backend(options: AgentSettings, env: Mapping[str, str]) -> Backend:
    """The backend that PET_RDZV_BACKEND names. Raises Stop."""
    if options.backend == torch_handler.BACKEND:
        return EtcdBackend(options, env)
    return C10dBackend(options) if options.backend == "c10d" else Backend()


def check_script(arguments: Sequence[str]) -> None:
    """Raise Stop when the script is missing. torchrun would only retry."""
    if not arguments:
        raise Stop(USAGE, "no script is given: end the command with -- SCRIPT ARGS…")
    script = arguments[0]
    if not script.startswith("-") and not os.path.isfile(script):
        raise Stop(USAGE, f"the script {script} does not exist: check the image, mounts and first argument")


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ, launcher: Sequence[str] = LAUNCHER) -> int:
    """Run one worker and return its exit code; `launcher` is the command that runs torchrun."""
    arguments = list(argv[1:] if argv[:1] == ["--"] else argv)
    try:
        options = AgentSettings.from_env(env)
        env = devices.for_processes(env, say)
        preflight.check(env, say)
        if launchers.starts_nodes(env):
            arguments = launchers.torchrun_arguments(env, arguments)
        backend = make_backend(options, env)
        supervisor = Supervisor(options, backend, launcher, arguments, env)
    except Stop as stop:
        say(str(stop))
        last_words(str(stop), env)
        webhook.tell(env, stop.code, str(stop), lambda: env.get("JOB_COMPLETION_INDEX") == "0")
        return stop.code
    code = supervisor.run()
    webhook.tell(env, code, supervisor.reason, lambda: backend.is_first(options.index))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
