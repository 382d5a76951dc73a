"""A replacement for torchrun in tests of its supervisor: the same command line, without torch.

It joins the real rendezvous, starts PET_NPROC_PER_NODE training processes, starts them again on failures (up
to PET_MAX_RESTARTS) and when the members change, and ends as they end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from bireme_runtime.elastic import fence
from bireme_runtime.elastic.agent import report, torch_handler
from bireme_runtime.elastic.rendezvous import membership, rules
from bireme_runtime.process.errors import Unreachable


def member() -> membership.Rendezvous | None:
    if os.environ.get("PET_RDZV_BACKEND") != "bireme-etcd":
        return None
    low, high = os.environ["PET_NNODES"].split(":")
    conf = dict(pair.split("=") for pair in os.environ["PET_RDZV_CONF"].split(","))
    settings = rules.RunSettings.from_config(os.environ["PET_RDZV_ID"], int(low), int(high), conf)
    return torch_handler.new_member(settings, os.environ["PET_RDZV_ENDPOINT"], conf)[0]


def start(member: membership.Rendezvous | None, reporter: report.Reporter) -> list[subprocess.Popen[bytes]]:
    env = os.environ
    env.update(WORLD_SIZE="1", AGENT_PID=str(os.getpid()), GROUP_RANK="0")
    if member:
        world = member.join()
        env.update(member.token(world), WORLD_SIZE=str(world.size), GROUP_RANK=str(world.rank))
    reporter.starting(*numbers(fence.ROUND, "GROUP_RANK", "WORLD_SIZE"))
    count = int(env.get("PET_NPROC_PER_NODE", "1"))
    first = int(env["GROUP_RANK"]) * count
    trainers = [
        subprocess.Popen(
            [sys.executable, *sys.argv[1:]], env={**env, "LOCAL_RANK": str(rank), "RANK": str(first + rank)}
        )
        for rank in range(count)
    ]
    reporter.started({trainer.pid: (first + at, at) for at, trainer in enumerate(trainers)})
    return trainers


def numbers(*names: str) -> list[int]:
    return [int(os.environ.get(name, "0")) for name in names]


def main() -> int:
    reporter = report.Reporter.from_env()
    try:
        return run(reporter)
    except (membership.JoinTimeout, Unreachable):
        # The real one reports that the rendezvous failed: as if the agent had died.
        os.kill(os.getpid(), signal.SIGKILL)
        raise
    except membership.RunOver as over:
        reporter.ended(report.RENDEZVOUS, 1, str(over))
        return 1


def run(reporter: report.Reporter) -> int:
    rendezvous = member()
    restarts = int(os.environ.get("PET_MAX_RESTARTS", "0"))
    while True:
        trainers = start(rendezvous, reporter)
        while any(trainer.poll() is None for trainer in trainers) and not any(t.returncode for t in trainers):
            if rendezvous and rendezvous.waiting():
                break
            time.sleep(0.02)
        codes = [trainer.poll() for trainer in trainers]
        if any(codes):
            round, world, place = numbers(fence.ROUND, "WORLD_SIZE", "GROUP_RANK")
            first = next(rank for rank, code in enumerate(codes) if code)
            if reporter.failed(round, world, place * len(codes) + first, codes[first] or 0):
                restarts = int(os.environ.get("PET_MAX_RESTARTS", "0"))
        succeeded = all(code == 0 for code in codes)
        while rendezvous and succeeded and not rendezvous.all_finished():
            # It stays a member until all have finished, or for the next round when one has not.
            succeeded = not rendezvous.waiting()
            time.sleep(0.02)
        for trainer in trainers:
            trainer.kill()
            trainer.wait()
        if succeeded:
            return 0
        failed = [code for code in codes if code]
        if failed and not restarts:
            return 1
        restarts -= bool(failed)


if __name__ == "__main__":
    sys.exit(main())
