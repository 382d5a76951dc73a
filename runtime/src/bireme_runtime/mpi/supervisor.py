"""One pod of an MPI job: `python3 -m bireme_runtime.mpi.supervisor -- PROGRAM ARGS…`.

A worker's pod serves ssh until SIGTERM. The launcher's pod waits until every worker answers, checks with a
probe that mpirun reaches every slot of every worker, and runs the program with mpirun. In an elastic job it
waits for the fewest workers and runs the program with horovodrun. All pods have the same arguments;
BIREME_MPI_ROLE or, in an Indexed Job, the completion index selects the launcher. docs/mpi.md describes the
environment and the exit codes.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from bireme_runtime.dispatcher.client import leave_for, leave_for_all
from bireme_runtime.dispatcher.notes import VARIABLE, Notes
from bireme_runtime.mpi.earlier import WAITS, ranks_below
from bireme_runtime.mpi.elastic import NO_HOROVODRUN, Discovery, horovodrun
from bireme_runtime.mpi.ssh import Ssh, for_trainers, is_login
from bireme_runtime.mpi.workers import Workers
from bireme_runtime.mpi.world import PROBE, MpiWorld, interface_of
from bireme_runtime.process import children, devices, environment, webhook
from bireme_runtime.process.errors import CONFIG, TEMPORARY, USAGE, Stop, as_shell
from bireme_runtime.process.log import last_words, log_of

TERMINATED = as_shell(-signal.SIGTERM)
_WAIT_SECONDS = 30.0
_PROGRESS_SECONDS = 15.0
_EXIT_SECONDS = 5.0
_SETTLE_SECONDS = 2.0
# Gloo gives up after half a minute by default.
_BLAME_SECONDS = 60.0
# A connection to a machine that died breaks within this time (keepalives in ssh.py).
_SILENT_SECONDS = 35.0

say = log_of("mpi")


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Run this pod's role and return its exit code."""
    children.take_charge()
    reason = ""
    try:
        role = _role(env)
        if role == "check":
            code = _check(env)
        else:
            its_env = devices.for_processes({**env, **for_trainers(env)}, say)
            code = _work(its_env) if role == "worker" else _launch(list(argv), its_env)
    except Stop as error:
        code, reason = error.code, str(error)
        say(reason)
        last_words(reason, env)
    except children.Terminated as end:
        say(str(end))
        return TERMINATED
    finally:
        children.kill_descendants()
    webhook.tell(env, code, reason, lambda: _role(env) == "launcher")
    return code


def _role(env: Mapping[str, str]) -> str:
    index = env.get("JOB_COMPLETION_INDEX", "")
    role = env.get("BIREME_MPI_ROLE") or {"": "", "0": "launcher"}.get(index, "worker")
    if role not in ("launcher", "worker", "check"):
        raise Stop(CONFIG, "BIREME_MPI_ROLE must be launcher, worker or check outside an Indexed Job")
    return role


# --- worker ---


def _work(env: Mapping[str, str]) -> int:
    """Serve ssh until SIGTERM, then give this pod's ranks time to save."""
    ssh = Ssh.prepare(env)
    served = ssh.serve()
    is_elastic = bool(env.get("BIREME_MPI_LEAST"))
    notes = Notes(env[VARIABLE]) if is_elastic and VARIABLE in env else None
    try:
        _serve(served, is_elastic)
    except children.Terminated as end:
        if is_elastic:
            _leave(served, env, end)
            # Ranks that Horovod removed have failed no shard.
            for note in notes.read() if notes else ():
                leave_for(note)
            return TERMINATED
        _let_save(end, env)
        return TERMINATED
    raise Stop(TEMPORARY, "sshd ended unexpectedly; its messages are above")


def _serve(served: int, is_elastic: bool) -> None:
    """Wait until sshd ends. In an elastic job, ranks whose login broke are killed meanwhile.

    Their launcher is gone, and the next one starts others. sshd leaves the processes of a broken login alone.
    """
    ended: dict[int, int] = {}
    while served not in ended:
        if is_elastic:
            children.send(_orphans(), signal.SIGKILL)
        children.wait(1.0 if is_elastic else _WAIT_SECONDS, ended)


def _orphans() -> list[int]:
    """The processes of logins that broke: this process has adopted them."""
    families = [[pid, *children.descendants(pid)] for pid in children.children_of(os.getpid(), but="sshd")]
    return [pid for family in families if any(map(is_login, family)) for pid in family]


def _leave(served: int, env: Mapping[str, str], end: children.Terminated) -> None:
    """Stop answering, so that the launcher leaves this worker out, and wait until the others go on.

    Its ranks end when the program commits next. SIGTERM could make them stop the program.
    """
    ranks = ranks_below(os.getpid())
    say(f"{end}: the program has {_grace(env):.0f} s to commit and go on without the ranks of this pod")
    idle = [pid for pid in children.descendants(served) if not {pid, *children.descendants(pid)} & set(ranks)]
    children.send([served, *idle], signal.SIGKILL)
    children.send(children.wait_for_end(ranks, _grace(env)), signal.SIGKILL)


def _let_save(end: children.Terminated, env: Mapping[str, str]) -> None:
    """Give the ranks of this pod time to save."""
    say(f"{end}: the ranks of this pod have {_grace(env):.0f} s to save")
    ranks = ranks_below(os.getpid())
    children.send(ranks, signal.SIGTERM)
    children.wait_for_end(ranks, _grace(env))


# --- launcher ---


def _launch(argv: list[str], env: Mapping[str, str]) -> int:
    """Wait for the workers, check the world, run the program; returns its exit code."""
    as_is, program = _program(argv)
    world = MpiWorld.from_env(env)
    ssh = Ssh.prepare(env)
    if os.uname().nodename in world.names:
        ssh.serve()
    started = time.monotonic()
    workers = Workers(world.hosts, ssh.port)
    _connect(workers, world.least or len(world.hosts), environment.seconds(env, "BIREME_WAIT_SECONDS", 600))
    interface = interface_of(workers.own_address)
    if world.least:
        return _run_elastic(world, ssh, workers, program, interface, env)
    variables = {**env, **world.environment(ssh.client_options, ssh.folder, env, interface)}
    _probe(world, ssh, variables, environment.seconds(env, "BIREME_PROBE_SECONDS", 120))
    say(f"{world.size} ranks on {len(world.hosts)} workers, after {time.monotonic() - started:.1f} s")
    command = program if as_is else world.mpirun(program, variables)
    pid = children.start(command, variables)
    try:
        code = _watch_all(pid, workers)
    except children.Terminated as end:
        say(f"{end}: the ranks have {_grace(env):.0f} s to save")
        if os.uname().nodename not in world.names:
            # The workers may not have been told to end: a second mpirun ends their ranks as earlier ones.
            children.start(world.mpirun(PROBE, variables), variables)
        # As in every other pod. mpirun would kill them at once.
        children.send(ranks_below(os.getpid()), signal.SIGTERM)
        if children.wait_for_end([pid], _grace(env)):
            children.send([pid], signal.SIGTERM)
            children.wait_for_end([pid], _EXIT_SECONDS)
        leave_for_all(env)
        return TERMINATED
    except Stop:
        # A worker is lost, which is no fault of the shards that the ranks have.
        children.kill_descendants()
        leave_for_all(env)
        raise
    if code:
        say(f"the program ended with exit code {code}")
    return as_shell(code)


def _run_elastic(
    world: MpiWorld,
    ssh: Ssh,
    workers: Workers,
    program: Sequence[str],
    interface: str,
    env: Mapping[str, str],
) -> int:
    """Run the program on the workers that answer, from now on; returns its exit code."""
    # Workers that start together are to be in the first world together.
    children.pause(_SETTLE_SECONDS)
    while workers.greet_missing():
        children.pause(_SETTLE_SECONDS)
    discovery = Discovery(workers, world.slots, ssh.folder / "workers")
    discovery.refresh()
    command = horovodrun(world, discovery, ssh, program, interface, env)
    say(f"{len(workers.present)} workers answer, of {world.least} to {len(world.hosts)}")
    timeout = {"HOROVOD_ELASTIC_TIMEOUT": env.get("BIREME_WAIT_SECONDS", "600")}
    variables = {**timeout, **env, "PATH": f"{ssh.programs}:{env.get('PATH', os.defpath)}"}
    pid = children.start(command, variables)
    ended: dict[int, int] = {}
    last_loss = -math.inf
    try:
        while pid not in ended:
            children.wait(1.0, ended)
            running = [children.told(each, "cmdline") for each in children.descendants(pid)]
            went, came = discovery.refresh(b"\n".join(running).decode(errors="replace"))
            last_loss = time.monotonic() if went else last_loss
            for hosts, verb in ((went, "went away"), (came, "answers")):
                if hosts:
                    say(f"{_names(hosts)} {verb}: {len(workers.present)} workers")
    except children.Terminated as end:
        _let_save(end, env)
        children.send([pid], signal.SIGTERM)
        children.wait_for_end([pid], _EXIT_SECONDS)
        leave_for_all(env)
        return TERMINATED
    code = children.exit_code(ended[pid])
    if time.monotonic() - last_loss < _BLAME_SECONDS:
        # Gloo ended the ranks because a worker was lost, so their shards have not failed.
        leave_for_all(env)
    if code:
        say(f"horovodrun ended with exit code {code}")
    return as_shell(code)


def _watch_all(pid: int, workers: Workers) -> int:
    """Wait until mpirun ends; returns its exit code. Raises Stop when a worker is lost before.

    mpirun does not report that reliably: Open MPI 5.0.7 exits with 0 when a host dies, and others hang.
    """
    ended: dict[int, int] = {}
    while not (lost := workers.drop_lost()) and pid not in ended:
        children.wait(1.0, ended)
    # mpirun may have noticed the loss of a worker before this process did, and then fails most of the time.
    pauses = 1 if ended.get(pid) == 0 else 3
    while not lost and pauses:
        children.pause(1.0)
        lost, pauses = workers.drop_lost(), pauses - 1
    # A machine that died closes nothing, and mpirun's own connection may break seconds before this one.
    deadline = time.monotonic() + _SILENT_SECONDS
    while not lost and workers.silent() and time.monotonic() < deadline:
        children.pause(1.0)
        lost = workers.drop_lost()
    if not lost:
        return children.exit_code(ended[pid])
    children.wait_for_end([pid], _EXIT_SECONDS)
    raise Stop(TEMPORARY, f"{_names(lost)} went away while the program ran, and it needs all workers")


def _program(argv: list[str]) -> tuple[bool, list[str]]:
    as_is = argv[:1] == ["--as-is"]
    program = argv[1:] if as_is else argv
    program = program[1:] if program[:1] == ["--"] else program
    if not program:
        raise Stop(USAGE, "there is no program to run: set script, args or command")
    return as_is, program


def _connect(workers: Workers, least: int, seconds: float) -> None:
    """Wait until the sshd of at least so many workers answers under its name."""
    deadline, logged = time.monotonic() + seconds, time.monotonic()
    while True:
        workers.greet_missing()
        workers.drop_lost()
        if len(workers.present) >= least:
            return
        missing = workers.missing
        if time.monotonic() >= deadline:
            raise Stop(TEMPORARY, f"{_names(missing)}: no sshd answers after {seconds:.0f} s")
        if time.monotonic() - logged >= _PROGRESS_SECONDS:
            logged = time.monotonic()
            say(f"waiting for {least - len(workers.present)} of {least} workers: {_names(missing)}")
        children.pause(0.5)


def _names(hosts: Sequence[str]) -> str:
    few = ", ".join(hosts[:3])
    return f"{few} and {len(hosts) - 3} more" if len(hosts) > 3 else few


def _probe(world: MpiWorld, ssh: Ssh, env: Mapping[str, str], seconds: float) -> None:
    """Start every rank once. Raises Stop unless mpirun reaches all slots of all workers."""
    output_file = ssh.folder / "probe"
    command = world.mpirun(PROBE, env)
    pid = children.start(["sh", "-c", 'exec "$@" >"$0"', str(output_file), *command], env)
    ended: dict[int, int] = {}
    deadline, waits = time.monotonic() + seconds, False
    while pid not in ended:
        if time.monotonic() >= deadline:
            raise Stop(TEMPORARY, f"the probe of mpirun did not end within {seconds:.0f} s")
        children.wait(min(1.0, deadline - time.monotonic()), ended)
        if not waits and output_file.exists() and WAITS in output_file.read_text(errors="replace"):
            waits, deadline = True, deadline + _grace(env)
            say(f"ranks of an earlier launcher are still there: they have {_grace(env):.0f} s to save")
    output = output_file.read_text(errors="replace")
    code = children.exit_code(ended[pid])
    if code:
        print(output, file=sys.stderr)
        raise Stop(TEMPORARY, f"the probe of mpirun failed with exit code {code}; its messages are above")
    world.judge(output)


# --- check ---


def _check(env: Mapping[str, str]) -> int:
    """Check for `helm test` that this image has everything that a job needs."""
    ssh = Ssh.prepare(env)
    ssh.serve()
    world = MpiWorld((os.uname().nodename,), 2, env.get("BIREME_MPI_IMPLEMENTATION", "OpenMPI"))
    _connect(Workers(world.hosts, ssh.port), 1, 30)
    ended: dict[int, int] = {}
    login = children.start(["ssh", *ssh.client_options, "127.0.0.1", "true"], env)
    while login not in ended:
        children.wait(_WAIT_SECONDS, ended)
    if code := children.exit_code(ended[login]):
        raise Stop(CONFIG, f"ssh from this pod to itself fails with exit code {code}; its messages are above")
    if env.get("BIREME_MPI_LEAST"):
        return _check_horovod()
    _probe(world, ssh, {**env, **world.environment(ssh.client_options, ssh.folder, env)}, 60)
    print("the image has what an MPI job needs: a key, sshd, and an mpirun that starts 2 ranks")
    return 0


def _check_horovod() -> int:
    try:
        build = subprocess.run(["horovodrun", "--check-build"], capture_output=True, text=True, check=False)
    except OSError:
        raise Stop(CONFIG, NO_HOROVODRUN) from None
    if "[X] Gloo" not in build.stdout:
        raise Stop(
            CONFIG, f"the image's Horovod has no Gloo, which elastic jobs need:\n{build.stdout}{build.stderr}"
        )
    print("the image has what an elastic job needs: a key, sshd, and a horovodrun with Gloo")
    return 0


def _grace(env: Mapping[str, str]) -> float:
    return environment.seconds(env, "BIREME_GRACE_SECONDS", 20)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
