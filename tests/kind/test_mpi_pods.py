"""The entry point of MPI jobs in containers on one network, as in pods but without a cluster."""

from __future__ import annotations

import functools
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bireme.core.paths import Paths
from tests.kind.shell import until
from tests.support.tiers import core

# Images by their recipe, and the chart's name of their MPI.
IMPLEMENTATIONS = {"mpi-4": "OpenMPI", "mpi-5": "OpenMPI", "mpi-intel": "Intel", "mpi-mpich": "MPICH"}
OTHERS = ("mpi-intel", "mpi-mpich")
USER = ["--user=1000", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
ROOT = ["--user=0", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
ROOT += [f"--cap-add={name}" for name in ("SETUID", "SETGID", "SYS_CHROOT")]
EACH_MPI = core("mpi-5", of=IMPLEMENTATIONS)
MAKE_KEY = "ssh-keygen -q -t ecdsa -m PEM -N '' -f /tmp/key && cat /tmp/key"

# Each step is an all-reduce. When one rank gets SIGTERM, every rank saves and prints so.
STEPS = """
import os, signal, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(True))
for step in range(int(sys.argv[1])):
    total = world.allreduce(world.rank + 1)
    assert total == world.size * (world.size + 1) // 2
    if step in (0, 5):
        place = f"rank {world.rank} of {world.size} on {os.uname().nodename}"
        print(f"step {step}:", place, os.environ["WORD"], flush=True)
    time.sleep(0.1)
    if world.allreduce(len(told)):
        print(f"rank {world.rank} saved", flush=True)
        time.sleep(2)
        os._exit(1)
"""


def docker(*arguments: str) -> str:
    """What the engine prints; the test fails with its message when it fails."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def image(build: Callable[..., list[str]]) -> Callable[[str], str]:
    """``image("mpi-mpich")``: its tag, once it is there."""

    @functools.cache
    def _image(mpi: str) -> str:
        (tag,) = build("image", mpi)
        return tag

    return _image


@dataclass(frozen=True)
class Pods:
    """Containers with two slots each on their own network; the first one is the launcher."""

    job: str

    def start(self, indices: Sequence[int], options: list[str], program: list[str], **env: str) -> None:
        """Start these, with the image and further options; they find each other by their names."""
        told = {"PYTHONPATH": "/bireme/runtime", "PYTHONDONTWRITEBYTECODE": "1", "WORD": 'it\'s "told" $HOME'}
        told |= {"BIREME_MPI_HOSTS": f"{self.job}-{{}}", "BIREME_MPI_WORKERS": "2", "BIREME_MPI_SLOTS": "2"}
        variables = [f"--env={name}={value}" for name, value in (told | env).items()]
        for index in indices:
            own = [f"--name={self.job}-{index}", f"--hostname={self.job}-{index}", f"--network={self.job}"]
            own += [f"--env=JOB_COMPLETION_INDEX={index}", "--tmpfs=/bireme/mpi:mode=1777"]
            entry = ["python3", "-m", "bireme_runtime.mpi.supervisor"]
            docker("run", "--detach", *own, *variables, *options, *entry, *program)

    def output(self, index: int = 0) -> str:
        """What a container, by default the launcher's, has printed."""
        return docker("logs", f"{self.job}-{index}")

    def exit_code(self, index: int = 0) -> int:
        """Wait for the end of a container."""
        return int(docker("wait", f"{self.job}-{index}"))

    def until_printed(self, words: str) -> None:
        """Wait until the launcher has printed this."""
        until(lambda: words in self.output(), what=f"the launcher to print {words!r}")


@pytest.fixture
def start(image: Callable[[str], str], bireme_paths: Paths, tmp_path: Path) -> Iterator[Callable[..., Pods]]:
    """``start("mpi-5", USER, ["python3", "/steps.py", "10"])``: two pods with one key, removed at the end.

    ``command``: the program starts its ranks itself. ``indices``: of the pods that start; more can later.
    """
    pods = Pods(f"mpi-{uuid.uuid4().hex[:6]}")
    docker("network", "create", pods.job)

    def _start(
        mpi: str,
        options: list[str],
        program: list[str],
        command: bool = False,
        indices: Sequence[int] = (1, 0),
        **env: str,
    ) -> Pods:
        tag = image(mpi)
        key, steps = tmp_path / "id_rsa", tmp_path / "steps.py"
        if not key.exists():
            key.write_text(docker("run", "--rm", tag, "sh", "-c", MAKE_KEY))
            key.chmod(0o444)
        steps.write_text(STEPS)
        files = {
            bireme_paths.root / "runtime/src": "/bireme/runtime",
            key: "/bireme/ssh/id_rsa",
            steps: "/steps.py",
        }
        mounts = [f"--volume={source}:{target}:ro" for source, target in files.items()]
        env["BIREME_MPI_IMPLEMENTATION"] = IMPLEMENTATIONS.get(mpi, "OpenMPI")
        how = ["--as-is", "--"] if command else ["--"]
        pods.start(indices, [*mounts, *options, tag], [*how, *program], **env)
        return pods

    yield _start
    for index in range(4):
        subprocess.run(["docker", "rm", "--force", f"{pods.job}-{index}"], capture_output=True, check=False)
    docker("network", "rm", pods.job)


@pytest.mark.parametrize("mpi", EACH_MPI)
def test_a_worker_that_is_killed_ends_the_job_and_is_named(start: Callable[..., Pods], mpi: str) -> None:
    pods = start(mpi, USER, ["python3", "/steps.py", "3000"])
    pods.until_printed("step 5")
    docker("kill", f"{pods.job}-1")
    assert pods.exit_code() == 75
    assert f"{pods.job}-1 went away while the program ran" in pods.output()


@pytest.mark.whole
def test_the_programs_exit_code_is_the_jobs(start: Callable[..., Pods]) -> None:
    pods = start("mpi-5", USER, ["sh", "-c", "exit 3"])
    assert pods.exit_code() == 3


@pytest.mark.whole
@pytest.mark.parametrize("mpi", ["mpi-5", *OTHERS])
def test_ranks_save_when_all_pods_are_told_to_end(start: Callable[..., Pods], mpi: str) -> None:
    pods = start(mpi, USER, ["python3", "/steps.py", "3000"])
    pods.until_printed("step 5")
    docker("kill", "--signal=TERM", f"{pods.job}-0", f"{pods.job}-1")
    assert (pods.exit_code(0), pods.exit_code(1)) == (143, 143)
    assert {f"rank {rank} saved" for rank in (0, 1)} <= set(pods.output().splitlines()), pods.output()


@pytest.mark.whole
@pytest.mark.parametrize("mpi", ["mpi-5", *OTHERS])
def test_the_ranks_of_an_earlier_launcher_save_before_others_start(
    start: Callable[..., Pods], mpi: str
) -> None:
    # As in an MPIJob, whose launchers have pods of their own.
    pods = start(mpi, USER, ["python3", "/steps.py", "0"], indices=(0, 1), BIREME_MPI_ROLE="worker")
    launch = functools.partial(start, mpi, USER, BIREME_MPI_ROLE="launcher")
    launch(["python3", "/steps.py", "3000"], indices=(2,))
    until(lambda: "step 5" in pods.output(2), what="the first steps")
    launch(["python3", "/steps.py", "1"], indices=(3,))
    assert pods.exit_code(3) == 0, pods.output(3)
    assert "ranks of an earlier launcher are still there" in pods.output(3)
    assert {f"rank {rank} saved" for rank in (0, 1)} <= set(pods.output(2).splitlines()), pods.output(2)


@pytest.mark.whole
def test_a_worker_that_never_comes_is_waited_for_and_named(start: Callable[..., Pods]) -> None:
    pods = start("mpi-5", USER, ["true"], BIREME_MPI_WORKERS="3", BIREME_WAIT_SECONDS="3")
    assert pods.exit_code() == 75
    assert f"{pods.job}-2: no sshd answers after 3 s" in pods.output()


@pytest.mark.whole
@pytest.mark.parametrize(
    ("env", "options", "words"),
    [
        ({"BIREME_MPI_KEY": "/none"}, USER, "there is no ssh key at /none"),
        ({}, ["--user=1234"], "the image has no user with id 1234"),
    ],
)
def test_what_is_missing_is_said_in_a_sentence(
    start: Callable[..., Pods], env: dict[str, str], options: list[str], words: str
) -> None:
    pods = start("mpi-5", options, ["true"], **env)
    assert (pods.exit_code(0), pods.exit_code(1)) == (78, 78)
    assert words in pods.output()


# Programs that reach the workers themselves and know nothing of key and port: each says a word on each host.
# DeepSpeed calls pdsh like that, and nccom-test ssh.
HOSTS = 'hosts=$(cut -d" " -f1 "$BIREME_HOSTFILE"); '
SAY = "'echo said $WORD on $(uname -n)'"
SSH_PROGRAMS = {
    "ssh": f"{HOSTS} for host in $hosts; do ssh $host {SAY} || exit 1; done",
    "pdsh": f'{HOSTS} exec pdsh -S -f 1024 -w "$(echo $hosts | tr " " ,)" {SAY}',
}


@pytest.mark.whole
@pytest.mark.parametrize("options", [USER, ROOT], ids=["user", "root"])
@pytest.mark.parametrize("program", SSH_PROGRAMS)
def test_programs_that_call_ssh_themselves_reach_all_workers(
    start: Callable[..., Pods], program: str, options: list[str]
) -> None:
    pods = start("mpi-5", options, ["sh", "-c", SSH_PROGRAMS[program]], command=True)
    assert pods.exit_code() == 0, pods.output()
    for index in (0, 1):
        assert f'said it\'s "told" $HOME on {pods.job}-{index}' in pods.output()
