"""The plugin serves a team with its own chart (tests/example), in a pytest run of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.clusters.base import Cluster
from bireme.core.paths import Paths
from bireme.tools import Toolbox
from tests.unit.test_pytest_plugin import WEB, snippets

REPORT = """
import os
from pathlib import Path

def test_it(cluster, worker_id):
    assert cluster.api.get("/version")["gitVersion"]
    Path(os.environ["REPORTS"], worker_id).write_text(cluster.name)
"""


INSTALLS = """
import pytest

NOWHERE = {"where": {"no": "node"}}

def test_a_pod_that_does_not_come_fails_the_test(chart, cluster):
    with pytest.raises(pytest.fail.Exception, match="gone-web-0 .*is (Pending|missing): "):
        cluster.install(chart, NOWHERE, name="gone", timeout=2)

def test_what_a_test_installed_is_removed_after_it(chart, cluster):
    there = cluster.api.items("/apis/apps/v1/deployments")
    assert "gone-web" not in [each["metadata"]["name"] for each in there]
    release = cluster.install(chart, name="shop")
    assert release.namespace != "default"
    assert release.objects("services")[0].spec.clusterIP
    assert release.changes({"replicas": 4}).sentences() == ["Deployment/shop-web: scale in place 1 \u2192 4"]
    # The old pod is there too, and either may be taken for the planned one.
    with pytest.raises(pytest.fail.Exception, match="shop-web-0 (selects nodes by no=nothing|is Pending: )"):
        release.upgrade(NOWHERE, timeout=2)
"""


def pytest_run(paths: Paths, toolbox: Toolbox, *arguments: str, **env: str) -> str:
    """The output of a pytest run on an embedded cluster, which has to succeed."""
    search = os.pathsep.join([str(toolbox.path("kubectl").parent), os.environ["PATH"]])
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_XDIST")}
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--cluster-type=embedded", *arguments],
        cwd=paths.root,
        env={**inherited, "PATH": search, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_teams_test_their_own_charts_with_the_fixtures(
    cluster: Cluster, bireme_paths: Paths, toolbox: Toolbox, tmp_path: Path
) -> None:
    """One team has tests/example, the other a chart of another kind and the upgrade of docs/check.md.

    Their cluster is one that exists.
    """
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: web, version: 0.1.0}")
    (tmp_path / "values.yaml").write_text("{replicas: 1, internal: false, where: {}}")
    placed = WEB.replace("spec: {containers", "spec: {nodeSelector: {{ toJson .Values.where }}, containers")
    (tmp_path / "templates/web.yaml").write_text(placed)
    (tmp_path / "test_upgrade.py").write_text(snippets()[1])
    (tmp_path / "test_installs.py").write_text(INSTALLS)
    options = ["-q", "--rootdir", str(bireme_paths.root), "-c", "pyproject.toml"]
    options += ["--cluster-type=existing", f"--kubeconfig={cluster.kubeconfig}"]
    assert "6 passed" in pytest_run(bireme_paths, toolbox, *options, "tests/example", str(tmp_path))


@pytest.mark.whole
def test_two_workers_share_one_cluster_which_is_removed(
    bireme_paths: Paths, toolbox: Toolbox, tmp_path: Path
) -> None:
    reports, state = tmp_path / "reports", tmp_path / "state"
    reports.mkdir()
    for name in ("test_one.py", "test_other.py"):
        (tmp_path / name).write_text(REPORT)
    options = ["--rootdir", str(bireme_paths.root), "-c", "pyproject.toml", "--bireme-nodes=cpu=1"]
    workers = ["-n2", "--dist=loadfile", "--bireme-share-cluster", str(tmp_path)]
    pytest_run(bireme_paths, toolbox, *options, *workers, REPORTS=str(reports), BIREME_STATE=str(state))
    clusters = {file.name: file.read_text() for file in reports.iterdir()}
    assert sorted(clusters) == ["gw0", "gw1"]
    assert len(set(clusters.values())) == 1
    assert list((state / "clusters").iterdir()) == []
