"""What listens in pods that run, beside the table of ports in SECURITY.md."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.kind.shell import NODE_TYPE, Shell, until
from tests.support.documents import ROOT

pytestmark = pytest.mark.whole

# Of the kernel: 0A stands for a socket that listens.
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
# Processes of a job choose theirs from this range, where nothing else is asked for.
FIRST_OF_THEIR_OWN = 32768


def in_the_table() -> dict[int, str]:
    """The pods of each port that SECURITY.md names."""
    rows = re.findall(r"^\| (\d+) \S+ \| ([^|]+) \|", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    return {int(port): pods for port, pods in rows}


def listening(shell: Shell, job: InstalledRelease) -> dict[str, set[int]]:
    """The ports below the range of chosen ones on which the containers of each pod listen."""
    found: dict[str, set[int]] = {}
    for pod in job.objects("pods"):
        if pod["status"]["phase"] != "Running":
            continue
        name = pod["metadata"]["name"]
        # All containers of a pod share its sockets. An image may have no cat.
        said = [
            shell.attempt("-n", job.namespace, "exec", name, "-c", each["name"], "--", "cat", *TABLES)
            for each in pod["spec"]["containers"]
        ]
        (text, *_) = filter(None, said)
        ports = {int(port, 16) for port in re.findall(r"^ *\d+: \w+:(\w{4}) \S+ 0A ", text, re.MULTILINE)}
        found[name] = {port for port in ports if port < FIRST_OF_THEIR_OWN}
    return found


def assert_known(found: dict[str, set[int]], *expected: int) -> None:
    unknown = {pod: ports - in_the_table().keys() for pod, ports in found.items()}
    assert not any(unknown.values()), unknown
    assert set(expected) <= set().union(*found.values()), found


def test_mpi_pods_listen_where_the_table_says(
    release: ReleaseFactory, shell: Shell, load: Callable[..., None]
) -> None:
    load("mpi-5", "python")
    values = {"workers": 2, "args": ["sleep", "3600"]}
    job = release(
        "mpi-training", values=values, instance=NODE_TYPE, files=["values/kind-mpi.yaml"], timeout=180
    )
    until(lambda: 2222 in set().union(*listening(shell, job).values()), 120, "sshd to listen")
    assert_known(listening(shell, job), 2222)
