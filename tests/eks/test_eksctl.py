"""eksctl itself reads what `bireme eksctl` prints: its dry run with every instance type, on moto as AWS."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator

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

Judge = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """``judge(cluster)``: what ``eksctl create cluster --dry-run`` says of a ClusterConfig."""
    folder = tmp_path_factory.mktemp("eksctl")
    eksctl = str(Toolbox(PATHS).path("eksctl"))
    with s3_server(folder / "log") as server:
        aws = {"AWS_ENDPOINT_URL": server.url, "AWS_EC2_METADATA_DISABLED": "true", "HOME": str(folder)}

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
