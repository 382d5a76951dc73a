"""eksctl itself reads what `bireme eksctl` prints: its dry run with every instance type, on moto as AWS.

moto does not list the versions of EKS, which eksctl asks for first: that answer is a stand-in.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from click.testing import CliRunner

from bireme.cli import cli
from bireme.core.paths import Paths
from bireme.tools import Toolbox
from tests.runtime.s3_servers import KEYS, s3_server
from tests.support.instance_types import EACH_TYPE

PATHS = Paths.discover()
ZONES = [f"{region}{zone}" for region in ("us-west-2", "us-east-1", "us-east-2") for zone in "abcd"]
# By moto's copy of AWS's offerings, no zone has these any more (docs/eks.md).
RETIRED = {"p3.2xlarge", "p3.8xlarge", "p3.16xlarge"}
OTHER = {"a": "b", "b": "a", "c": "a", "d": "a"}


class Versions(BaseHTTPRequestHandler):
    """EKS, of which eksctl's dry run needs the list of versions only."""

    def do_GET(self) -> None:
        """Answer DescribeClusterVersions, and refuse all else."""
        known = self.path.startswith("/cluster-versions")
        versions = [
            {
                "clusterVersion": version,
                "defaultVersion": version == "1.35",
                "versionStatus": "STANDARD_SUPPORT",
            }
            for version in ("1.33", "1.34", "1.35")
        ]
        body = json.dumps({"clusterVersions": versions} if known else {"message": self.path}).encode()
        self.send_response(200 if known else 501)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the tests print what eksctl says."""


@pytest.fixture(scope="module")
def eks() -> Iterator[str]:
    """The address of the stand-in for EKS."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Versions)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


Judge = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory, eks: str) -> Iterator[Judge]:
    """``judge(cluster)``: what ``eksctl create cluster --dry-run`` says of a ClusterConfig."""
    folder = tmp_path_factory.mktemp("eksctl")
    eksctl = str(Toolbox(PATHS).path("eksctl"))
    with s3_server(folder / "log") as server:
        aws = {"AWS_ENDPOINT_URL": server.url, "AWS_ENDPOINT_URL_EKS": eks, "HOME": str(folder)}
        aws["AWS_EC2_METADATA_DISABLED"] = "true"

        def _judge(cluster: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [eksctl, "create", "cluster", "--dry-run", "-f", "-"],
                input=cluster,
                env={**os.environ, **KEYS, **aws},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )

        yield _judge


def printed(*options: str) -> str:
    """What ``bireme eksctl`` prints."""
    done = CliRunner().invoke(cli, ["eksctl", *options])
    assert done.exit_code == 0, done.output
    return str(done.stdout)


def where_it_is_sold(judge: Judge, name: str) -> subprocess.CompletedProcess[str]:
    """What eksctl says in the first zone of AWS that has the type: eksctl asks AWS for that too."""
    for zones in ZONES:
        place = ["--region", zones[:-1], "--zones", f"{zones},{zones[:-1]}{OTHER[zones[-1]]}"]
        done = judge(printed("--nodes", f"{name}=3", *place))
        if "support instance type" not in done.stderr:
            return done
    return done


@EACH_TYPE
def test_eksctl_accepts_the_nodes_of_each_type(judge: Judge, types: tuple[str, ...]) -> None:
    for name in types:
        check_nodes(judge, name)


def check_nodes(judge: Judge, name: str) -> None:
    done = where_it_is_sold(judge, name)
    if name in RETIRED:
        assert "support instance type" in done.stderr
        return
    assert done.returncode == 0, done.stdout + done.stderr
    groups = {each["name"]: each for each in yaml.safe_load(done.stdout)["managedNodeGroups"]}
    (group,) = [each for each in groups.values() if each["desiredCapacity"] == 3]
    assert group["privateNetworking"]
    assert group["disableIMDSv1"]
    assert group["nodeRepairConfig"] == {"enabled": True}


@pytest.mark.parametrize(
    "options",
    [
        ["--capacity", "spot"],
        ["--capacity", "reservation", "--reservation", "cr-0123456789abcdef0"],
        ["--capacity", "block", "--reservation", "cr-0123456789abcdef0"],
        ["--placement-group", "near"],
        ["--admit", "192.0.2.0/24"],
    ],
    ids=lambda options: options[1],
)
def test_eksctl_accepts_every_way_to_buy_and_place_nodes(judge: Judge, options: list[str]) -> None:
    done = judge(printed("--nodes", "cpu=1,p5.48xlarge=2", *options))
    assert done.returncode == 0, done.stdout + done.stderr


def test_eksctl_refuses_a_field_that_it_does_not_have(judge: Judge) -> None:
    done = judge(printed("--nodes", "p4d.24xlarge=3").replace("efaEnabled", "efa"))
    assert done.returncode == 1
    assert 'unknown field "efa"' in done.stderr
