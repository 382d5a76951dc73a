"""`bireme nccl` reads, from the cluster, what a bandwidth sweep over the pods' network printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bireme.cli import cli
from bireme.clusters.kind import KindCluster
from bireme.core.errors import BiremeError
from bireme.testing.pytest_plugin import ReleaseFactory
from tests.kind.shell import NODE_TYPE, until
from tests.kind.training import outcome

pytestmark = pytest.mark.whole

SWEEP = Path(__file__).parents[2] / "images/mpi/all_reduce_bandwidth.py"


@pytest.fixture(scope="module", autouse=True)
def image(load: Callable[..., None]) -> None:
    load("mpi-5")


def test_a_sweep_of_two_pods_is_read_and_is_not_taken_for_efa(
    release: ReleaseFactory, cluster: KindCluster
) -> None:
    def nccl(*options: str) -> Result:
        where = ["-n", job.namespace, "--kubeconfig", str(cluster.kubeconfig)]
        return CliRunner().invoke(cli, ["nccl", job.name, *where, *options])

    options = {"instance": NODE_TYPE, "files": ["values/kind-mpi.yaml"], "timeout": 180}
    values = {"workers": 2, "script": SWEEP.read_text(encoding="utf-8"), "args": ["--maxbytes=256K"]}
    job = release("mpi-training", **options, values={**values, "efa": 1})
    until(lambda: outcome(job) == "Complete", 180, "the end of the sweep")
    result = nccl("-o", "json")
    data = json.loads(result.stdout)
    assert (data["ranks"], data["hosts"], data["wrong"], data["efa"]) == (2, 2, 0, False)
    assert data["asked"] == {"type": NODE_TYPE, "nodes": 2, "efa": 1}
    assert 0 < data["busBandwidth"]["average"] <= data["busBandwidth"]["maximum"]
    assert isinstance(result.exception, BiremeError)
    assert "asked for 1 EFA interfaces per node, but its log does not name the network" in str(
        result.exception
    )
