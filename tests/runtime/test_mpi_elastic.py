"""The pods of elastic jobs. sshd and horovodrun are small stand-ins here; tests/kind has the real ones."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from bireme_runtime.mpi.elastic import Discovery
from bireme_runtime.mpi.workers import Workers
from tests.runtime.etcd_servers import RUNTIME, free_port
from tests.runtime.web_hook import WebHook
from tests.support.waiting import until

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")

# The entry point, for a user whose home folder is a folder of the test.
ENTRY = """
import pwd, sys
user = pwd.struct_passwd(("me", "x", 1, 1, "", sys.argv[1], "/bin/sh"))
pwd.getpwuid = lambda _: user
from bireme_runtime.mpi.supervisor import main
sys.exit(main(["--", "python3", "train.py"]))
"""
# Prints what it was given and the hosts it finds, and ends as the test wants.
HOROVODRUN = """#!/bin/sh
echo "horovodrun $@"
while [ "$1" != --host-discovery-script ]; do shift; done
sh -c "$2" | sed 's/^/found /'
exit "$STATUS"
"""
# Serves a rank that ends once the file `go` is there, and notes when it receives SIGTERM.
RANK = """#!/bin/sh
HOROVOD_RANK=0 sh -c '
  trap "touch $0/term" TERM
  touch $0/up
  until [ -e $0/go ]; do sleep 0.1; done' "$FOLDER" &
exec sleep 1000
"""
# Leaves a login behind whose connection broke.
BROKEN_LOGIN = """#!/bin/sh
(sh -c 'export BIREME_LOGIN=$$; echo $$ >$0/new; mv $0/new $0/login; exec sleep 1000' "$FOLDER" &)
exec sleep 1000
"""


class Sshd:
    """A port that greets as sshd does, on each of some addresses."""

    def __init__(self) -> None:
        self.port = free_port()
        self._open: dict[str, tuple[socket.socket, list[socket.socket]]] = {}

    def start(self, *hosts: str) -> None:
        for host in hosts:
            listener = socket.create_server((host, self.port))
            callers: list[socket.socket] = []
            self._open[host] = (listener, callers)
            threading.Thread(target=self._greet, args=(listener, callers), daemon=True).start()

    def stop(self, host: str) -> None:
        listener, callers = self._open.pop(host)
        with suppress(OSError):  # it is frozen
            listener.shutdown(socket.SHUT_RDWR)
        for each in (listener, *callers):
            each.close()

    def freeze(self, host: str) -> None:
        """Answer nobody any more, as a machine that died. Connections stand until `stop`."""
        listener, callers = self._open[host]
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        self._open[host] = (socket.socket(), callers)

    def stop_all(self) -> None:
        for host in list(self._open):
            self.stop(host)

    @staticmethod
    def _greet(listener: socket.socket, callers: list[socket.socket]) -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            callers.append(caller)
            caller.sendall(b"SSH-2.0-here\r\n")


@pytest.fixture
def sshd() -> Iterator[Sshd]:
    with ExitStack() as stack:
        server = Sshd()
        stack.callback(server.stop_all)
        yield server


def lists_of(discovery: Discovery, *ranks: str) -> Callable[..., Callable[[], bool]]:
    """``lists(HOST…)``: whether the discovery lists these workers when it looks again."""

    def lists(*hosts: str) -> Callable[[], bool]:
        def refreshed() -> bool:
            discovery.refresh(*ranks)
            return discovery.file.read_text().split() == [f"{host}:2" for host in hosts]

        return refreshed

    return lists


def test_discovery_lists_the_workers_that_answer_also_one_that_comes_back(sshd: Sshd, tmp_path: Path) -> None:
    sshd.start("127.0.0.1", "127.0.0.3")
    lists = lists_of(Discovery(Workers(HOSTS, sshd.port), 2, tmp_path / "workers"))
    until(lists("127.0.0.1", "127.0.0.3"), what="the two workers that answer")
    sshd.stop("127.0.0.3")
    until(lists("127.0.0.1"), what="the lost worker to be left out")
    sshd.start("127.0.0.2", "127.0.0.3")
    until(lists(*HOSTS), what="the lost worker to come back, and a new one")


def test_a_worker_that_horovodrun_has_forgotten_is_listed_again(sshd: Sshd, tmp_path: Path) -> None:
    sshd.start("127.0.0.1", "127.0.0.3")
    discovery = Discovery(Workers(HOSTS, sshd.port), 2, tmp_path / "workers", idle_seconds=0.5)
    lists = lists_of(discovery, "ssh 127.0.0.1 a rank")
    until(lists("127.0.0.1", "127.0.0.3"), what="both workers")
    until(lists("127.0.0.1"), what="the worker without a rank to be left out")
    until(lists("127.0.0.1", "127.0.0.3"), what="both workers again")


Pods = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pods]:
    """``pod(sshd=SCRIPT, horovodrun=SCRIPT, BIREME_…=…)`` starts the entry point of an elastic job's pod."""
    programs = tmp_path / "programs"
    programs.mkdir()
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "id_rsa")], check=True
    )
    with ExitStack() as stack:

        def _pod(sshd: str, horovodrun: str = "", **env: str) -> subprocess.Popen[str]:
            for name, script in {"sshd": sshd, "horovodrun": horovodrun}.items():
                if script:
                    (programs / name).write_text(script)
                    (programs / name).chmod(0o755)
            variables = {
                "PYTHONPATH": str(RUNTIME),
                "PATH": f"{programs}:{os.environ['PATH']}",
                "FOLDER": str(tmp_path),
                "BIREME_MPI_FOLDER": str(tmp_path / "mpi"),
                "BIREME_MPI_KEY": str(tmp_path / "id_rsa"),
                "BIREME_MPI_LEAST": "2",
                "BIREME_GRACE_SECONDS": "60",
            }
            command = [sys.executable, "-c", ENTRY, str(tmp_path / "home")]
            started = subprocess.Popen(
                command, env=variables | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            stack.callback(started.wait)
            stack.callback(started.terminate)
            return started

        yield _pod


def launcher(pod: Pods, port: int, **env: str) -> tuple[int, str]:
    """The exit code and the output of the launcher of a job with 127.0.0.0 to 127.0.0.2 as hosts."""
    hosts = {"BIREME_MPI_HOSTS": "127.0.0.{}", "BIREME_MPI_WORKERS": "3", "BIREME_MPI_SLOTS": "4"}
    variables = {"BIREME_MPI_ROLE": "launcher", "BIREME_MPI_PORT": str(port), **hosts, **env}
    output, _ = (started := pod(sshd="#!/bin/sh\n", **variables)).communicate(timeout=120)
    return started.returncode, output


@pytest.mark.parametrize(("status", "outcome"), [(0, "succeeded"), (3, "failed")])
def test_the_launcher_gives_horovodrun_the_workers_and_tells_how_it_has_ended(
    pod: Pods, sshd: Sshd, hook: WebHook, status: int, outcome: str
) -> None:
    sshd.start("127.0.0.1", "127.0.0.2")
    env = {**hook.environment(3, starts=3), "STATUS": str(status)}
    code, output = launcher(pod, sshd.port, horovodrun=HOROVODRUN, **env)
    assert code == status, output
    lines = output.splitlines()
    assert [line for line in lines if line.startswith("found")] == ["found 127.0.0.1:4", "found 127.0.0.2:4"]
    (command,) = [line for line in lines if line.startswith("horovodrun -np")]
    assert "-np 8 --min-np 8 --max-np 12" in command
    assert command.endswith("python3 train.py")
    until(lambda: hook.messages, what="the message")
    (message,) = hook.messages
    assert message["outcome"] == outcome
    assert hook.secret not in output


@pytest.mark.parametrize(
    ("workers", "seconds", "code", "words"),
    [
        (["127.0.0.1"], "1", 75, "no sshd answers after 1 s"),
        (["127.0.0.1", "127.0.0.2"], "60", 78, "the image has no horovodrun"),
    ],
)
def test_the_launcher_says_what_it_lacks(
    pod: Pods, sshd: Sshd, workers: list[str], seconds: str, code: int, words: str
) -> None:
    sshd.start(*workers)
    ended, output = launcher(pod, sshd.port, BIREME_WAIT_SECONDS=seconds)
    assert ended == code
    assert words in output


def test_a_worker_that_is_told_to_end_waits_for_its_ranks_without_a_signal_to_them(
    pod: Pods, tmp_path: Path
) -> None:
    worker = pod(sshd=RANK, BIREME_MPI_ROLE="worker")
    until((tmp_path / "up").exists, what="the rank to start")
    worker.send_signal(signal.SIGTERM)
    assert worker.stdout
    assert "commit and go on without the ranks of this pod" in worker.stdout.readline()
    (tmp_path / "go").touch()
    assert worker.wait(120) == 143
    assert not (tmp_path / "term").exists()


def test_ranks_whose_launcher_is_gone_are_ended(pod: Pods, tmp_path: Path) -> None:
    pod(sshd=BROKEN_LOGIN, BIREME_MPI_ROLE="worker")
    until((tmp_path / "login").exists, what="the login")
    left = Path("/proc") / (tmp_path / "login").read_text().strip()
    until(lambda: not left.exists(), what="the ranks of the broken login to end")
