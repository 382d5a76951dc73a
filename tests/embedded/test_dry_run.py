"""The API server itself accepts what the charts render.

In `make test` other files of this folder install each chart, and `bireme check` knows the schema of all that
these values render.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bireme.clusters.base import Cluster
from bireme.helm import Render
from bireme.tools import Toolbox

# Kinds that other projects define; the cluster has MPIJobs where charts/mpijob is installed.
FOREIGN = {"Certificate", "MPIJob", "PodGroup", "PodMonitor", "PrometheusRule", "ServiceMonitor"}
RELEASE = "dry-run"
ROOT = Path(__file__).parents[2]
Kubectl = Callable[..., "subprocess.CompletedProcess[str]"]
CI_VALUES = sorted(str(file.relative_to(ROOT)) for file in ROOT.glob("charts/*/ci/*-values.yaml"))
pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def kubectl(cluster: Cluster, toolbox: Toolbox) -> Kubectl:
    """Runs kubectl on the cluster, with an object as its standard input."""

    def run(*command: str, given: object = None) -> subprocess.CompletedProcess[str]:
        argv = [str(toolbox.path("kubectl")), "--kubeconfig", str(cluster.kubeconfig), *command]
        return subprocess.run(argv, input=json.dumps(given), capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="module")
def account(kubectl: Kubectl) -> Iterator[None]:
    """The release's ServiceAccount, without which the API server refuses pods that name it."""
    kubectl("create", "serviceaccount", RELEASE)
    yield
    kubectl("delete", "serviceaccount", RELEASE)


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("values", CI_VALUES)
def test_server_side_dry_run_accepts_every_object_of_a_kind_it_knows(
    kubectl: Kubectl, render: Callable[..., Render], values: str
) -> None:
    rendered = render(values.split("/")[1], files=[values], release=RELEASE)
    items = [item.thaw() for item in rendered.manifests if item.kind not in FOREIGN]
    objects = {"apiVersion": "v1", "kind": "List", "items": items}
    applied = kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", given=objects)
    assert applied.returncode == 0, applied.stderr
    assert len(applied.stdout.splitlines()) == len(items)
