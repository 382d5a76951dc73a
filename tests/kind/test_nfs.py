"""Claims of charts/efs on a real NFS server: nodes share its files, and trainings resume from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bireme.clusters.kind import KindCluster
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.kind.shell import Shell, until
from tests.kind.training import Training

pytestmark = pytest.mark.whole

SERVER = "nfs-server"
FILES = Path(__file__).with_name("nfs")
PYTHON = {"registry": "", "repository": "bireme/python", "tag": "3.13"}


def give_nodes_a_client(cluster: KindCluster, root: Path) -> None:
    """Where the kernel has no NFS client, copy the mount.nfs of a root file system to the nodes."""
    client = root / "usr/local/sbin/mount.nfs"
    for node in cluster.containers():
        if "nfs4" not in cluster.on_node(node, "cat", "/proc/filesystems"):
            cluster.engine("cp", str(client), f"{node}:/usr/sbin/mount.nfs")


@pytest.fixture(scope="module")
def nfs_server(
    cluster: KindCluster, shell: Shell, load: Callable[..., None], build: Callable[..., list[str]]
) -> Iterator[str]:
    """The address of an NFS server in the cluster; its namespace allows privileged pods."""
    load("nfs", "python")
    (root,) = build("rootfs", "nfs")
    give_nodes_a_client(cluster, Path(root))
    shell.kubectl("create", "namespace", SERVER)
    shell.kubectl("apply", "-n", SERVER, "-f", str(FILES / "server.yaml"))
    shell.kubectl("wait", "-n", SERVER, "--for=condition=Ready", f"pod/{SERVER}", "--timeout=120s")
    yield shell.kubectl("get", "service", SERVER, "-n", SERVER, "-o", "jsonpath={.spec.clusterIP}")
    shell.kubectl("delete", "namespace", SERVER)


@pytest.fixture
def efs(release: ReleaseFactory, nfs_server: str) -> InstalledRelease:
    """The claim efsvol on that server."""
    place = [f"volumes.efsvol.server={nfs_server}", "volumes.efsvol.path=/export"]
    return release("efs", workload="efs-volume", sets=place, values={"test": {"image": PYTHON}})


def exported(shell: Shell, *command: str) -> str:
    """What a command prints in the folder that the server exports."""
    return shell.kubectl("exec", "-n", SERVER, SERVER, "--", "env", "-C", "/export", *command)


def test_two_pods_on_two_nodes_write_one_file_by_turns(efs: InstalledRelease, shell: Shell) -> None:
    where = ("-n", efs.namespace)
    shell.helm("test", efs.name, *where, "--timeout", "2m")
    shell.kubectl("apply", *where, "-f", str(FILES / "peers.yaml"))
    ended = ("get", "job", "peers", *where, "-o", "jsonpath={.status.conditions[*].type}")
    until(lambda: {"Complete", "Failed"} & {*shell.kubectl(*ended).split()}, what="both to have their turns")
    assert "Complete" in shell.kubectl(*ended), shell.logs("app=peers", efs.namespace)
    lines = exported(shell, "cat", "turns").splitlines()
    assert [int(line.split()[0]) for line in lines] == [0, 1, 0, 1, 0, 1]
    assert len({line.split()[1] for line in lines}) == 2
    shell.kubectl("delete", "job", "peers", *where)


@pytest.mark.usefixtures("torch_images")
def test_a_training_keeps_its_checkpoints_there_and_goes_on_from_them(
    efs: InstalledRelease, train: Callable[..., Training], shell: Shell
) -> None:
    claims = [{"claimName": "efsvol", "mountPath": "/runs"}]
    training = train(workers=2, values={"claims": claims})
    training.until_trained(30, world_size=2)
    assert len({training.worker(index).node for index in (0, 1)}) == 2
    training.kill(1, agent=False)
    training.until_trained(30, world_size=2)
    training.complete()
    assert any(event["step"] > 0 for event in training.of("resume"))
    assert exported(shell, "find", training.job.name, "-type", "f")
