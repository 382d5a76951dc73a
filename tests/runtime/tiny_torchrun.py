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

from bireme_runtime.elastic import fence, rendezvous
from bireme_runtime.etcd import client as etcd


def member() -> rendezvous.Rendezvous | None:
    if os.environ.get("PET_RDZV_BACKEND") != "bireme-etcd":
        return None
    client = etcd.Client(etcd.parse_endpoints(os.environ["PET_RDZV_ENDPOINT"]))
    low, high = os.environ["PET_NNODES"].split(":")
    conf = dict(pair.split("=") for pair in os.environ["PET_RDZV_CONF"].split(","))
    settings = rendezvous.Settings.from_config(os.environ["PET_RDZV_ID"], int(low), int(high), conf)
    identity = rendezvous.Identity(os.environ["BIREME_MEMBER"], 0, "127.0.0.1")
    return rendezvous.Rendezvous(client, settings, identity, fence.Board.at(os.environ[fence.BOARD]))


def start(member: rendezvous.Rendezvous | None) -> list[subprocess.Popen[bytes]]:
    env = {**os.environ, "WORLD_SIZE": "1", "AGENT_PID": str(os.getpid())}
    if member:
        world = member.join()
        env.update(member.token(world), WORLD_SIZE=str(world.size))
    count = int(os.environ.get("PET_NPROC_PER_NODE", "1"))
    return [subprocess.Popen([sys.executable, *sys.argv[1:]], env=env) for _ in range(count)]


def main() -> int:
    try:
        return run()
    except rendezvous.JoinTimeout:
        # The real one reports that the rendezvous failed: as if the agent had died.
        os.kill(os.getpid(), signal.SIGKILL)
        raise


def run() -> int:
    rendezvous = member()
    restarts = int(os.environ.get("PET_MAX_RESTARTS", "0"))
    while True:
        trainers = start(rendezvous)
        while any(trainer.poll() is None for trainer in trainers) and not any(t.returncode for t in trainers):
            if rendezvous and rendezvous.waiting():
                break
            time.sleep(0.02)
        codes = [trainer.poll() for trainer in trainers]
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
