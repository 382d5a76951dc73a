"""From each chart as it was last released to the chart as it is, and back by helm rollback."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from release import NoHistory, read_release

from bireme.clusters.base import Cluster
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.schemas.moves import migrated
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from bireme.tools import Toolbox
from tests.support.fsx import STATIC
from tests.support.tiers import core

IN_POD = "persistence.enabled=false"
NFS = {"type": "nfs", "server": "fs-0123456789abcdef0.efs.us-west-2.amazonaws.com", "size": "5Gi"}
P4D: dict[str, Any] = {"instance": "p4d.24xlarge"}
JOBS: dict[str, dict[str, Any]] = {
    "torch-elastic": {**P4D, "sets": ["workers=2"]},
    "mpi-training": {**P4D, "workload": "nccl-tests", "sets": ["workers=2"]},
    "dataset": {
        "values": {"claim": {"name": "fsx-pvc", "path": "a"}, "sources": [{"url": "s3://imagenet/a"}]}
    },
    "paddle": {"files": ["charts/paddle/ci/check-values.yaml"]},
}
OLD_VALUES = {
    "torch-elastic": "minWorkers: 1\nmaxWorkers: 8\nhugePages: 5120Mi\nargs: [imagenet.py]\nsetup: date\n",
}
"""Values files of the last release, with names that moved since."""
OTHERS: dict[str, dict[str, Any]] = {
    "etcd": {"sets": [IN_POD]},
    "efs": {"values": {"volumes": {"efsvol": NFS}}},
    "fsx": {"values": STATIC | {"claimName": "upgraded"}},
    "efa-device-plugin": {"sets": ["region=us-west-2"]},
    "gpu-metrics": {"sets": ["agent=dcgm"]},
    # The CustomResourceDefinition belongs to this release: it goes with it.
    "mpijob": {"sets": ["crds.keep=false"]},
    "autoscaler": {"sets": ["global.imageRegistries.bireme=registry.example.com"]},
}


@pytest.fixture(scope="module")
def released(bireme_paths: Paths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the charts as they were last released."""
    try:
        return read_release(bireme_paths, tmp_path_factory.mktemp("released")).charts
    except NoHistory as error:
        pytest.skip(str(error))


def test_every_released_chart_is_upgraded(released: Path) -> None:
    charts = {chart.name for chart in released.iterdir()}
    assert charts == {"common"} | JOBS.keys() | OTHERS.keys()


def uids(release: InstalledRelease) -> set[str]:
    return {pod["metadata"]["uid"] for pod in release.objects("pods")}


def roll_back(release: InstalledRelease, toolbox: Toolbox, cluster: Cluster) -> None:
    """To the first revision, by Helm alone."""
    command = [str(toolbox.path("helm")), "rollback", release.name, "1", "--namespace", release.namespace]
    done = subprocess.run(
        [*command, "--kubeconfig", str(cluster.kubeconfig)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("chart", core("torch-elastic", of=sorted(JOBS)))
def test_an_upgraded_job_keeps_its_pods_or_is_refused_and_can_be_rolled_back(
    release: ReleaseFactory,
    released: Path,
    toolbox: Toolbox,
    cluster: Cluster,
    tmp_path: Path,
    chart: str,
) -> None:
    file, options = tmp_path / "mine.yaml", JOBS[chart]
    options = {**options, "files": [*options.get("files", []), file]}
    file.write_text(OLD_VALUES.get(chart, ""))
    job = release(str(released / chart), **options)
    first, before = job.plan, uids(job)
    job.chart = chart
    file.write_text(migrated(chart, file.read_text(), file.name)[0])
    if job.changes(**options).is_refused:
        with pytest.raises(BiremeError, match=r"upgrade changes .* (set run=2|raise run)"):
            job.upgrade(**options)
        assert uids(job) == before
        job.upgrade(replace=True, **options)
    else:
        job.upgrade(**options)
        assert uids(job) == before
    assert job.differences() == ()
    job.plan = first
    roll_back(job, toolbox, cluster)
    assert job.wait() == ()


@pytest.fixture
def fsx_driver(cluster: Cluster) -> Iterator[None]:
    """The registration of FSx's driver, which charts/fsx looks for."""
    drivers = "/apis/storage.k8s.io/v1/csidrivers"
    cluster.api.create(drivers, {"metadata": {"name": "fsx.csi.aws.com"}, "spec": {"attachRequired": False}})
    yield
    cluster.api.delete(f"{drivers}/fsx.csi.aws.com")


@pytest.mark.usefixtures("fsx_driver")
@pytest.mark.parametrize("chart", core("etcd", of=sorted(OTHERS)))
def test_an_upgrade_of_other_charts_works_in_place_and_back(
    release: ReleaseFactory, released: Path, toolbox: Toolbox, cluster: Cluster, chart: str
) -> None:
    options = OTHERS[chart]
    installed = release(str(released / chart), **options)
    first = installed.plan
    installed.chart = chart
    assert not installed.changes(**options).is_refused
    installed.upgrade(**options)
    installed.plan = first
    roll_back(installed, toolbox, cluster)
    assert installed.wait() == ()
