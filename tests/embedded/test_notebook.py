"""The notebook of the recipes: its cells run, with what `bireme.Cluster` offers programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bireme
from bireme.clusters.base import Cluster
from bireme.clusters.embedded import EmbeddedCluster
from bireme.core.errors import BiremeError
from tests.support import faults

ROOT = Path(__file__).parents[2]
CELLS = json.loads((ROOT / "examples/notebook.ipynb").read_text())["cells"]


@pytest.fixture
def nodes(cluster: EmbeddedCluster) -> Iterator[None]:
    """Two nodes for the job's two workers."""
    names = cluster.add_nodes("g5.xlarge", 2)
    yield
    for name in names:
        faults.remove_node(cluster, name)


@pytest.mark.usefixtures("nodes")
def test_the_cells_of_the_notebook_plan_install_follow_and_remove_a_job(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    there: dict[str, Any] = {}
    for cell in CELLS:
        if cell["cell_type"] != "code":
            continue
        if "needs-containers" in cell["metadata"].get("tags", ()):
            # The nodes here are fake, so this much of it can be tried.
            with pytest.raises(BiremeError, match="whose kubelet the API server cannot reach"):
                exec("".join(cell["source"]), there)
        else:
            exec("".join(cell["source"]), there)
    assert there["plan"].totals.accelerators == 2
    assert not there["installed"].differences
    said = capsys.readouterr().out
    assert said.count("Running") == 3, said
    with pytest.raises(BiremeError, match="no release notebook"):
        bireme.Cluster().status("notebook")
