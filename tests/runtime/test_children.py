"""Which processes a supervisor takes for running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bireme_runtime.process import children
from tests.runtime.etcd_servers import RUNTIME
from tests.support.processes import gone
from tests.support.waiting import until

# The first thread ends, the other one stays.
ONE_THREAD_IS_LEFT = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


# A rank that ends before what it has started, and a program of which somebody else wants the exit code.
A_RANK_WITH_A_LOADER = """
import os, subprocess, time
from pathlib import Path
from bireme_runtime.process import children

def ended(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

children.adopt_orphans()
reading, writing = os.pipe()
rank = os.fork()
if not rank:
    os.setsid()
    loader = os.fork()
    if not loader:
        os._exit(0)
    os.write(writing, str(loader).encode())
    os._exit(0)
loader = int(os.read(reading, 32))
other = subprocess.Popen(["false"])
while not (ended(rank) and ended(loader) and ended(other.pid)):
    time.sleep(0.01)
children.reap({rank})
print(Path(f"/proc/{loader}").exists(), os.waitpid(rank, 0)[1], other.wait())
"""


@pytest.fixture
def pid() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", ONE_THREAD_IS_LEFT]) as process:
        try:
            until(lambda: gone(process.pid), what="the first thread to end")
            assert process.poll() is None, "nobody can reap it either"
            yield process.pid
        finally:
            process.kill()


def test_a_process_whose_first_thread_has_ended_runs_as_long_as_another_does(pid: int) -> None:
    assert children.alive([pid]) == [pid]
    assert pid in children.descendants(os.getpid())
    children.send([pid], signal.SIGKILL)
    until(lambda: children.alive([pid]) == [], what="the other thread to end")


def test_what_a_rank_has_left_behind_is_reaped_and_nothing_else() -> None:
    env = {**os.environ, "PYTHONPATH": str(RUNTIME)}
    command = [sys.executable, "-c", A_RANK_WITH_A_LOADER]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "False 0 1\n"


@pytest.mark.parametrize("number", [signal.SIGPIPE, signal.SIGXFSZ])
def test_a_program_does_not_ignore_the_signals_that_python_ignores(number: signal.Signals) -> None:
    pid = children.start(["sh", "-c", f"kill -{int(number)} $$"], os.environ)
    assert children.exit_code(os.waitpid(pid, 0)[1]) == -number
