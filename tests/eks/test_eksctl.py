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
from bireme.instances import load_instances
from bireme.paths import Paths
from bireme.tools import Toolbox
from tests.runtime.s3_servers import KEYS, s3_server

PATHS = Paths.discover()
TYPES = sorted(load_instances(PATHS))


class Versions(BaseHTTPRequestHandler):
    """EKS, of which eksctl's dry run needs the list of versions only."""

    def do_GET(self) -> None:
        """Answer DescribeClusterVersions, and refuse all else."""
        known = self.path.startswith("/cluster-versions")
        versions = [
            {
                "clusterVersion": version,
                "defaultVersion": version == "1.34",
                "versionStatus": "STANDARD_SUPPORT",
            }
            for version in ("1.32", "1.33", "1.34")
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
    done = CliRunner().invoke(cli, ["eksctl", "--zones", "us-west-2a,us-west-2b", *options])
    assert done.exit_code == 0, done.output
    return str(done.stdout)


@pytest.mark.parametrize("name", TYPES)
def test_eksctl_accepts_the_nodes_of_each_type(judge: Judge, name: str) -> None:
    done = judge(printed("--nodes", f"{name}=3"))
    assert done.returncode == 0, done.stdout + done.stderr
    groups = {each["name"]: each for each in yaml.safe_load(done.stdout)["managedNodeGroups"]}
    (group,) = [each for each in groups.values() if each["desiredCapacity"] == 3]
    assert group["privateNetworking"]
    assert group["disableIMDSv1"]
