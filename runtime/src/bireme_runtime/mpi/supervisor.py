"""One pod of an MPI job: `python3 -m bireme_runtime.mpi.supervisor -- PROGRAM ARGS…`.

A worker's pod serves ssh until SIGTERM. The launcher's pod waits until every worker answers, checks with a
probe that mpirun reaches every slot of every worker, and runs the program with mpirun. All pods have the same
arguments; BIREME_MPI_ROLE or, in an Indexed Job, the completion index selects the launcher. docs/mpi.md
describes the environment and the exit codes.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from bireme_runtime.mpi.ssh import Ssh, greet, is_broken
from bireme_runtime.mpi.world import PROBE, World, interface_of
from bireme_runtime.process import children, devices, environment
from bireme_runtime.process.errors import SettingError, Stop
from bireme_runtime.process.exits import CONFIG, TEMPORARY, USAGE, as_shell
from bireme_runtime.process.log import last_words, log_of

TERMINATED = as_shell(-signal.SIGTERM)
_WAIT_SECONDS = 30.0
_PROGRESS_SECONDS = 15.0
_PARALLEL_CONNECTIONS = 32
_EXIT_SECONDS = 5.0
_RANK_VARIABLES = (b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")

say = log_of("mpi")


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Run this pod's role and return its exit code."""
    children.take_charge()
    try:
        return _run(_role(env), list(argv), env)
    except Stop as error:
        say(str(error))
        last_words(str(error), env)
        return error.code
    except SettingError as error:
        say(str(error))
        return CONFIG
    except children.Terminated as end:
        say(str(end))
        return TERMINATED
    finally:
        children.kill_descendants()


def _role(env: Mapping[str, str]) -> str:
    index = env.get("JOB_COMPLETION_INDEX", "")
    role = env.get("BIREME_MPI_ROLE") or {"": "", "0": "launcher"}.get(index, "worker")
    if role not in ("launcher", "worker", "check"):
        raise Stop(CONFIG, "BIREME_MPI_ROLE must be launcher, worker or check outside an Indexed Job")
    return role


def _run(role: str, argv: list[str], env: Mapping[str, str]) -> int:
    if role == "check":
        return _check(env)
    devices.check_efa(env, say)
    if role == "worker":
        return _work(env)
    return _launch(argv, env)


# --- worker ---


def _work(env: Mapping[str, str]) -> int:
    """Serve ssh until SIGTERM, then give this pod's ranks time to save."""
    ssh = Ssh.prepare(env)
    served = ssh.serve()
    try:
        _watch(served, {})
    except children.Terminated as end:
        say(f"{end}: the ranks of this pod have {_grace(env):.0f} s to save")
        ranks = _ranks()
        children.send(ranks, signal.SIGTERM)
        children.wait_for_end(ranks, _grace(env))
        return TERMINATED
    raise Stop(TEMPORARY, "sshd ended unexpectedly; its messages are above")


def _watch(pid: int, ended: dict[int, int]) -> int:
    """Wait until the child ends; returns its exit code."""
    while pid not in ended:
        children.wait(_WAIT_SECONDS, ended)
    return children.exit_code(ended[pid])


def _ranks() -> list[int]:
    """The processes of the program in this pod: those to which mpirun gave a rank."""
    return [
        pid
        for pid in children.descendants(os.getpid())
        if any(name in children.environment(pid) for name in _RANK_VARIABLES)
    ]


# --- launcher ---


def _launch(argv: list[str], env: Mapping[str, str]) -> int:
    """Wait for the workers, check the world, run the program; returns its exit code."""
    as_is, program = _program(argv)
    world = World.from_env(env)
    ssh = Ssh.prepare(env)
    if os.uname().nodename in world.names:
        ssh.serve()
    started = time.monotonic()
    workers = _connect(world, ssh, environment.seconds(env, "BIREME_WAIT_SECONDS", 600))
    interface = interface_of(workers[world.hosts[-1]].getsockname()[0])
    variables = {**env, **world.environment(ssh.client_options, ssh.folder, env, interface)}
    _probe(world, ssh, variables, environment.seconds(env, "BIREME_PROBE_SECONDS", 120))
    say(f"{world.size} ranks on {len(world.hosts)} workers, after {time.monotonic() - started:.1f} s")
    command = program if as_is else world.mpirun(program, variables)
    pid = children.start(command, variables)
    try:
        code = _watch_all(pid, workers)
    except children.Terminated as end:
        say(f"{end}: the ranks have {_grace(env):.0f} s to save")
        return _end(pid, _grace(env))
    if code:
        say(f"the program ended with exit code {code}")
    return as_shell(code)


def _watch_all(pid: int, workers: Mapping[str, socket.socket]) -> int:
    """Wait until mpirun ends; returns its exit code. Raises Stop when a worker is lost before.

    mpirun does not report that reliably: Open MPI 5.0.7 exits with 0 when a host dies, and others hang.
    """
    ended: dict[int, int] = {}
    while not (lost := _lost(workers)) and pid not in ended:
        children.wait(1.0, ended)
    # mpirun may have noticed the loss of a worker before this process did, and then fails most of the time.
    pauses = 1 if ended.get(pid) == 0 else 3
    while not lost and pauses:
        children.pause(1.0)
        lost, pauses = _lost(workers), pauses - 1
    if not lost:
        return children.exit_code(ended[pid])
    children.wait_for_end([pid], _EXIT_SECONDS)
    raise Stop(TEMPORARY, f"{_names(lost)} went away while the program ran, and it needs all workers")


def _lost(workers: Mapping[str, socket.socket]) -> list[str]:
    return [host for host, connection in workers.items() if is_broken(connection)]


def _end(pid: int, grace: float) -> int:
    """Give this pod's ranks time to save, as every other pod does. mpirun would kill them at once."""
    children.send(_ranks(), signal.SIGTERM)
    if children.wait_for_end([pid], grace):
        children.send([pid], signal.SIGTERM)
        children.wait_for_end([pid], _EXIT_SECONDS)
    return TERMINATED


def _program(argv: list[str]) -> tuple[bool, list[str]]:
    as_is = argv[:1] == ["--as-is"]
    program = argv[1:] if as_is else argv
    program = program[1:] if program[:1] == ["--"] else program
    if not program:
        raise Stop(USAGE, "there is no program to run: set script, args or command")
    return as_is, program


def _connect(world: World, ssh: Ssh, seconds: float) -> dict[str, socket.socket]:
    """Wait until the sshd of every worker answers under its name; returns connections by host."""
    deadline, logged = time.monotonic() + seconds, time.monotonic()
    there: dict[str, socket.socket] = {}
    with ThreadPoolExecutor(_PARALLEL_CONNECTIONS) as pool:
        while True:
            missing = [host for host in world.hosts if host not in there]
            answers = pool.map(lambda host: greet(host, ssh.port), missing)
            there.update({host: answer for host, answer in zip(missing, answers) if answer})
            missing = [host for host in missing if host not in there]
            if not missing:
                return there
            if time.monotonic() >= deadline:
                raise Stop(TEMPORARY, f"{_names(missing)}: no sshd answers after {seconds:.0f} s")
            if time.monotonic() - logged >= _PROGRESS_SECONDS:
                logged = time.monotonic()
                say(f"waiting for {len(missing)} of {len(world.hosts)} workers: {_names(missing)}")
            children.pause(0.5)


def _names(hosts: Sequence[str]) -> str:
    few = ", ".join(hosts[:3])
    return f"{few} and {len(hosts) - 3} more" if len(hosts) > 3 else few


def _probe(world: World, ssh: Ssh, env: Mapping[str, str], seconds: float) -> None:
    """Start every rank once. Raises Stop unless mpirun reaches all slots of all workers."""
    output_file = ssh.folder / "probe"
    command = world.mpirun(PROBE, env)
    pid = children.start(["sh", "-c", 'exec "$@" >"$0"', str(output_file), *command], env)
    ended: dict[int, int] = {}
    _until_ended(pid, ended, seconds)
    output = output_file.read_text(errors="replace")
    code = children.exit_code(ended[pid])
    if code:
        print(output, file=sys.stderr)
        raise Stop(TEMPORARY, f"the probe of mpirun failed with exit code {code}; its messages are above")
    world.judge(output)


def _until_ended(pid: int, ended: dict[int, int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while pid not in ended:
        if time.monotonic() >= deadline:
            raise Stop(TEMPORARY, f"the probe of mpirun did not end within {seconds:.0f} s")
        children.wait(min(_WAIT_SECONDS, deadline - time.monotonic()), ended)


# --- check ---


def _check(env: Mapping[str, str]) -> int:
    """Check for `helm test` that this image has everything that a job needs."""
    ssh = Ssh.prepare(env)
    ssh.serve()
    world = World((os.uname().nodename,), 2, env.get("BIREME_MPI_IMPLEMENTATION", "OpenMPI"))
    _connect(world, ssh, 30)
    login = children.start(["ssh", *ssh.client_options, "127.0.0.1", "true"], env)
    code = _watch(login, {})
    if code:
        raise Stop(CONFIG, f"ssh from this pod to itself fails with exit code {code}; its messages are above")
    _probe(world, ssh, {**env, **world.environment(ssh.client_options, ssh.folder, env)}, 60)
    print("the image has what an MPI job needs: a key, sshd, and an mpirun that starts 2 ranks")
    return 0


def _grace(env: Mapping[str, str]) -> float:
    return environment.seconds(env, "BIREME_GRACE_SECONDS", 20)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
