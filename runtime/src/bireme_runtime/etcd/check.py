"""Does it answer? `python3 -m bireme_runtime.etcd.check etcd ENDPOINT… | tcp HOST:PORT…`, for `helm test`.

Looks again for BIREME_WAIT_SECONDS (30), prints one sentence and exits 0 or 1. For etcd it logs in as
BIREME_ETCD_USERNAME when that is set. Ports need not answer once BIREME_DONE, a file, is there.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from bireme_runtime.etcd import client as etcd

_USAGE = "usage: python3 -m bireme_runtime.etcd.check etcd ENDPOINT… | tcp HOST:PORT…"


def check_etcd(targets: Sequence[str], env: Mapping[str, str], seconds: float) -> str:
    """Ask etcd for a read that a majority has to confirm; the sentence says who answered.

    Raises etcd.EtcdError or ValueError.
    """
    client = etcd.client_from(",".join(targets), env)
    status = etcd.wait_until_up(client, seconds, lambda words: None)
    name = f"etcd {status.version}".strip()
    return f"{name} at {status.endpoint} answers, with a majority behind it"


def check_tcp(targets: Sequence[str], env: Mapping[str, str], seconds: float) -> str:
    """Connect to each target, unless the job is done. Raises OSError or ValueError."""
    done = env.get("BIREME_DONE", "")
    for endpoint in etcd.parse_endpoints(",".join(targets)):
        if not _connect(endpoint, seconds, done):
            return f"the job is done: {done} is there"
    return f"{', '.join(targets)} can be reached"


def _connect(endpoint: etcd.Endpoint, seconds: float, done: str) -> bool:
    deadline = time.monotonic() + seconds
    while not (done and os.path.exists(done)):
        try:
            socket.create_connection((endpoint.host, endpoint.port), timeout=5).close()
            return True
        except OSError as error:
            if time.monotonic() >= deadline:
                place = f"{endpoint.host}:{endpoint.port}"
                raise OSError(f"{place} cannot be reached: {error}") from error
        time.sleep(0.5)
    return False


CHECKS: Mapping[str, Callable[[Sequence[str], Mapping[str, str], float], str]] = {
    "etcd": check_etcd,
    "tcp": check_tcp,
}


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Check what the arguments say; the exit code is 64 for arguments that say nothing."""
    if len(argv) < 2 or argv[0] not in CHECKS:
        print(_USAGE)
        return 64
    try:
        print(CHECKS[argv[0]](argv[1:], env, float(env.get("BIREME_WAIT_SECONDS", "30"))))
    except (etcd.EtcdError, OSError, ValueError) as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
