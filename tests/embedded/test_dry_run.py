"""The API server itself accepts what the charts render."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bireme.clusters import Cluster
from bireme.helm import Render
from bireme.tools import Toolbox

# Kinds that other projects define; the cluster has MPIJobs where charts/mpijob is installed.
FOREIGN = {"Certificate", "ServiceMonitor", "MPIJob"}
ROOT = Path(__file__).parents[2]
CI_VALUES = sorted(str(file.relative_to(ROOT)) for file in ROOT.glob("charts/*/ci/*-values.yaml"))


@pytest.mark.parametrize("values", CI_VALUES)
def test_server_side_dry_run_accepts_every_object_of_a_kind_it_knows(
    cluster: Cluster, toolbox: Toolbox, render: Callable[..., Render], values: str
) -> None:
    rendered = render(values.split("/")[1], files=[values], release="dry-run")
    items = [item.thaw() for item in rendered.manifests if item.kind not in FOREIGN]
    objects = {"apiVersion": "v1", "kind": "List", "items": items}
    command = [
        str(toolbox.path("kubectl")),
        "--kubeconfig",
        str(cluster.kubeconfig),
        "apply",
        "--server-side",
        "--dry-run=server",
        "-f",
        "-",
    ]
    applied = subprocess.run(command, input=json.dumps(objects), capture_output=True, text=True, check=False)
    assert applied.returncode == 0, applied.stderr
    assert len(applied.stdout.splitlines()) == len(items)
