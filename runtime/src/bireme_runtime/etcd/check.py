"""Check that etcd answers: `python3 -m bireme_runtime.etcd.check ENDPOINT…`, for `helm test`.

It retries for BIREME_WAIT_SECONDS (30), prints one sentence and exits with 0 or 1. It logs in as
BIREME_ETCD_USERNAME if that is set.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence

from bireme_runtime.etcd import client as etcd
from bireme_runtime.process import environment, ports

_USAGE = "usage: python3 -m bireme_runtime.etcd.check ENDPOINT…"


def check(endpoints: Sequence[str], env: Mapping[str, str]) -> str:
    """Read from etcd, which needs a majority of its members; returns a sentence.

    Raises etcd.EtcdError or ValueError.
    """
    client = etcd.client_from(",".join(endpoints), env)
    seconds = environment.seconds(env, "BIREME_WAIT_SECONDS", 30)
    status = etcd.wait_until_up(client, seconds, lambda sentence: None)
    # Of an etcd with users only root reads the status.
    with contextlib.suppress(etcd.AuthError):
        if "NOSPACE" in str(client.call("/v3/maintenance/status", {}).get("errors", "")):
            raise etcd.OutOfSpace
    name = f"etcd {status.version}".strip()
    return f"{name} at {status.endpoint} answers, with a majority behind it"


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Check the endpoints; returns the exit code."""
    return ports.main(argv, env, check, _USAGE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
