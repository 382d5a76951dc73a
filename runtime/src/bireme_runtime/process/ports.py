"""Check that ports accept connections: `python3 -m bireme_runtime.process.ports HOST:PORT…`, for `helm test`.

It retries for BIREME_WAIT_SECONDS (30), prints one sentence and exits with 0 or 1. Once the file that
BIREME_DONE names exists, the job is done and its ports need not answer.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from bireme_runtime.process import environment
from bireme_runtime.process.errors import FAILED, USAGE, BiremeError
from bireme_runtime.process.http import Address, parse_address

_USAGE = "usage: python3 -m bireme_runtime.process.ports HOST:PORT…"


def check(targets: Sequence[str], env: Mapping[str, str]) -> str:
    """Connect to each target, unless the job is done; returns a sentence. Raises OSError or ValueError."""
    seconds = environment.seconds(env, "BIREME_WAIT_SECONDS", 30)
    done = env.get("BIREME_DONE", "")
    for address in map(parse_address, targets):
        if not _connect(address, seconds, done):
            return f"the job is done: {done} exists"
    return f"{', '.join(targets)} can be reached"


def _connect(address: Address, seconds: float, done: str) -> bool:
    deadline = time.monotonic() + seconds
    while not (done and os.path.exists(done)):
        try:
            socket.create_connection((address.host, address.port), timeout=5).close()
            return True
        except OSError as error:
            if time.monotonic() >= deadline:
                raise OSError(f"{address} cannot be reached: {error}") from error
        time.sleep(0.5)
    return False


def main(
    argv: Sequence[str],
    env: Mapping[str, str] = os.environ,
    check: Callable[[Sequence[str], Mapping[str, str]], str] = check,
    usage: str = _USAGE,
) -> int:
    """Print what ``check`` says of these arguments; returns the exit code."""
    if not argv:
        print(usage)
        return USAGE
    try:
        print(check(argv, env))
    except (BiremeError, OSError, ValueError) as error:
        print(error)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
