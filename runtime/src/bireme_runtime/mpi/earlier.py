"""End the ranks of an earlier launcher in this pod: `python3 -m bireme_runtime.mpi.earlier`.

A launcher runs it in every worker before it starts ranks, because a node that is lost takes its launcher
along without a word to the workers; and when it is told to end and the workers are not, as in an MPIJob.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

from bireme_runtime.mpi.ssh import is_login
from bireme_runtime.process import children, environment

WAITS = "bireme-waits"
"""If there are such ranks, a line that begins with this word is printed."""
_SUPERVISOR = b"bireme_runtime.mpi.supervisor"
_RANK_VARIABLES = (b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=", b"HOROVOD_RANK=")
_KILL_SECONDS = 5.0


def ranks_below(ancestor: int) -> list[int]:
    """The descendants of a process to which mpirun, of any MPI, or horovodrun gave a rank."""
    return [
        pid
        for pid in children.descendants(ancestor)
        if any(name in children.told(pid, "environ") for name in _RANK_VARIABLES)
    ]


def earlier_ranks() -> list[int]:
    """The ranks of this pod that were not started by the launcher that started this process."""
    line = children.ancestors(os.getpid())
    supervisor = next((pid for pid in line if _SUPERVISOR in children.told(pid, "cmdline")), 0)
    if not supervisor:
        return []
    own = [os.getpid(), *line[: line.index(supervisor)]]
    # The first process of the login, or what the supervisor started or adopted.
    first = next((pid for pid in own if is_login(pid)), own[-1])
    mine = {first, *children.descendants(first)}
    return [pid for pid in ranks_below(supervisor) if pid not in mine]


def main(env: Mapping[str, str] = os.environ) -> int:
    """Send SIGTERM to these ranks, and SIGKILL when they had their time to save."""
    ranks = earlier_ranks()
    if ranks:
        print(WAITS, os.uname().nodename, flush=True)
        children.send(ranks, signal.SIGTERM)
        left = children.wait_for_end(ranks, environment.seconds(env, "BIREME_GRACE_SECONDS", 20))
        children.send(left, signal.SIGKILL)
        children.wait_for_end(left, _KILL_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
