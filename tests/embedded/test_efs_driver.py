"""AWS's EFS driver provisions for the chart's claims: the real driver and provisioner, and moto as AWS."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bireme.clusters.base import Cluster
from bireme.helm import RenderError
from bireme.testing.pytest_plugin import ReleaseFactory
from bireme.tools import Toolbox
from tests.embedded.csi import (
    claim_by_hand,
    is_bound,
    provisioning,
    running,
    said,
    short_folder,
    volumes_of,
)
from tests.runtime.etcd_servers import free_port
from tests.runtime.s3_servers import LOCK, environment_of
from tests.support import api_server
from tests.support.waiting import until

pytestmark = pytest.mark.whole

DRIVER = "efs.csi.aws.com"
REGION = "us-east-1"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": REGION}
TASK = {
    "Cluster": "test",
    "TaskARN": f"arn:aws:ecs:{REGION}:123456789012:task/test/0123456789abcdef0123456789abcdef",
    "AvailabilityZone": f"{REGION}a",
}


class Metadata(api_server.Quiet):
    """Where the driver learns its region from: the metadata of a container of ECS."""

    def do_GET(self) -> None:
        self.answer(json.dumps(TASK).encode())


@dataclass(frozen=True)
class Aws:
    """moto behind a proxy, because the driver takes no other address for EFS than AWS's."""

    python: Path
    env: dict[str, str]

    def efs(self, call: str, **arguments: Any) -> dict[str, Any]:
        """What boto3's EFS client answers."""
        script = (
            "import boto3, json, sys; call, arguments = json.loads(sys.argv[1]);"
            "print(json.dumps(getattr(boto3.client('efs'), call)(**arguments), default=str))"
        )
        command: list[str | Path] = [self.python, "-c", script, json.dumps([call, arguments])]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=120, check=True)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    with short_folder("efs-") as made:
        yield made


@pytest.fixture(scope="module")
def aws(folder: Path) -> Iterator[Aws]:
    moto = environment_of("moto", LOCK)
    (authority,) = moto.glob("lib/python*/site-packages/moto/moto_proxy/ca.crt")
    port = free_port()
    command: list[str | Path] = [moto / "bin/moto_proxy", "-H", "127.0.0.1", "-p", str(port)]
    with running(command, dict(os.environ), folder / "moto.log"):
        until(lambda: answers(port))
        proxy = {"HTTPS_PROXY": f"http://127.0.0.1:{port}", "AWS_CA_BUNDLE": str(authority)}
        yield Aws(moto / "bin/python", {"PATH": os.environ["PATH"], **KEYS, **proxy})


@pytest.fixture(scope="module")
def driver(cluster: Cluster, toolbox: Toolbox, aws: Aws, folder: Path) -> Iterator[Path]:
    """The driver and the provisioner at work for the cluster; the value is the driver's log."""
    (folder / "etc").mkdir()
    (folder / "static").mkdir()
    # The driver writes to /etc/amazon/efs, so it has a /etc of its own.
    own = ["unshare", *(["--user", "--map-root-user"] if os.getuid() else []), "--mount"]
    script = 'mount --bind "$1" /etc && shift && exec "$@"'
    within: list[str | Path] = [*own, "sh", "-ec", script, "sh", folder / "etc"]
    options = [
        f"--endpoint=unix://{folder / 'csi.sock'}",
        f"--efs-utils-static-files-path={folder / 'static'}",
        "-v=5",
    ]
    metadata = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=metadata.serve_forever, daemon=True).start()
    place = {"ECS_CONTAINER_METADATA_URI_V4": f"http://127.0.0.1:{metadata.server_port}"}
    try:
        command = [*within, toolbox.path("efs-csi-driver"), *options]
        with provisioning(cluster, toolbox, DRIVER, command, {**aws.env, **place}, folder) as log:
            yield log
    finally:
        metadata.shutdown()
        metadata.server_close()


def handles(cluster: Cluster, namespace: str) -> dict[str, str]:
    """The handles of the volumes that the driver made for a namespace, by claim."""
    return {claim: csi["volumeHandle"] for claim, csi in volumes_of(cluster, DRIVER, namespace).items()}


def test_claims_get_access_points_with_what_was_asked_for_and_give_them_back(
    release: ReleaseFactory, cluster: Cluster, test_namespace: str, driver: Path, aws: Aws
) -> None:
    system = aws.efs("create_file_system", CreationToken=test_namespace)["FileSystemId"]
    given = {"type": "dynamic", "fileSystemId": system, "reclaimPolicy": "Delete"}
    volumes = {
        "owned": given | {"uid": 1000, "gid": 2000, "directoryPerms": "770", "basePath": "/jobs"},
        "ranged": given
        | {
            "gidRangeStart": 3000,
            "gidRangeEnd": 3010,
            "subPathPattern": "${.PVC.namespace}/${.PVC.name}",
            "ensureUniqueDirectory": False,
        },
        "plain": given,
    }
    efs = release("efs", values={"volumes": volumes})
    until(lambda: all(is_bound(cluster, test_namespace, claim) for claim in volumes))
    made = handles(cluster, test_namespace)
    points = {
        f"{system}::{point['AccessPointId']}": point
        for point in aws.efs("describe_access_points", FileSystemId=system)["AccessPoints"]
    }
    assert set(made.values()) == set(points)
    owned, ranged, plain = (points[made[claim]] for claim in ("owned", "ranged", "plain"))
    assert owned["PosixUser"] == {"Uid": 1000, "Gid": 2000}
    assert owned["RootDirectory"]["Path"].startswith("/jobs/pvc-")
    assert owned["RootDirectory"]["CreationInfo"] == {
        "OwnerUid": 1000,
        "OwnerGid": 2000,
        "Permissions": "770",
    }
    assert 3000 <= ranged["PosixUser"]["Gid"] <= 3010
    assert ranged["RootDirectory"]["Path"] == f"/{test_namespace}/ranged"
    assert plain["RootDirectory"]["CreationInfo"]["Permissions"] == "700"
    assert plain["RootDirectory"]["Path"].startswith("/pvc-")
    efs.uninstall()
    until(lambda: not handles(cluster, test_namespace))
    assert aws.efs("describe_access_points", FileSystemId=system)["AccessPoints"] == []


WRONG: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "mode": ({"accessMode": "ReadOnlyMany"}, {}, "Volume capabilities not supported"),
    "half": ({"gidRangeStart": 3000}, {"gidRangeStart": "3000"}, "Missing gidRangeEnd parameter"),
    "order": (
        {"gidRangeStart": 3000, "gidRangeEnd": 2000},
        {"gidRangeStart": "3000", "gidRangeEnd": "2000"},
        "gidRangeEnd must be greater than gidRangeStart",
    ),
    "pattern": (
        {"subPathPattern": "${.PVC.uid}"},
        {"subPathPattern": "${.PVC.uid}"},
        "contains invalid elements",
    ),
    "deep": (
        {"basePath": "/a/b/c", "subPathPattern": "d/e", "ensureUniqueDirectory": False},
        {"basePath": "/a/b/c", "subPathPattern": "d/e/f", "ensureUniqueDirectory": "false"},
        "EFS limit of 4 subdirectories",
    ),
    "owner": ({"uid": -1, "gid": 1}, {"uid": "-1", "gid": "1"}, "uid must be greater or equal than 0"),
}
"""Values of the chart, the parameters that they would be, and what the driver says to those."""


def test_what_the_driver_refuses_the_chart_refuses_before(
    release: ReleaseFactory, cluster: Cluster, test_namespace: str, driver: Path, aws: Aws
) -> None:
    system = aws.efs("create_file_system", CreationToken=f"{test_namespace}-wrong")["FileSystemId"]
    with contextlib.ExitStack() as stack:
        for case, (values, parameters, _) in WRONG.items():
            wanted = {"type": "dynamic", "fileSystemId": system} | values
            with pytest.raises(RenderError):
                release("efs", values={"volumes": {case: wanted}})
            always = {"provisioningMode": "efs-ap", "fileSystemId": system, "directoryPerms": "700"}
            asked, mode = always | parameters, values.get("accessMode", "ReadWriteMany")
            stack.enter_context(claim_by_hand(cluster, test_namespace, case, DRIVER, asked, mode))
        until(
            lambda: all(said(cluster, test_namespace, case, words) for case, (_, _, words) in WRONG.items())
        )
        assert not handles(cluster, test_namespace)
