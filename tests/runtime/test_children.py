"""Which processes a supervisor takes for running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bireme_runtime.process import children
from tests.support.processes import gone
from tests.support.waiting import until

# The first thread ends, the other one stays.
ONE_THREAD_IS_LEFT = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
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
