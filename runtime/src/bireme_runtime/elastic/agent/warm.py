"""Warm starts: processes forked from a *template*, which has imported what the training script imports.

Of the seconds between a loss and the next step, most are the start of Python and the import of torch. The
supervisor starts one template, which is launch.py with the variable BIREME_WARM_FD. Every agent is forked
from it, and each agent first forks a template of its own, from which its ranks are forked. A template has one
thread and no open device, or it says why it cannot be used, and starts are cold.

A forked process is no child of its template but of whoever adopts orphans: an agent of the supervisor, a rank
of its agent. So both see it end as they see their own children.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import io
import json
import os
import random
import socket
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme_runtime.process import children
from bireme_runtime.process.http import Address, accepts
from bireme_runtime.process.waiting import readable

SOCKET_FD, MODULES = "BIREME_WARM_FD", "BIREME_WARM_MODULES"
TEMPLATE_NAME = "bireme-template"
AUTO = "auto"
_AGENT, _SCRIPT = "agent", "script"
# DistributedDataParallel and optimizers import _dynamo at their first use, which takes half as long as torch.
_ALWAYS = ("torch", "torch.distributed.run", "torch._dynamo")
# What libraries read once, when they are imported.
_READ_AT_IMPORT = ("GOMP_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON")
_DEVICES = ("/dev/nvidia", "/dev/neuron", "/dev/infiniband", "/dev/kfd")
_FORK_SECONDS = 60.0
# For so long ranks see whether rank 0's store is open, and so often all together.
_STORE_SECONDS, _TRIES_PER_SECOND = 10.0, 20_000
_PR_SET_NAME = 15


class Unusable(Exception):
    """The template cannot fork this process; the text says why."""


@dataclass(frozen=True)
class ForkRequest:
    """A process to fork: an agent with torchrun's arguments, or a script with those after ``python3 -u``.

    ``descriptors`` are passed on: the names of the variables that will hold their numbers, or "1" and "2" for
    the outputs.
    """

    kind: str
    arguments: tuple[str, ...]
    env: Mapping[str, str]
    folder: str
    descriptors: tuple[str, ...] = ()


class Template:
    """The way to ask a template for processes. Not thread-safe."""

    def __init__(self, ours: socket.socket, env: Mapping[str, str], pid: int = 0) -> None:
        self._socket = ours
        self._env = env
        self.pid = pid

    def ask(self, request: ForkRequest, descriptors: Sequence[int] = ()) -> None:
        """Ask for a process; ``answer`` tells when it is there. Raises Unusable when it cannot be forked."""
        differing = _read_at_import(request.env) ^ _read_at_import(self._env)
        if differing:
            names = ", ".join(sorted({name for name, _ in differing}))
            raise Unusable(f"{names} differs from what was set when the modules were imported")
        try:
            _send(self._socket, vars(request), descriptors)
        except OSError as error:
            raise Unusable(f"the template has ended: {error}") from error

    def answer(self, seconds: float) -> int | None:
        """The id of the process asked for, or None when it is not there in time. Raises Unusable."""
        if not readable(self._socket, seconds):
            return None
        try:
            answer, _ = _receive(self._socket)
        except (OSError, ValueError) as error:
            raise Unusable(f"the template has ended: {error}") from error
        if answer is None:
            raise Unusable("the template has ended")
        if "why" in answer:
            raise Unusable(str(answer["why"]))
        return int(answer["pid"])

    def close(self) -> None:
        """End the template."""
        self._socket.close()


def start(command: Sequence[str], env: Mapping[str, str], output: tuple[int, int] | None = None) -> Template:
    """Start a template by the command that starts an agent, with the script among its arguments.

    ``output``: the descriptors that will be standard output and error of all processes forked from it.
    """
    ours, its = socket.socketpair()
    with its:
        os.set_inheritable(its.fileno(), True)
        env = {**env, **_threads_as_torchrun_sets_them(env)}
        pid = children.start(command, {**env, SOCKET_FD: str(its.fileno())}, output)
    return Template(ours, env, pid)


RunAgent = Callable[[Sequence[str], Template], int]


def agent_request(arguments: Sequence[str], env: Mapping[str, str], pipes: Sequence[str]) -> ForkRequest:
    """The request for an agent; the descriptors that are sent along will stand in the variables ``pipes``."""
    env = {**env, **_threads_as_torchrun_sets_them(env)}
    return ForkRequest(_AGENT, tuple(arguments), env, os.getcwd(), tuple(pipes))


def _threads_as_torchrun_sets_them(env: Mapping[str, str]) -> dict[str, str]:
    """OMP_NUM_THREADS as torchrun sets it for ranks, because libraries read it when they are imported."""
    several = env.get("PET_NPROC_PER_NODE", "1") != "1"
    return {"OMP_NUM_THREADS": "1"} if several and "OMP_NUM_THREADS" not in env else {}


def _read_at_import(env: Mapping[str, str]) -> set[tuple[str, str]]:
    return {(name, value) for name, value in env.items() if name.startswith(_READ_AT_IMPORT)}


# --- the side of the agent -----------------------------------------------------------------------------


def fork_ranks_from(template: Template, say: Callable[[str], None]) -> None:
    """Let torch's agent in this process start its ranks by the template, where it can.

    Other programs, and ranks whose environment differs in what is read at import, start cold.
    """
    api = importlib.import_module("torch.distributed.elastic.multiprocessing.api")
    handler: Any = api.SubprocessHandler
    stock = handler._popen
    made: set[int] = set()

    def popen(self: Any, args: Sequence[str], env: Mapping[str, str]) -> Any:
        # What ranks before have left behind is this process's since they ended; torch waits for ranks only.
        children.reap(made)
        outputs = [getattr(self, name, None) for name in ("_stdout", "_stderr")]
        numbers = {str(at): each.fileno() for at, each in enumerate(outputs, 1) if each is not None}
        try:
            request = _script_request(args, env, tuple(numbers))
            template.ask(request, tuple(numbers.values()))
            pid = template.answer(_FORK_SECONDS)
            if pid is None:
                raise Unusable(f"the template did not answer in {_FORK_SECONDS:.0f} s")
        except Unusable as reason:
            say(f"this rank starts cold: {reason}")
            return stock(self, args, env)
        made.add(pid)
        return Forked(pid, args)

    handler._popen = popen


def _script_request(args: Sequence[str], env: Mapping[str, str], descriptors: tuple[str, ...]) -> ForkRequest:
    if tuple(args[:2]) != (sys.executable, "-u") or len(args) < 3:
        raise Unusable(f"{args[0]} is not started as a Python script")
    if args[2] != "-m" and not args[2].endswith(".py"):
        raise Unusable(f"{args[2]} is neither a .py file nor a module")
    return ForkRequest(_SCRIPT, tuple(args[2:]), dict(env), os.getcwd(), descriptors)


class Forked:
    """A process that a template made and this process adopted, as far as torch uses subprocess.Popen."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self.pid = pid
        self.args = args
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code; minus the signal that killed it; None while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 0
            if pid:
                self.returncode = children.exit_code(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended. Raises subprocess.TimeoutExpired after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


# --- the side of the template --------------------------------------------------------------------------


def imports_of(script: Path) -> list[str]:
    """The modules that a script imports at its top level. None of a file that cannot be read or parsed."""
    try:
        body = ast.parse(script.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    found: list[str] = []
    for each in body:
        if isinstance(each, ast.Import):
            found += [alias.name for alias in each.names]
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            found.append(each.module)
    return found


def _installed(names: Sequence[str], own: str) -> Iterator[str]:
    """The modules that are installed. The script's own, beside it, may do anything when they are imported."""
    for name in names:
        with contextlib.suppress(ImportError, ValueError, AttributeError):
            spec = importlib.util.find_spec(name.partition(".")[0])
            places = [spec.origin or "", *(spec.submodule_search_locations or ())] if spec else []
            if spec and not any(own and place.startswith(own + os.sep) for place in places):
                yield name


def _import_all(arguments: Sequence[str]) -> None:
    given = os.environ.get(MODULES, AUTO)
    script = next((each for each in arguments if each.endswith(".py")), "")
    names = imports_of(Path(script)) if given == AUTO else given.split(",")
    own = os.path.dirname(os.path.abspath(script)) if script else ""
    # Asking for devices by NVML leaves CUDA as it is, so that it can start in forked processes.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    for name in dict.fromkeys([*_ALWAYS, *_installed(names, own)]):
        # A script that cannot import it says so itself.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _unfit() -> str:
    """Why forked processes would not be like fresh ones; "" when they are."""
    # BLAS libraries end their threads before a fork: the first one shows what is left.
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"an imported module keeps {threads - 1} threads running"
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{each}")
            if target.startswith(_DEVICES):
                return f"an imported module has opened {target}"
    return ""


def _serve(link: socket.socket, why: str) -> ForkRequest | None:
    """Fork a process for each request; returns the request in that process, and None at the end."""
    while True:
        try:
            received, descriptors = _receive(link)
        except (OSError, ValueError):
            return None
        if received is None:
            return None
        if why:
            _close(descriptors)
            _send(link, {"why": why})
            continue
        request = ForkRequest(**received)
        forked = _fork_orphan()
        if not forked:
            link.close()
            _become(request, descriptors)
            return request
        _close(descriptors)
        _send(link, {"pid": forked})


def _fork_orphan() -> int:
    """Fork a process that is not this one's child. Returns its id, and 0 in that process."""
    reading, writing = os.pipe()
    middle = os.fork()
    if not middle:
        if os.fork():
            os._exit(0)
        # Its group first: whoever gets its id may send the group a signal.
        os.setsid()
        os.close(reading)
        os.write(writing, str(os.getpid()).encode())
        os.close(writing)
        return 0
    os.close(writing)
    pid = int(os.read(reading, 32))
    os.close(reading)
    # Only after this end has somebody adopted it.
    os.waitpid(middle, 0)
    return pid


def _become(request: ForkRequest, descriptors: Sequence[int]) -> None:
    """Take on the environment, folder, outputs and name of a fresh process."""
    env = dict(request.env)
    for name, descriptor in zip(request.descriptors, descriptors):
        if name.isdigit():
            os.dup2(descriptor, int(name))
            os.close(descriptor)
        else:
            os.set_inheritable(descriptor, True)
            env[name] = str(descriptor)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(request.folder)
    _name("python3")
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # Fresh processes draw different numbers; the standard library sees to its own generator.
        numpy.random.seed()
    # Threads do not outlive a fork.
    record = getattr(sys.modules.get("sitecustomize"), "record_on_request", None)
    if record is not None:
        record()


def _run(request: ForkRequest, run_agent: RunAgent) -> int:
    if request.kind == _AGENT:
        return _with_template(request, run_agent)
    _run_script(request.arguments)
    return 0


def _with_template(agent: ForkRequest, run_agent: RunAgent) -> int:
    """Run an agent with a template of its own, which does not keep the agent's descriptors open."""
    ours, its = socket.socketpair()
    if not os.fork():
        ours.close()
        _close([int(os.environ[name]) for name in agent.descriptors])
        _name(TEMPLATE_NAME)
        request = _serve(its, "")
        if request is None:
            os._exit(0)
        return _run(request, run_agent)
    its.close()
    children.adopt_orphans()
    return run_agent(agent.arguments, Template(ours, dict(os.environ)))


def _run_script(arguments: Sequence[str]) -> None:
    """Run a script or module as `python3 -u` does. Its exceptions end this process in the same way."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw, old = os.fdopen(descriptor, "wb", 0, closefd=False), getattr(sys, name)
        fresh = io.TextIOWrapper(raw, old.encoding, old.errors, write_through=True)
        setattr(sys, name, fresh)
        setattr(sys, f"__{name}__", fresh)
    if arguments[0] == "-m":
        runpy = importlib.import_module("runpy")
        sys.argv = list(arguments[1:])
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    script = arguments[0]
    sys.argv = list(arguments)
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    main = types.ModuleType("__main__")
    main.__file__ = script
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    exec(compile(Path(script).read_bytes(), script, "exec"), main.__dict__)


def _reach_stores_soon() -> None:
    """Let a rank wait until rank 0 opens its store: torch tries again after half a second."""
    rendezvous: Any = sys.modules.get("torch.distributed.rendezvous")
    stock: Any = getattr(rendezvous, "_create_c10d_store", None)

    def create(hostname: str, port: int, rank: int, world_size: int, *rest: Any, **named: Any) -> Any:
        deadline, pause = time.monotonic() + _STORE_SECONDS, max(0.02, world_size / _TRIES_PER_SECOND)
        while rank and time.monotonic() < deadline and not accepts(Address(hostname, port), 1.0):
            time.sleep(pause * random.uniform(0.5, 1.5))
        return stock(hostname, port, rank, world_size, *rest, **named)

    if stock is not None:
        rendezvous._create_c10d_store = create


def main(arguments: Sequence[str], run_agent: RunAgent) -> int:
    """Be a template; in the processes that are forked, be what was asked for. Returns the exit code."""
    link = socket.socket(fileno=int(os.environ.pop(SOCKET_FD)))
    link.set_inheritable(False)
    _name(TEMPLATE_NAME)
    _import_all(arguments)
    _reach_stores_soon()
    gc.collect()
    gc.freeze()
    request = _serve(link, _unfit())
    return 0 if request is None else _run(request, run_agent)


def _name(name: str) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


# --- messages: JSON in a file of memory, whose descriptor travels before the others ----------------------


def _send(link: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    with os.fdopen(os.memfd_create("bireme-message"), "w", encoding="utf-8") as file:
        json.dump(message, file)
        file.flush()
        socket.send_fds(link, [b"!"], [file.fileno(), *descriptors])


def _receive(link: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    _, received, _, _ = socket.recv_fds(link, 1, 9)
    if not received:
        return None, []
    first, *descriptors = received
    with os.fdopen(first, encoding="utf-8") as file:
        # The position is that of the sender.
        file.seek(0)
        return json.load(file), descriptors


def _close(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        os.close(each)
