"""Where a worker's node is in the network. Workers behind one switch get neighbouring ranks (rules.py).

As a program, this module is the init container that reads the labels of the pod's node. It alone has the
ServiceAccount's token. Without labels, ranks are by slot.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from bireme_runtime.process.errors import BiremeError, Unreachable, end_on_sigterm
from bireme_runtime.process.http import Address, fetch
from bireme_runtime.process.log import log_of

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# The answer without status and addresses, which a list of images makes long.
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_TIMEOUT = 10.0
# A role that was just made is not known to every API server at once.
_PATIENCE, _REFUSED_PATIENCE = 60.0, 10.0


class Refused(Unreachable):
    """The API server refuses, mostly for good."""


def place_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """What `main` wrote to the file BIREME_TOPOLOGY_FILE; empty if there is none."""
    try:
        return tuple(map(str, json.loads(Path(env["BIREME_TOPOLOGY_FILE"]).read_text(encoding="utf-8"))))
    except (KeyError, OSError, ValueError):
        return ()


def main(env: Mapping[str, str] = os.environ, account: Path = _ACCOUNT) -> int:
    """Write the labels BIREME_TOPOLOGY_LABELS of the node BIREME_NODE to a file; returns the exit code, 0.

    The API server is that of KUBERNETES_SERVICE_HOST and _PORT, token and ca.crt are in the folder `account`.
    """
    say, names = log_of("topology"), env["BIREME_TOPOLOGY_LABELS"].split(",")
    try:
        labels = _labels(env, account)
    except BiremeError as error:
        say(f"the labels of this node are not known, so that ranks are by slot: {error}")
        return 0
    place = [labels.get(name, "") for name in names]
    if any(place):
        Path(env["BIREME_TOPOLOGY_FILE"]).write_text(json.dumps(place), encoding="utf-8")
    missing = [name for name, value in zip(names, place) if not value]
    say(f"{env['BIREME_NODE']}: {'/'.join(filter(None, place)) or 'none of the labels'}")
    if missing:
        say(f"{env['BIREME_NODE']} has no label {', '.join(missing)}")
    return 0


def _labels(env: Mapping[str, str], account: Path) -> Mapping[str, str]:
    """The labels of the node. Raises Unreachable."""
    began = time.monotonic()
    while True:
        try:
            return _ask(env, account)
        except Unreachable as error:
            patience = _REFUSED_PATIENCE if isinstance(error, Refused) else _PATIENCE
            if time.monotonic() >= began + patience:
                raise
            time.sleep(1.0)


def _ask(env: Mapping[str, str], account: Path) -> Mapping[str, str]:
    try:
        token = (account / "token").read_text(encoding="utf-8").strip()
        tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
        address = Address(env["KUBERNETES_SERVICE_HOST"], int(env["KUBERNETES_SERVICE_PORT"]))
    except (OSError, KeyError, ValueError) as error:
        raise Refused(f"this pod cannot ask the API server ({error!r})") from error
    headers = {"Authorization": f"Bearer {token}", "Accept": f"{_METADATA},application/json"}
    reply = fetch(address, f"/api/v1/nodes/{env['BIREME_NODE']}", _TIMEOUT, tls, headers)
    if reply.status != 200:
        raised = Refused if reply.status in (401, 403, 404) else Unreachable
        raise raised(f"the API server answered with HTTP {reply.status}; see the release's ClusterRole")
    return dict(json.loads(reply.body)["metadata"].get("labels", {}))


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main())
