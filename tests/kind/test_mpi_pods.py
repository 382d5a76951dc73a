"""The entry point of MPI jobs in real containers on one network, as pods have it, without a cluster."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from on_kind import eventually

from bireme.paths import Paths

IMAGES = {4: "bireme/mpi:0.1.0-openmpi4", 5: "bireme/mpi:0.1.0-openmpi5"}
USER = ["--user=1000", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
ROOT = ["--user=0", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
ROOT += [f"--cap-add={name}" for name in ("SETUID", "SETGID", "SYS_CHROOT")]
WHO_AND_WHICH = [
    pytest.param(options, open_mpi, id=f"{options[0]}-openmpi{open_mpi}")
    for options, open_mpi in itertools.product((USER, ROOT), (4, 5))
]
MAKE_KEY = "ssh-keygen -q -t ecdsa -m PEM -N '' -f /tmp/key && cat /tmp/key"

# All ranks meet in every step. Told to end, each says so once it has saved.
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
    if told:
        print(f"rank {world.rank} saved", flush=True)
        time.sleep(1)
        os._exit(1)
"""


def docker(*arguments: str) -> str:
    """What the engine prints; the test fails with its message when it fails."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def images(bireme_paths: Paths) -> None:
    build = [sys.executable, str(bireme_paths.hack / "images" / "build.py"), "image", "mpi-4", "mpi-5"]
    subprocess.run(build, cwd=bireme_paths.root, stdout=subprocess.DEVNULL, check=True)


@dataclass(frozen=True)
class Pods:
    """Two containers with two slots each on a network of their own; the first launches."""

    job: str

    def start(
        self, mounts: list[str], image: str, options: list[str], program: list[str], **env: str
    ) -> None:
        """Start both, worker first; they find each other by their names."""
        told = {"PYTHONPATH": "/bireme/runtime", "PYTHONDONTWRITEBYTECODE": "1", "WORD": 'it\'s "told" $HOME'}
        told |= {"BIREME_MPI_HOSTS": f"{self.job}-{{}}", "BIREME_MPI_WORKERS": "2", "BIREME_MPI_SLOTS": "2"}
        variables = [f"--env={name}={value}" for name, value in (told | env).items()]
        for index in (1, 0):
            own = [f"--name={self.job}-{index}", f"--hostname={self.job}-{index}", f"--network={self.job}"]
            own += [f"--env=JOB_COMPLETION_INDEX={index}", "--tmpfs=/bireme/mpi:mode=1777", *mounts]
            entry = ["python3", "-m", "bireme_runtime.mpi", "--"]
            docker("run", "--detach", *own, *variables, *options, image, *entry, *program)

    def said(self) -> str:
        """What the launcher has printed."""
        return docker("logs", f"{self.job}-0")

    def exit_code(self, index: int = 0) -> int:
        """Wait for a container's end."""
        return int(docker("wait", f"{self.job}-{index}"))

    def until_said(self, words: str) -> None:
        """Wait until the launcher has printed this."""
        eventually(lambda: words in self.said(), 90, f"the launcher to say {words!r}")


@pytest.fixture
def start(images: None, bireme_paths: Paths, tmp_path: Path) -> Iterator[Callable[..., Pods]]:
    """``start(5, USER, ["python3", "/steps.py", "10"])``: two pods with one key, gone when the test ends."""
    pods = Pods(f"mpi-{uuid.uuid4().hex[:6]}")
    docker("network", "create", pods.job)

    def _start(open_mpi: int, options: list[str], program: list[str], **env: str) -> Pods:
        image = IMAGES[open_mpi]
        key, steps = tmp_path / "id_rsa", tmp_path / "steps.py"
        key.write_text(docker("run", "--rm", image, "sh", "-c", MAKE_KEY))
        key.chmod(0o444)
        steps.write_text(STEPS)
        files = {
            bireme_paths.root / "runtime/src": "/bireme/runtime",
            key: "/bireme/ssh/id_rsa",
            steps: "/steps.py",
        }
        mounts = [f"--volume={source}:{target}:ro" for source, target in files.items()]
        pods.start(mounts, image, options, program, **env)
        return pods

    yield _start
    for index in (0, 1):
        subprocess.run(["docker", "rm", "--force", f"{pods.job}-{index}"], capture_output=True, check=False)
    docker("network", "rm", pods.job)


@pytest.mark.parametrize(("options", "open_mpi"), WHO_AND_WHICH)
def test_four_ranks_on_two_hosts_add_up_in_their_pods_environment(
    start: Callable[..., Pods], options: list[str], open_mpi: int
) -> None:
    pods = start(open_mpi, options, ["python3", "/steps.py", "1"])
    assert pods.exit_code() == 0, pods.said()
    found = re.findall(r"step 0: rank (\d) of 4 on (\S+) (.*)", pods.said())
    word = 'it\'s "told" $HOME'
    assert sorted(found) == [(str(rank), f"{pods.job}-{rank // 2}", word) for rank in range(4)]


@pytest.mark.parametrize("open_mpi", [4, 5])
def test_a_worker_that_is_killed_ends_the_job_and_is_named(start: Callable[..., Pods], open_mpi: int) -> None:
    pods = start(open_mpi, USER, ["python3", "/steps.py", "3000"])
    pods.until_said("step 5")
    docker("kill", f"{pods.job}-1")
    assert pods.exit_code() == 75
    assert f"{pods.job}-1 went away while the program ran" in pods.said()


@pytest.mark.parametrize("open_mpi", [4, 5])
def test_ranks_that_are_all_on_one_host_do_not_start(start: Callable[..., Pods], open_mpi: int) -> None:
    elsewhere = json.dumps(["--oversubscribe", "--map-by", "ppr:4:node"])
    pods = start(open_mpi, USER, ["python3", "/steps.py", "1"], BIREME_MPI_ARGUMENTS=elsewhere)
    assert pods.exit_code() == 78
    assert f"mpirun would start these ranks: 4 on {pods.job}-0" in pods.said()
    assert "step" not in pods.said()


def test_the_programs_exit_code_is_the_jobs(start: Callable[..., Pods]) -> None:
    pods = start(5, USER, ["sh", "-c", "exit 3"])
    assert pods.exit_code() == 3


def test_ranks_save_when_all_pods_are_told_to_end(start: Callable[..., Pods]) -> None:
    pods = start(5, USER, ["python3", "/steps.py", "3000"])
    pods.until_said("step 5")
    docker("kill", "--signal=TERM", f"{pods.job}-0", f"{pods.job}-1")
    assert (pods.exit_code(0), pods.exit_code(1)) == (143, 143)
    assert {f"rank {rank} saved" for rank in (0, 1)} <= set(pods.said().splitlines())


def test_a_worker_that_never_comes_is_waited_for_and_named(start: Callable[..., Pods]) -> None:
    pods = start(5, USER, ["true"], BIREME_MPI_WORKERS="3", BIREME_WAIT_SECONDS="3")
    assert pods.exit_code() == 75
    assert f"{pods.job}-2: no sshd answers after 3 s" in pods.said()


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
    pods = start(5, options, ["true"], **env)
    assert (pods.exit_code(0), pods.exit_code(1)) == (78, 78)
    assert words in pods.said()


@pytest.mark.parametrize("open_mpi", [4, 5])
def test_the_check_of_helm_test_passes(start: Callable[..., Pods], open_mpi: int) -> None:
    pods = start(open_mpi, USER, [], BIREME_MPI_ROLE="check")
    assert pods.exit_code() == 0
    assert "the image has what an MPI job needs" in pods.said()
