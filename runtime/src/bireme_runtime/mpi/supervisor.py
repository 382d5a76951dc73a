"""One pod of an MPI job: `python3 -m bireme_runtime.mpi.supervisor -- PROGRAM ARGS…`.

A worker's pod serves ssh until it is told to end. The launcher's waits until every worker answers, checks by
a probe that the world has every slot on every worker, and runs the program by mpirun. The arguments are the
same for all: BIREME_MPI_ROLE or, in an Indexed Job, the completion index says who launches. docs/mpi.md has
the environment and the exit codes.
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
from bireme_runtime.process import children
from bireme_runtime.process.exits import CONFIG, TEMPORARY, USAGE, Stop

TOLD_TO_END = 143
_LOOK_SECONDS = 30.0
_SAY_SECONDS = 15.0
_AT_ONCE = 32
_LAST_WORDS_SECONDS = 5.0
_RANK_VARIABLES = (b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Play this pod's role and return its exit code."""
    children.take_charge()
    try:
        return _play(_role(env), list(argv), env)
    except Stop as error:
        _say(str(error))
        return error.code
    except children.Terminated as end:
        _say(str(end))
        return TOLD_TO_END
    finally:
        children.kill_descendants()


def _role(env: Mapping[str, str]) -> str:
    index = env.get("JOB_COMPLETION_INDEX", "")
    role = env.get("BIREME_MPI_ROLE") or {"": "", "0": "launcher"}.get(index, "worker")
    if role not in ("launcher", "worker", "check"):
        raise Stop(CONFIG, "BIREME_MPI_ROLE must be launcher, worker or check outside an Indexed Job")
    return role


def _play(role: str, argv: list[str], env: Mapping[str, str]) -> int:
    if role == "worker":
        return _work(env)
    if role == "check":
        return _check(env)
    return _launch(argv, env)


# --- worker ---


def _work(env: Mapping[str, str]) -> int:
    """Serve ssh until told to end, then give the ranks here time to save."""
    ssh = Ssh.prepare(env)
    served = ssh.serve()
    try:
        _watch(served, {})
    except children.Terminated as end:
        _say(f"{end}: the ranks here have {_grace(env):.0f} s to save")
        ranks = _ranks()
        children.send(ranks, signal.SIGTERM)
        children.wait_for_end(ranks, _grace(env), lambda: None)
        return TOLD_TO_END
    raise Stop(TEMPORARY, "sshd ended by itself; what it said is above")


def _watch(pid: int, ended: dict[int, int]) -> int:
    """Wait until this child ends, and return its exit code."""
    while pid not in ended:
        children.wait(_LOOK_SECONDS, ended)
    return children.exit_code(ended[pid])


def _ranks() -> list[int]:
    """The processes of the program in this pod: those that mpirun gave a rank."""
    return [
        pid
        for pid in children.descendants(os.getpid())
        if any(name in children.environment(pid) for name in _RANK_VARIABLES)
    ]


# --- launcher ---


def _launch(argv: list[str], env: Mapping[str, str]) -> int:
    """Wait for the workers, check the world, run the program, and return its exit code."""
    as_is, program = _program(argv)
    world = World.from_env(env)
    ssh = Ssh.prepare(env)
    if os.uname().nodename in world.names:
        ssh.serve()
    started = time.monotonic()
    workers = _meet(world, ssh, float(env.get("BIREME_WAIT_SECONDS", "600")))
    interface = interface_of(workers[world.hosts[-1]].getsockname()[0])
    surroundings = {**env, **world.environment(ssh.client_options, ssh.folder, env, interface)}
    _probe(world, ssh, surroundings, float(env.get("BIREME_PROBE_SECONDS", "120")))
    _say(f"{world.size} ranks on {len(world.hosts)} workers, after {time.monotonic() - started:.1f} s")
    command = program if as_is else world.mpirun(program, surroundings)
    pid = children.start(command, surroundings)
    try:
        code = _watch_all(pid, workers)
    except children.Terminated as end:
        _say(f"{end}: the ranks have {_grace(env):.0f} s to save")
        return _end(pid, _grace(env))
    if code:
        _say(f"the program ended with exit code {code}")
    return code if code >= 0 else 128 - code


def _watch_all(pid: int, workers: Mapping[str, socket.socket]) -> int:
    """Wait until mpirun ends, and return its exit code. Raises Stop when a worker goes before.

    mpirun cannot be asked: the one of Open MPI 5.0.7 exits 0 when a host dies, and others hang.
    """
    ended: dict[int, int] = {}
    while not (lost := _lost(workers)) and pid not in ended:
        children.wait(1.0, ended)
    if not lost and ended[pid] == 0:
        # Who has heard of a worker's end before us?
        children.pause(1.0)
        lost = _lost(workers)
    if not lost:
        return children.exit_code(ended[pid])
    children.wait_for_end([pid], _LAST_WORDS_SECONDS, lambda: None)
    raise Stop(TEMPORARY, f"{_these(lost)} went away while the program ran, which cannot go on without")


def _lost(workers: Mapping[str, socket.socket]) -> list[str]:
    return [host for host, connection in workers.items() if is_broken(connection)]


def _end(pid: int, grace: float) -> int:
    """Let the ranks save: those here are told, those of other pods by their own. mpirun would kill them."""
    children.send(_ranks(), signal.SIGTERM)
    if children.wait_for_end([pid], grace, lambda: None):
        children.send([pid], signal.SIGTERM)
        children.wait_for_end([pid], _LAST_WORDS_SECONDS, lambda: None)
    return TOLD_TO_END


def _program(argv: list[str]) -> tuple[bool, list[str]]:
    as_is = argv[:1] == ["--as-is"]
    program = argv[1:] if as_is else argv
    program = program[1:] if program[:1] == ["--"] else program
    if not program:
        raise Stop(USAGE, "there is no program to run: set script, args or command")
    return as_is, program


def _meet(world: World, ssh: Ssh, seconds: float) -> dict[str, socket.socket]:
    """Wait until the sshd of every worker answers under its name; connections to all of them, by host."""
    deadline, said = time.monotonic() + seconds, time.monotonic()
    there: dict[str, socket.socket] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        while True:
            missing = [host for host in world.hosts if host not in there]
            answers = pool.map(lambda host: greet(host, ssh.port), missing)
            there.update({host: answer for host, answer in zip(missing, answers) if answer})
            missing = [host for host in missing if host not in there]
            if not missing:
                return there
            if time.monotonic() >= deadline:
                raise Stop(TEMPORARY, f"{_these(missing)}: no sshd answers after {seconds:.0f} s")
            if time.monotonic() - said >= _SAY_SECONDS:
                said = time.monotonic()
                _say(f"waiting for {len(missing)} of {len(world.hosts)} workers: {_these(missing)}")
            children.pause(0.5)


def _these(hosts: Sequence[str]) -> str:
    few = ", ".join(hosts[:3])
    return f"{few} and {len(hosts) - 3} more" if len(hosts) > 3 else few


def _probe(world: World, ssh: Ssh, env: Mapping[str, str], seconds: float) -> None:
    """Start every rank once: a world that does not reach all slots of all workers must not train."""
    said = ssh.folder / "probe"
    command = world.mpirun(PROBE, env)
    pid = children.start(["sh", "-c", 'exec "$@" >"$0"', str(said), *command], env)
    ended: dict[int, int] = {}
    _until_ended(pid, ended, seconds)
    output = said.read_text(errors="replace")
    code = children.exit_code(ended[pid])
    if code:
        print(output, file=sys.stderr)
        raise Stop(TEMPORARY, f"the probe of mpirun failed with exit code {code}; it says why above")
    world.judge(output)


def _until_ended(pid: int, ended: dict[int, int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while pid not in ended:
        if time.monotonic() >= deadline:
            raise Stop(TEMPORARY, f"the probe of mpirun did not end within {seconds:.0f} s")
        children.wait(min(_LOOK_SECONDS, deadline - time.monotonic()), ended)


# --- check ---


def _check(env: Mapping[str, str]) -> int:
    """What `helm test` asks: does this image do all that a job needs of it, here and now?"""
    ssh = Ssh.prepare(env)
    ssh.serve()
    world = World((os.uname().nodename,), 2, env.get("BIREME_MPI_IMPLEMENTATION", "OpenMPI"))
    _meet(world, ssh, 30)
    login = children.start(["ssh", *ssh.client_options, "127.0.0.1", "true"], env)
    code = _watch(login, {})
    if code:
        raise Stop(CONFIG, f"ssh from this pod to itself fails with exit code {code}; it says why above")
    _probe(world, ssh, {**env, **world.environment(ssh.client_options, ssh.folder, env)}, 60)
    print("the image has what an MPI job needs: a key, sshd, and an mpirun that starts 2 ranks")
    return 0


def _grace(env: Mapping[str, str]) -> float:
    return float(env.get("BIREME_GRACE_SECONDS", "20"))


def _say(words: str) -> None:
    print(f"bireme: {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
