"""The entry point of a worker: `python3 -m bireme_runtime.elastic.supervisor [--] SCRIPT ARGS…`.

It starts torchrun, configured by PET_* variables, and stays: restarts it inside the container when the agent
itself dies, passes on the script's own failure, gives the training processes the time to save on TERM, and
takes the member out of the rendezvous at once when it goes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bireme_runtime.elastic import launch, rendezvous, torch_handler
from bireme_runtime.etcd import client as etcd
from bireme_runtime.process import children
from bireme_runtime.process.exits import CONFIG, NO_PERMISSION, TEMPORARY, USAGE, Stop

LAUNCHER = (sys.executable, "-m", "bireme_runtime.elastic.launch")
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 0.2, 15.0
_ETCD_SECONDS = 2.0


@dataclass(frozen=True)
class Options:
    """What the environment says about the agent. Times in seconds."""

    backend: str
    endpoint: str
    run_id: str
    min_nodes: int
    max_nodes: int
    conf: Mapping[str, str]
    index: str
    restarts: int
    wait_seconds: float
    grace_seconds: float
    stable_seconds: float

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Options:
        """Read PET_* and BIREME_* variables. Raises Stop with a sentence when one makes no sense."""
        low, _, high = env.get("PET_NNODES", "1:1").partition(":")
        try:
            return cls(
                backend=env.get("PET_RDZV_BACKEND", "static"),
                endpoint=env.get("PET_RDZV_ENDPOINT", ""),
                run_id=env.get("PET_RDZV_ID", "none"),
                min_nodes=int(low),
                max_nodes=int(high or low),
                conf=_parse_conf(env.get("PET_RDZV_CONF", "")),
                index=env.get("JOB_COMPLETION_INDEX", ""),
                restarts=int(env.get("BIREME_AGENT_RESTARTS", "20")),
                wait_seconds=float(env.get("BIREME_WAIT_SECONDS", "600")),
                grace_seconds=float(env.get("BIREME_GRACE_SECONDS", "20")),
                stable_seconds=float(env.get("BIREME_STABLE_SECONDS", "300")),
            )
        except ValueError as error:
            raise Stop(
                CONFIG, f"a PET_ or BIREME_ variable is not the number it should be: {error}"
            ) from None


def _parse_conf(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    for key, equals, _ in pairs:
        if not equals:
            raise ValueError(f"PET_RDZV_CONF has {key!r}, which is not key=value")
    return {key.strip(): value.strip() for key, _, value in pairs}


@dataclass(frozen=True)
class End:
    """How one run of torchrun ended: a kind of `launch`, the exit code, and what it said about it."""

    kind: str
    code: int
    words: str


class Backend:
    """What the supervisor does for a rendezvous besides torchrun's own part: for most backends nothing."""

    def wait(self) -> None:
        """Wait until torchrun can start; raises Stop when that takes too long."""

    def environment(self) -> dict[str, str]:
        """Variables for the next torchrun."""
        return {}

    def succeeded(self) -> bool:
        """Whether the run is over, with success."""
        return False

    def mark_success(self) -> None:
        """Let all know that the run is over, with success."""

    def hold(self) -> None:
        """Keep the place of a torchrun that is stopped while its processes save; called once a second."""

    def release(self) -> None:
        """Give up the place of the latest torchrun, which is gone."""


class EtcdBackend(Backend):
    """The backend `bireme-etcd`: leases, and the mark of success, are in etcd."""

    def __init__(self, options: Options, env: Mapping[str, str]) -> None:
        try:
            settings = rendezvous.Settings.from_config(
                options.run_id, options.min_nodes, options.max_nodes, options.conf
            )
            self._client = etcd.client_from(options.endpoint, env, _ETCD_SECONDS, options.conf)
        except (ValueError, OSError) as error:
            raise Stop(CONFIG, str(error)) from None
        self._wait_seconds = options.wait_seconds
        self._root = settings.root
        self._base = ""

    def wait(self) -> None:
        try:
            etcd.wait_until_up(self._client, self._wait_seconds, say)
        except etcd.AuthError as error:
            raise Stop(NO_PERMISSION, str(error)) from error
        except etcd.EtcdError as error:
            raise Stop(TEMPORARY, str(error)) from error

    def environment(self) -> dict[str, str]:
        self._base = rendezvous.new_base(socket.gethostname())
        return {"BIREME_MEMBER": self._base}

    def succeeded(self) -> bool:
        try:
            return rendezvous.outcome_of(self._client, self._root) == rendezvous.SUCCESS
        except etcd.EtcdError as error:
            say(f"could not ask etcd whether the run is over: {error}")
            return False

    def mark_success(self) -> None:
        try:
            rendezvous.end_run(self._client, self._root, rendezvous.SUCCESS)
        except etcd.EtcdError as error:
            say(f"could not mark the run as finished, so a worker that starts late trains again: {error}")

    def hold(self) -> None:
        with contextlib.suppress(etcd.EtcdError):
            for lease in self._leases():
                self._client.lease_keepalive(lease)

    def release(self) -> None:
        try:
            for lease in self._leases():
                self._client.lease_revoke(lease)
        except etcd.EtcdError as error:
            say(f"could not give up the lease, it will run out by itself: {error}")

    def _leases(self) -> tuple[int, ...]:
        return rendezvous.leases_of(self._client, self._root, self._base) if self._base else ()


class C10dBackend(Backend):
    """torch's own `c10d`: a store on worker 0. What it lacks is docs/runtime.md's to say."""

    def __init__(self, options: Options) -> None:
        self._options = options
        try:
            (self._endpoint,) = etcd.parse_endpoints(options.endpoint)
        except ValueError:
            words = f"PET_RDZV_ENDPOINT={options.endpoint!r} must be the host:port of worker 0 for c10d"
            raise Stop(CONFIG, words) from None

    def wait(self) -> None:
        deadline = time.monotonic() + self._options.wait_seconds
        next_words = 0.0
        while True:
            try:
                socket.getaddrinfo(self._endpoint.host, self._endpoint.port)
                return
            except OSError as error:
                problem = error
            now = time.monotonic()
            if now >= deadline:
                words = f"the name of worker 0, {self._endpoint.host}, did not come to resolve: {problem}"
                raise Stop(TEMPORARY, words)
            if now >= next_words:
                next_words = now + 10
                say(f"waiting, {deadline - now:.0f} s at most, for the name {self._endpoint.host}: {problem}")
            time.sleep(0.5)

    def environment(self) -> dict[str, str]:
        conf = dict(self._options.conf)
        if self._options.index and "is_host" not in conf:
            conf["is_host"] = "true" if self._options.index == "0" else "false"
        return {
            "PET_RDZV_CONF": ",".join(f"{key}={value}" for key, value in conf.items()),
            # Were it shared, a worker that joins late would wait for an address that comes only once.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),
        }


class Supervisor:
    """Runs torchrun until the run succeeds, the script fails for good, or it is told to end."""

    def __init__(
        self, options: Options, backend: Backend, command: Sequence[str], env: Mapping[str, str]
    ) -> None:
        self._options = options
        self._backend = backend
        self._command = tuple(command)
        self._env = dict(env)

    def run(self) -> int:
        """Supervise, and return the exit code of the worker."""
        children.take_charge()
        try:
            return self._run()
        except children.Terminated as end:
            # First the processes, then the place: nobody trains beside the next world.
            children.kill_descendants()
            self._backend.release()
            return 128 + end.number
        except Stop as stop:
            say(str(stop))
            return stop.code
        finally:
            children.kill_descendants()

    def _run(self) -> int:
        restarts = 0
        while True:
            self._while_listening(self._backend.wait)
            if self._while_listening(self._backend.succeeded):
                say("the run has succeeded already: nothing is left to do")
                return 0
            started = time.monotonic()
            end = self._attempt()
            if end.kind == launch.SUCCESS:
                self._backend.mark_success()
                return 0
            children.kill_descendants()
            self._backend.release()
            if self._backend.succeeded():
                say("the run has succeeded without this worker's last part")
                return 0
            self._stop_unless_restarting_helps(end)
            restarts = 1 if time.monotonic() - started >= self._options.stable_seconds else restarts + 1
            if restarts > self._options.restarts:
                raise Stop(TEMPORARY, f"the agent ended {restarts} times, the last time because {end.words}")
            delay = min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2 ** (restarts - 1))
            say(
                f"{end.words}; restarting the agent in {delay:.1f} s "
                f"({restarts} of {self._options.restarts} restarts)"
            )
            children.pause(delay)

    def _stop_unless_restarting_helps(self, end: End) -> None:
        if end.kind == launch.SCRIPT:
            raise Stop(end.code, f"the script failed for good, with code {end.code}: {end.words}")
        if end.kind == launch.USAGE:
            raise Stop(USAGE, f"torchrun refuses its arguments: {end.words}")
        if end.kind == launch.CONFIG:
            raise Stop(CONFIG, f"torchrun cannot start as configured: {end.words}")

    def _while_listening(self, action: Callable[[], Any]) -> Any:
        """Do something that may take long, and raise Terminated meanwhile if a signal to end comes."""
        outcome: list[Any] = []
        failure: list[BaseException] = []

        def act() -> None:
            try:
                outcome.append(action())
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        while thread.is_alive():
            children.pause(0.02)
        if failure:
            raise failure[0]
        return outcome[0]

    def _attempt(self) -> End:
        reading, writing = os.pipe()
        os.set_inheritable(writing, True)
        env = {**self._env, **self._backend.environment(), launch.REPORT_FD: str(writing)}
        try:
            agent = children.start(self._command, env)
        finally:
            os.close(writing)
        ended: dict[int, int] = {}
        try:
            while agent not in ended:
                children.wait(60.0, ended)
            return _end_of(children.exit_code(ended[agent]), _read(reading))
        except children.Terminated:
            if agent not in ended:
                self._let_save(agent)
            raise
        finally:
            os.close(reading)

    def _let_save(self, agent: int) -> None:
        """Pass TERM to the training processes, and give them the grace period.

        The agent is stopped meanwhile: else it would restart those that end first and kill the rest.
        """
        children.send([agent], signal.SIGSTOP)
        trainers = children.children(agent)
        children.send(trainers, signal.SIGTERM)
        grace = self._options.grace_seconds
        say(f"told to end: {len(trainers)} training processes have {grace:.0f} s to save")
        left: list[int] = []
        with _repeating(self._backend.hold, 1.0):
            left = children.wait_for_end(trainers, grace, lambda: None)
        if left:
            say(f"{len(left)} training processes did not end in time")


@contextlib.contextmanager
def _repeating(action: Callable[[], None], seconds: float) -> Any:
    """Do something again and again, in a thread, while the block runs."""
    over = threading.Event()

    def repeat() -> None:
        action()
        while not over.wait(seconds):
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_ETCD_SECONDS)


def _read(descriptor: int) -> dict[str, Any]:
    os.set_blocking(descriptor, False)
    try:
        raw = os.read(descriptor, 65536)
    except BlockingIOError:
        return {}
    return dict(json.loads(raw)) if raw else {}


def _end_of(code: int, report: Mapping[str, Any]) -> End:
    if report and code >= 0:
        return End(report["kind"], int(report["code"]), report["error"])
    if code < 0:
        return End(launch.AGENT, code, f"the agent was killed by {signal.Signals(-code).name}")
    return End(launch.SCRIPT if code else launch.SUCCESS, code, f"torchrun ended with code {code}")


def say(sentence: str) -> None:
    """Print one line for the pod's log."""
    print(f"bireme agent {time.strftime('%H:%M:%S')}: {sentence}", file=sys.stderr, flush=True)


def make_backend(options: Options, env: Mapping[str, str]) -> Backend:
    """The backend that PET_RDZV_BACKEND names. Raises Stop."""
    if options.backend == torch_handler.BACKEND:
        return EtcdBackend(options, env)
    return C10dBackend(options) if options.backend == "c10d" else Backend()


def check_script(arguments: Sequence[str]) -> None:
    """Raise Stop when there is no script, or it is not there: torchrun would only retry that."""
    if not arguments:
        raise Stop(
            USAGE, "no script is given; write: python3 -m bireme_runtime.elastic.supervisor -- SCRIPT ARGS…"
        )
    script = arguments[0]
    if not script.startswith("-") and not os.path.isfile(script):
        raise Stop(
            USAGE, f"the script {script} is not there; check the image, the mounts and the first argument"
        )


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ, launcher: Sequence[str] = LAUNCHER) -> int:
    """Run one worker and return its exit code; `launcher` is the command that stands for torchrun."""
    arguments = list(argv[1:] if argv[:1] == ["--"] else argv)
    try:
        check_script(arguments)
        options = Options.from_env(env)
        backend = make_backend(options, env)
    except Stop as stop:
        say(str(stop))
        return stop.code
    return Supervisor(options, backend, [*launcher, *arguments], env).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
