"""AWS's FSx driver for the chart's claims: the real driver and provisioner, and a stand-in for FSx."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.clusters.base import Cluster
from bireme.core.errors import BiremeError
from bireme.testing.pytest_plugin import ReleaseFactory
from bireme.tools import Toolbox
from tests.embedded.csi import (
    claim_by_hand,
    is_bound,
    provisioning,
    said,
    short_folder,
    volumes_of,
)
from tests.support import api_server, waiting
from tests.support.fsx import DYNAMIC

DRIVER = "fsx.csi.aws.com"
CI = Path(__file__).parents[2] / "charts/fsx/ci"
# The driver looks after 30 s for the first time whether a file system is there.
until = partial(waiting.until, seconds=240)


class Fsx:
    """A stand-in for FSx, whose file systems are there at once. ``asked`` has the requests to make one."""

    def __init__(self) -> None:
        self.asked: dict[str, dict[str, Any]] = {}
        self.systems: dict[str, dict[str, Any]] = {}

    def answer(self, call: str, request: dict[str, Any]) -> dict[str, Any]:
        """What FSx answers to a call."""
        if call == "CreateFileSystem":
            name = f"fs-{len(self.asked):017x}"
            self.asked[name] = request
            made = {"FileSystemId": name, "Lifecycle": "AVAILABLE", "DNSName": f"{name}.fsx.amazonaws.com"}
            kept = ("StorageCapacity", "StorageType", "Tags", "LustreConfiguration")
            self.systems[name] = made | {key: request[key] for key in kept if key in request}
            return {"FileSystem": self.systems[name]}
        if call == "DeleteFileSystem":
            self.systems.pop(request["FileSystemId"])
            return {"FileSystemId": request["FileSystemId"], "Lifecycle": "DELETING"}
        assert call == "DescribeFileSystems", call
        wanted = request.get("FileSystemIds") or list(self.systems)
        return {"FileSystems": [self.systems[name] for name in wanted]}


@pytest.fixture(scope="module")
def fsx() -> Iterator[tuple[Fsx, str]]:
    """The stand-in and its URL."""
    stand_in = Fsx()

    class Handler(api_server.Quiet):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            call = self.headers["X-Amz-Target"].rpartition(".")[2]
            body = json.dumps(stand_in.answer(call, request)).encode()
            self.answer(body, Content_Type="application/x-amz-json-1.1")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield stand_in, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def driver(cluster: Cluster, toolbox: Toolbox, fsx: tuple[Fsx, str]) -> Iterator[Fsx]:
    """The driver and the provisioner at work for the cluster; the value is the stand-in that they ask."""
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-west-2"}
    env = {"PATH": os.environ["PATH"], **keys, "AWS_ENDPOINT_URL_FSX": fsx[1]}
    with short_folder("fsx-") as folder:
        command: list[str | Path] = [toolbox.path("fsx-csi-driver"), "--mode=controller", "-v=5"]
        command.append(f"--endpoint=unix://{folder / 'csi.sock'}")
        # As in the driver's own chart: making a file system takes minutes.
        with provisioning(cluster, toolbox, DRIVER, command, env, folder):
            yield fsx[0]


def values_of(name: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((CI / f"{name}-values.yaml").read_text())
    return values


def tags(**more: str) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in more.items()]


SUBNET, GROUP = "subnet-0123456789abcdef0", "sg-0123456789abcdef0"
COMMON = {"FileSystemType": "LUSTRE", "StorageType": "SSD", "SubnetIds": [SUBNET]}
ASKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "efa": (
        values_of("efa") | {"dynamic": values_of("efa")["dynamic"] | {"volumeBindingMode": "Immediate"}},
        {
            "StorageCapacity": 4800,
            "SecurityGroupIds": [GROUP, "sg-0123456789abcdef1"],
            "FileSystemTypeVersion": "2.15",
            "Tags": tags(team="vision"),
            "LustreConfiguration": {
                "DeploymentType": "PERSISTENT_2",
                "PerUnitStorageThroughput": 1000,
                "DataCompressionType": "NONE",
                "EfaEnabled": True,
                "MetadataConfiguration": {"Mode": "USER_PROVISIONED", "Iops": 6000},
            },
        },
    ),
    "s3": (
        values_of("s3"),
        {
            "StorageCapacity": 2400,
            "SecurityGroupIds": [GROUP],
            "FileSystemTypeVersion": "2.15",
            "Tags": [],
            "LustreConfiguration": {
                "DeploymentType": "SCRATCH_2",
                "DataCompressionType": "NONE",
                "ImportPath": "s3://imagenet/ILSVRC",
                "ExportPath": "s3://imagenet/export",
                "AutoImportPolicy": "NEW_CHANGED",
            },
        },
    ),
    "kept": (
        DYNAMIC
        | {
            "dynamic": DYNAMIC["dynamic"]
            | {
                "deploymentType": "PERSISTENT_1",
                "perUnitStorageThroughput": 100,
                "dataCompressionType": "LZ4",
                "automaticBackupRetentionDays": 7,
                "kmsKeyId": "alias/training",
            },
        },
        {
            "StorageCapacity": 1200,
            "SecurityGroupIds": [GROUP],
            "FileSystemTypeVersion": "2.15",
            "KmsKeyId": "alias/training",
            "Tags": [],
            "LustreConfiguration": {
                "DeploymentType": "PERSISTENT_1",
                "PerUnitStorageThroughput": 100,
                "DataCompressionType": "LZ4",
                "AutomaticBackupRetentionDays": 7,
            },
        },
    ),
}
"""Values of the chart, and what FSx is asked for."""


@pytest.mark.whole
def test_claims_get_file_systems_with_what_was_asked_for(
    release: ReleaseFactory, cluster: Cluster, test_namespace: str, driver: Fsx
) -> None:
    releases = {
        case: release("fsx", values=values | {"claimName": case}) for case, (values, _) in ASKED.items()
    }
    until(lambda: all(is_bound(cluster, test_namespace, claim) for claim in ASKED))
    made = volumes_of(cluster, DRIVER, test_namespace)
    for case, (_, wanted) in ASKED.items():
        asked = driver.asked[made[case]["volumeHandle"]]
        own = [tag for tag in asked["Tags"] if tag["Key"] != "CSIVolumeName"]
        assert len(own) == len(asked["Tags"]) - 1
        assert asked | {"Tags": own} == COMMON | wanted | {"ClientRequestToken": asked["ClientRequestToken"]}
        told = {key: value for key, value in made[case]["volumeAttributes"].items() if "/" not in key}
        assert told == {"dnsname": f"{made[case]['volumeHandle']}.fsx.amazonaws.com", "mountname": "fsx"}
    for each in releases.values():
        each.uninstall()
    # Only scratch has reclaimPolicy Delete.
    until(lambda: made["s3"]["volumeHandle"] not in driver.systems)
    assert {made["efa"]["volumeHandle"], made["kept"]["volumeHandle"]} <= driver.systems.keys()


WRONG: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "mode": ({"accessMode": "ReadOnlyMany"}, {}, "Volume capabilities not supported"),
    "subnet": ({"dynamic": {"subnetId": ""}}, {"subnetId": ""}, "SubnetId is required"),
    "throughput": (
        {"dynamic": {"perUnitStorageThroughput": "much"}},
        {"perUnitStorageThroughput": "much"},
        "perUnitStorageThroughput must be a number",
    ),
    "backups": (
        {"dynamic": {"automaticBackupRetentionDays": "7d"}},
        {"automaticBackupRetentionDays": "7d"},
        "automaticBackupRetentionDays must be a number",
    ),
    "efa": ({"dynamic": {"efaEnabled": "maybe"}}, {"efaEnabled": "maybe"}, "efaEnabled must be a bool"),
    "iops": (
        {"dynamic": {"metadata": {"mode": "USER_PROVISIONED", "iops": "12k"}}},
        {"metadataConfigurationMode": "USER_PROVISIONED", "metadataIops": "12k"},
        "metadataIops must be a number",
    ),
    "tags": ({"dynamic": {"extraTags": {"a": "b=c"}}}, {"extraTags": "a=b=c"}, "invalid extraTag a=b=c"),
}
"""Values of the chart, the parameters that they would be, and what the driver says to those."""


@pytest.mark.whole
def test_what_the_driver_refuses_the_chart_refuses_before(
    release: ReleaseFactory, cluster: Cluster, test_namespace: str, driver: Fsx
) -> None:
    before = len(driver.asked)
    with contextlib.ExitStack() as stack:
        for case, (values, parameters, _) in WRONG.items():
            dynamic = DYNAMIC["dynamic"] | values.get("dynamic", {})
            with pytest.raises(BiremeError):
                release("fsx", values=DYNAMIC | values | {"dynamic": dynamic, "claimName": case})
            asked = {"subnetId": SUBNET, "securityGroupIds": GROUP} | parameters
            mode = values.get("accessMode", "ReadWriteMany")
            stack.enter_context(claim_by_hand(cluster, test_namespace, case, DRIVER, asked, mode))
        until(
            lambda: all(said(cluster, test_namespace, case, words) for case, (_, _, words) in WRONG.items())
        )
    assert len(driver.asked) == before


def test_the_driver_knows_each_parameter_that_the_chart_can_set(toolbox: Toolbox) -> None:
    """It ignores those that it does not know."""
    source = (toolbox.source("fsx-csi-driver") / "pkg/driver/controller.go").read_text()
    known = set(re.findall(r'volumeParams\w+\s*= "(\w+)"', source))
    assert {"subnetId", "metadataIops"} <= known
    template = (CI.parent / "templates/_helpers.tpl").read_text()
    body = template.partition('define "fsx.parameters"')[2].partition("{{/*")[0]
    # Storage of type HDD, and backups at an hour, are not offered.
    set_here = set(re.findall(r'"([a-z]\w+)" \(?(?:\$d\.|join|int64|"SSD")', body))
    set_here |= set(re.findall(r'set \$parameters "(\w+)"', body))
    assert len(set_here) >= 16
    assert set_here <= known
