"""chart-testing installs the charts with their own ci values, and `helm test` passes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.clusters.kind import KindCluster
from bireme.core.paths import Paths
from bireme.tools import Toolbox
from tests.kind.shell import Shell, Values
from tests.support.tiers import core

# The images that each chart needs on the nodes.
IMAGES = {
    "etcd": ("etcd", "python"),
    "torch-elastic": ("etcd", "python", "torch"),
    "mpijob": ("mpi-operator", "python"),
    "mpi-training": ("mpi-5",),
    "paddle": ("etcd", "python", "paddle"),
}

# The ci values that cannot run on kind, each with its reason.
NOT_HERE: Mapping[str, Mapping[str, str]] = {
    "mpijob": {
        "full-values.yaml": "kind clusters have no ServiceMonitors",
        "namespaced-values.yaml": "it needs the kind MPIJob, which ct has removed with the values before",
    },
    "etcd": {
        "cert-manager-values.yaml": "kind clusters have no cert-manager",
        "secured-values.yaml": "it restores a snapshot, which has to be taken first",
        "v2-values.yaml": "its etcd 3.5 is not an image of these tests",
    },
    "paddle": {
        "data-values.yaml": "its claim is of a storage class of EFS",
    },
    "mpi-training": {
        "elastic-values.yaml": "its image is the one with Horovod (test_horovod_elastic)",
    },
    "torch-elastic": {
        "autoscaled-values.yaml": "kind clusters have no Volcano and no Prometheus Operator",
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
    for folder in ("charts", "runtime", "values"):
        shutil.copytree(bireme_paths.root / folder, tmp_path / folder, symlinks=True)
    for chart, left_out in NOT_HERE.items():
        for name in left_out:
            (tmp_path / "charts" / chart / "ci" / name).unlink()
    return tmp_path / "charts"


def values_on_kind(chart: str, values: Path, operator_on_kind: Values) -> Mapping[str, Any]:
    """values/kind.yaml as the chart takes it."""
    # All nodes but one have accelerators, and three members with anti-affinity need three nodes.
    everywhere = {"tolerations": [{"operator": "Exists"}]}
    if chart == "mpijob":
        return operator_on_kind
    own = {"mpi-training": "kind-mpi.yaml", "paddle": "kind-paddle.yaml"}.get(chart, "kind.yaml")
    found: Values = yaml.safe_load((values / own).read_text(encoding="utf-8"))
    if chart == "etcd":
        found = found["etcd"]
    return found if chart == "torch-elastic" else {**found, **everywhere}


# The operator is tested first and alone, because the tests after it install another one. The core has a job
# chart without accelerators, which runs beside other tests.
@pytest.mark.parametrize(
    "chart",
    core("paddle", of=sorted(IMAGES, key=lambda chart: chart != "mpijob")),
)
def test_ct_installs_and_tests_a_chart_with_each_of_its_ci_values(
    chart: str,
    charts: Path,
    request: pytest.FixtureRequest,
    load: Callable[..., None],
    operator_on_kind: Values,
    cluster: KindCluster,
    shell: Shell,
    toolbox: Toolbox,
    bireme_paths: Paths,
    test_namespace: str,
    tmp_path: Path,
) -> None:
    load(*IMAGES[chart])
    if chart == "mpi-training":
        request.getfixturevalue("mpi_operator")
    for name, data in SECRETS.items():
        manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}
        shell.kubectl("apply", "-n", test_namespace, "-f", "-", given=yaml.safe_dump(manifest))
    on_kind = tmp_path / "kind.yaml"
    on_kind.write_text(yaml.safe_dump(values_on_kind(chart, bireme_paths.values, operator_on_kind)))
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
