"""The entry point of MPI jobs, without sshd and mpirun. tests/kind tests the rest."""

from __future__ import annotations

import os
import pwd
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bireme_runtime.mpi.ssh import Ssh, for_trainers, greet, is_broken
from bireme_runtime.mpi.world import MpiWorld
from bireme_runtime.process.errors import CONFIG, Stop
from tests.runtime.etcd_servers import RUNTIME
from tests.support.waiting import until

WORLD = MpiWorld(("train-r1-0.train", "train-r1-1.train"), slots=2, implementation="OpenMPI")
VARIABLES = {"BIREME_MPI_HOSTS": "train-r1-{}.train", "BIREME_MPI_WORKERS": "2", "BIREME_MPI_SLOTS": "2"}
DATASET = "BIREME_DISPATCHER_DATASET"


def run(*argv: str, **env: str) -> tuple[int, str]:
    """The exit code and the output of the entry point."""
    command = [sys.executable, "-m", "bireme_runtime.mpi.supervisor", *argv]
    environ = {"PYTHONPATH": str(RUNTIME), "PATH": os.environ["PATH"], **env}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("argv", "env", "code", "words"),
    [
        (["--", "prog"], {}, 78, "BIREME_MPI_ROLE must be launcher, worker or check"),
        (["--"], {"JOB_COMPLETION_INDEX": "0"}, 64, "there is no program to run"),
        (["--", "prog"], {"BIREME_MPI_ROLE": "launcher"}, 78, "BIREME_MPI_HOSTS"),
        (
            ["--", "prog"],
            {"JOB_COMPLETION_INDEX": "0", **VARIABLES, "BIREME_MPI_SLOTS": "two"},
            78,
            "BIREME_MPI_SLOTS=two is not a whole number",
        ),
    ],
)
def test_an_unusable_setting_is_reported_in_a_sentence(
    argv: list[str], env: dict[str, str], code: int, words: str
) -> None:
    ended, output = run(*argv, **env)
    assert ended == code
    assert words in output
    assert len(output.splitlines()) == 1


def test_the_world_follows_from_the_environment_of_the_pod() -> None:
    assert MpiWorld.from_env(VARIABLES) == WORLD
    assert (WORLD.size, WORLD.names) == (4, ("train-r1-0", "train-r1-1"))


def test_each_implementation_gets_the_host_file_it_reads() -> None:
    lines = {
        "OpenMPI": "train-r1-1.train slots=2",
        "Intel": "train-r1-1.train:2",
        "MPICH": "train-r1-1.train:2",
    }
    for implementation, line in lines.items():
        assert MpiWorld(WORLD.hosts, 2, implementation).hostfile().splitlines()[1] == line


def probed(*hosts: str, size: int = 4) -> str:
    return "".join(f"[1,0]<stdout>: bireme-rank {host} {size}\n" for host in hosts)


def test_a_world_with_every_slot_of_every_worker_is_right() -> None:
    WORLD.judge("a warning of MPI\n" + probed("train-r1-1", "train-r1-0", "train-r1-1.train", "train-r1-0"))


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (probed(*["train-r1-0"] * 4), "4 on train-r1-0, in a world of 4"),
        (probed("train-r1-0", "train-r1-1", size=2), "1 on train-r1-0, 1 on train-r1-1, in a world of 2"),
        (probed("train-r1-0", "train-r1-0", "train-r1-1", "train-r1-1", size=1), "in a world of 1"),
        ("", "none, in a world of 0"),
    ],
)
def test_any_other_world_is_refused_with_what_was_found(output: str, words: str) -> None:
    with pytest.raises(Stop, match="4 in 2 workers × 2 slots") as refusal:
        WORLD.judge(output)
    assert words in str(refusal.value)
    assert refusal.value.code == CONFIG


def test_a_worker_counts_while_its_sshd_answers_and_its_connection_stands() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert greet("127.0.0.1", port, seconds=0.2) is None, "the server sends no greeting of ssh"
        listener.accept()[0].close()
        calling = socket.create_connection(("127.0.0.1", port))
        answering, _ = listener.accept()
        answering.sendall(b"SSH-2.0-here\r\n")
        with calling, answering:
            assert not is_broken(calling)
            assert not is_broken(calling)
            answering.close()
            until(lambda: is_broken(calling), what="the end of the connection")
    assert greet("127.0.0.1", port) is None


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a pod's ssh, whose user has the home folder `home` and a configuration there."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sshd").write_text("#!/bin/sh\n")
    (tmp_path / "bin/sshd").chmod(0o755)
    (tmp_path / "home/.ssh").mkdir(parents=True)
    (tmp_path / "home/.ssh/config").write_text("Host github.com\n  User git\n")
    key = str(tmp_path / "id_rsa")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    entry = pwd.struct_passwd(("me", "x", 1, 1, "", str(tmp_path / "home"), "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: entry)
    env = {"BIREME_MPI_FOLDER": str(tmp_path / "mpi"), "BIREME_MPI_KEY": key}
    for _ in range(2):
        Ssh.prepare({**env, **VARIABLES, "HOME": "/efs/home", "USER": "root"})
    return tmp_path


def ssh_options(folder: Path, host: str) -> dict[str, str]:
    """What ssh, started by the user, does to reach the host."""
    command = ["ssh", "-F", str(folder / "home/.ssh/config"), "-G", host]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: value for name, _, value in (line.partition(" ") for line in lines)}


def test_a_plain_ssh_finds_port_and_key_of_the_workers_and_the_users_own_settings(prepared: Path) -> None:
    for host in ("train-r1-1.train", "train-r1-1", "train-r1-1.train.team.svc"):
        found = ssh_options(prepared, host)
        assert (found["port"], found["user"], found["hostkeyalias"]) == ("2222", "me", "bireme")
        assert found["identityfile"] == str(prepared / "mpi/key")
    found = ssh_options(prepared, "github.com")
    assert (found["port"], found["user"]) == ("22", "git")


def test_a_home_of_the_values_reaches_the_ranks(prepared: Path) -> None:
    login = {"SSH_ORIGINAL_COMMAND": "echo $HOME $USER", "HOME": "/home/me", "USER": "me"}
    command = ["sh", str(prepared / "mpi/session")]
    done = subprocess.run(command, env=login, capture_output=True, text=True, check=True)
    assert done.stdout == "/efs/home me\n"


def test_an_mpijob_that_is_installed_again_has_another_dataset(tmp_path: Path) -> None:
    names = []
    for number, text in enumerate(["one key", "one key", "another key"]):
        key = tmp_path / f"id_rsa-{number}"
        key.write_text(text)
        env = {"BIREME_DISPATCHER": "d:7190", "BIREME_MPI_KEY": str(key), DATASET: "job-r1"}
        names.append(for_trainers({**env, "BIREME_MPI_ROLE": "worker"})[DATASET])
        assert DATASET not in for_trainers(env), "an Indexed Job's dataset has the Job's uid"
    assert names[0] == names[1] != names[2]
    assert all(re.fullmatch("job-r1-[0-9a-f]{8}", name) for name in names)


def test_pdsh_finds_the_workers(tmp_path: Path) -> None:
    variables = WORLD.environment(("-F", "/bireme/mpi/ssh_config"), tmp_path, {})
    assert variables["PDSH_RCMD_TYPE"] == "ssh"
    assert variables["PDSH_SSH_ARGS_APPEND"] == "-F /bireme/mpi/ssh_config"
