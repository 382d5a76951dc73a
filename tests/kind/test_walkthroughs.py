"""The commands of a walkthrough that need containers really run, and its jobs train.

What differs from EKS: the cluster is there, so Terraform's commands and the cleanup are left out (they run in
tests/embedded/test_walkthroughs.py); the claim is a directory of this machine instead of a file system; and
mine.yaml names images that the nodes have, and asks for what this machine has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bireme.clusters.kind import KindCluster
from bireme.tools import Toolbox
from tests.support.documents import ROOT, Command, blocks
from tests.support.reader import Reader

pytestmark = pytest.mark.whole

CLAIMS = {"efs": "efsvol"}
LEFT_OUT = ("bireme eksctl", "hack/eks/teardown")


@pytest.fixture
def reader(tmp_path: Path, toolbox: Toolbox, cluster: KindCluster) -> Iterator[Reader]:
    """Somebody whose kubectl reaches the cluster of the tests; the releases are uninstalled at the end."""
    # Without clusters of `bireme up` the harness takes the kubeconfig.
    here = {"KUBECONFIG": str(cluster.kubeconfig), "BIREME_STATE": str(tmp_path / "state")}
    found = Reader(tmp_path, toolbox, here)
    yield found
    found.types("helm list --short | xargs --no-run-if-empty --max-args=1 bireme uninstall")
    for claim in CLAIMS.values():
        found.types(f"kubectl delete pvc/{claim} pv/default-{claim} --timeout=60s")


def follow(document: Path, reader: Reader, cluster: KindCluster, mine: Path) -> None:
    """Type the commands that need no AWS, and compare what is shown."""
    for block in blocks(document):
        printed = [typed(command, reader, cluster, mine) for command in block.commands]
        if None not in printed:
            shown = "".join(each or "" for each in printed)
            assert block.missing(shown) == [], f"{block.commands[0]}\n{shown}"


def typed(command: Command, reader: Reader, cluster: KindCluster, mine: Path) -> str | None:
    """What the command prints; None when it is left out or replaced."""
    if command.needs == "AWS" or command.text.startswith(LEFT_OUT):
        return None
    if command.text.startswith("helm install ") and command.text.split()[2] in CLAIMS:
        cluster.add_claim(CLAIMS[command.text.split()[2]])
        return None
    if command.text.endswith("> mine.yaml"):
        (reader.clone / "mine.yaml").write_text(mine.read_text())
        return None
    done = reader.types(command.text)
    assert done.returncode == command.code, f"{command}\n{done.stdout}"
    return done.stdout


def test_the_jobs_of_paddle_on_aws_train(
    reader: Reader, cluster: KindCluster, load: Callable[..., None]
) -> None:
    load("paddle", "python", "etcd")
    follow(ROOT / "docs/walkthroughs/paddle-on-aws.md", reader, cluster, ROOT / "values/kind-paddle.yaml")
    output = cluster.claim_folder("efsvol") / "paddle-cluster-job/output"
    assert len(list(output.glob("pass-*/done"))) == 20
