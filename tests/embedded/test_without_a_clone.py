"""Charts from a registry and `bireme` from its wheel: an empty folder, an empty HOME, no clone.

Only the cache of built tools is shared with the other tests; without it the first command builds them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import package
import pytest

from bireme.core.paths import Paths
from bireme.tools import Toolbox
from tests.support.registry import serving

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.whole
User = Callable[[str], str]
VALUES = {
    "torch-elastic": "--set instance.type=p4d.24xlarge --set workers=2",
    "mpi-training": "--set instance.type=p4d.24xlarge --set workers=2",
    "paddle": "--set data.jobClaim.existingClaim=fsx-pvc",
    "etcd": "--set persistence.enabled=false",
    "efs": "--set volumes.data.type=nfs --set volumes.data.server=fs-1.efs.us-west-2.amazonaws.com",
    "fsx": "--set checkDriver=false,claimName=other,provisioning=static,static.mountName=fsx"
    ",static.fileSystemId=fs-0123456789abcdef0"
    ",static.dnsName=fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    "dataset": "--set claim.name=fsx-pvc --set claim.path=a --set sources[0].url=s3://bucket/data",
    "efa-device-plugin": "--set region=us-west-2",
    "gpu-metrics": "--set agent=dcgm",
    "mpijob": "--set crds.keep=false",
    "autoscaler": "--set global.imageRegistries.bireme=registry.example.com",
}
# How each job chart takes another number of workers: in place, or with a new run.
SCALED = {"torch-elastic": "", "paddle": "", "mpi-training": "--replace"}


@pytest.fixture(scope="module")
def dist(bireme_paths: Paths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package") / "dist"
    package.package(bireme_paths, folder)
    return folder


@pytest.fixture(scope="module")
def charts(dist: Path, toolbox: Toolbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry that has every chart."""
    helm = str(toolbox.path("helm"))
    with serving(toolbox, tmp_path_factory.mktemp("registry") / "data") as name:
        for archive in dist.glob("*.tgz"):
            command = [helm, "push", str(archive), f"oci://{name}/charts", "--plain-http"]
            subprocess.run(command, check=True, capture_output=True)
        yield f"oci://{name}/charts"


@pytest.fixture(scope="module")
def user(
    dist: Path, toolbox: Toolbox, bireme_paths: Paths, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[User]:
    """Runs a line in an empty folder with `helm`, and with `bireme` installed as docs/ci.md says."""
    home = tmp_path_factory.mktemp("home")
    venv = tmp_path_factory.mktemp("user") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    (home / "wheels").symlink_to(dist)
    environment = {
        "PATH": f"{venv / 'bin'}:{toolbox.path('helm').parent}:/usr/bin:/bin",
        "HOME": str(home),
        "BIREME_CACHE": str(bireme_paths.cache),
        "KUBECONFIG": str(home / ".local/state/bireme/clusters/bireme/kubeconfig"),
        "COLUMNS": "200",
    } | {key: value for key, value in os.environ.items() if key.startswith(("SSL_", "PIP_"))}

    def run(line: str) -> str:
        done = subprocess.run(
            line, shell=True, cwd=home, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    (install,) = re.findall(r"^ +- run: (pip install .*)$", (ROOT / "docs/ci.md").read_text(), re.MULTILINE)
    run(install)
    run("bireme up --nodes p4d.24xlarge=4,cpu=2 --claim fsx-pvc")
    yield run
    run("bireme down")


def test_every_chart_is_tried(user: User) -> None:
    assert sorted(VALUES) == user("bireme list charts").split()


@pytest.mark.parametrize("chart", sorted(VALUES))
def test_bireme_plans_installs_and_removes_every_chart_from_a_registry(
    user: User, charts: str, chart: str
) -> None:
    where = f"{charts}/{chart} run --plain-http {VALUES[chart]}"
    plan = json.loads(user(f"bireme plan {where} -o json"))
    user(f"bireme install {where}")
    assert chart in user("bireme list")
    status = json.loads(user("bireme status run -o json"))
    assert status["differences"] == []
    # A plan that is not told the nodes counts no pods of DaemonSets.
    assert plan["totals"]["pods"] in (len(status["pods"]), 0)
    user("bireme uninstall run")
    assert user("helm list --short") == ""


@pytest.mark.parametrize(("chart", "scale"), sorted(SCALED.items()))
def test_bireme_scales_a_job_from_a_registry(user: User, charts: str, chart: str, scale: str) -> None:
    user(f"bireme install {charts}/{chart} run --plain-http {VALUES[chart]} --set workers=2")
    before = json.loads(user("bireme status run -o json"))["pods"]
    user(f"bireme scale run 3 {scale}")
    assert len(json.loads(user("bireme status run -o json"))["pods"]) == len(before) + 1
    user("bireme uninstall run")


@pytest.mark.parametrize("workload", ["torch-elastic -f imagenet-efa", "mpi-training -f nccl-tests"])
def test_values_of_types_and_workloads_have_names(user: User, charts: str, workload: str) -> None:
    where = f"{charts}/{workload} run --plain-http -f p4d.24xlarge --set workers=2"
    user(f"bireme install {where}")
    assert json.loads(user("bireme status run -o json"))["differences"] == []
    user("bireme uninstall run")


def test_the_demo_needs_no_clone(user: User) -> None:
    assert "imagenet" in user("bireme demo")
