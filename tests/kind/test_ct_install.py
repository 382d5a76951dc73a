"""chart-testing installs the charts with their own ci values, and `helm test` passes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from on_kind import Shell, Values

from bireme.clusters.kind_cluster import KindCluster
from bireme.paths import Paths
from bireme.tools import Toolbox

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("torch_images")]

# The ci values that cannot run on kind, each with its reason.
NOT_HERE = {
    "etcd": {
        "cert-manager-values.yaml": "kind clusters have no cert-manager",
        "secured-values.yaml": "it restores a snapshot, which has to be taken first",
        "v2-values.yaml": "its etcd 3.5 is not an image of these tests",
    },
    "torch-elastic": {
        "external-etcd-values.yaml": "its etcd is one that exists elsewhere",
        "full-values.yaml": "it asks for p4d.24xlarge",
    },
}
# Secrets that ci values name.
SECRETS: Mapping[str, Mapping[str, str]] = {
    "etcd-users": {"root-password": "captain", "username": "rower", "password": "oar"}
}


@pytest.fixture
def charts(bireme_paths: Paths, tmp_path: Path) -> Path:
    """The charts without the ci values that cannot run here."""
    for folder in ("charts", "runtime"):
        shutil.copytree(bireme_paths.root / folder, tmp_path / folder, symlinks=True)
    for chart, left_out in NOT_HERE.items():
        for name in left_out:
            (tmp_path / "charts" / chart / "ci" / name).unlink()
    return tmp_path / "charts"


def values_on_kind(chart: str, kind_values: Values) -> Mapping[str, Any]:
    """values/kind.yaml as the chart takes it."""
    # All nodes but one have accelerators, and members that must be kept apart need three.
    everywhere = {"tolerations": [{"operator": "Exists"}]}
    return {**kind_values["etcd"], **everywhere} if chart == "etcd" else kind_values


@pytest.mark.parametrize("chart", sorted(NOT_HERE))
def test_ct_installs_and_tests_a_chart_with_each_of_its_ci_values(
    chart: str,
    charts: Path,
    cluster: KindCluster,
    shell: Shell,
    toolbox: Toolbox,
    bireme_paths: Paths,
    test_namespace: str,
    kind_values: Values,
    tmp_path: Path,
) -> None:
    for name, data in SECRETS.items():
        manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}
        shell.kubectl("apply", "-n", test_namespace, "-f", "-", given=yaml.safe_dump(manifest))
    on_kind = tmp_path / "kind.yaml"
    on_kind.write_text(yaml.safe_dump(values_on_kind(chart, kind_values)))
    command = [str(toolbox.path("ct")), "install", "--charts", str(charts / chart)]
    command += ["--namespace", test_namespace, "--release-label", "app.kubernetes.io/instance"]
    command += ["--config", "ct.yaml", "--helm-extra-args", "--timeout 300s"]
    command += ["--helm-extra-set-args", f"--values={on_kind}"]
    folders = [str(toolbox.path(tool).parent) for tool in ("helm", "kubectl")]
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    environment["PATH"] = os.pathsep.join([*folders, environment["PATH"]])
    done = subprocess.run(
        command, env=environment, cwd=bireme_paths.root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    values = [file.name for file in (charts / chart / "ci").iterdir()]
    assert values
    for name in values:
        assert name in done.stdout, f"{name} was not installed"
