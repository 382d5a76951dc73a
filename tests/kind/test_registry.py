"""The ImageNet commands of docs/charts.md, with images that the nodes pull from a registry.

The commands are those of that document and of `make images`. What differs from EKS: images/torch is
built on Debian's PyTorch instead of the CUDA image, etcd and Python are those of hack/images under the names
that charts give them, the nodes only claim to be of EC2's types, and a values file reduces what a worker asks
for. There is no EFA hardware: the guard of imagenet-efa has to say so.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.clusters.kind import KindCluster
from bireme.core.labels import INSTANCE_TYPE_LABEL
from bireme.core.paths import Paths
from bireme.tools import Toolbox
from tests.kind.shell import Shell, Values, until
from tests.support.registry import serving

pytestmark = pytest.mark.whole

# Which of our images stands for which of others, by the end of its repository.
STAND_INS = {"coreos/etcd": "etcd", "library/python": "python"}
DATA = "ILSVRC/Data/CLS-LOC"
SMALL = ["--arch=resnet18", "--image-size=64", "--batch-size=2", "--accumulate=2", "--workers=1"]
SMALL += ["--epochs=6", "--warm-up=1", "--checkpoint-every=4", "--log-every=1", "--step-seconds=1"]
PHOTOS = Path(__file__).parents[1] / "images" / "photos.py"
GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"


def docker(*words: str) -> None:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"docker {' '.join(words)}: {done.stderr}"


@pytest.fixture(scope="module")
def registry(
    cluster: KindCluster,
    toolbox: Toolbox,
    build: Callable[..., list[str]],
    bireme_paths: Paths,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """A registry with the images that torch-elastic names, from which the nodes pull."""
    with serving(toolbox, tmp_path_factory.mktemp("registry") / "data", host="0.0.0.0") as name:
        command = [sys.executable, "hack/images/publish.py", "--dry-run", "--mirror", name]
        printed = subprocess.run(command, cwd=bireme_paths.root, capture_output=True, text=True, check=True)
        lines = [line.split() for line in printed.stdout.splitlines()]
        pushes = [words[words.index("--tag") + 1] for words in lines if "buildx" in words]
        copies = [words[-1] for words in lines if words[:2] == ["crane", "copy"]]
        # etcd has a second tag, for the v2 API.
        targets = {target: "torch" for target in pushes if "/bireme/torch:" in target}
        for repository, image in STAND_INS.items():
            targets |= {target: image for target in copies if f"/{repository}:" in target}
        assert set(targets.values()) == {"torch", *STAND_INS.values()}
        for target, image in targets.items():
            (tag,) = build("image", image)
            docker("tag", tag, target)
            docker("push", target)
            docker("rmi", target)
        for node in cluster.containers():
            host = cluster.on_node(node, "ip", "-4", "route", "show", "default").split()[2]
            folder = f"/etc/containerd/certs.d/{name}"
            hosts = f'[host."http://{host}:{name.rpartition(":")[2]}"]'
            cluster.on_node(
                node, "bash", "-euc", f"mkdir -p '{folder}'; echo '{hosts}' >'{folder}/hosts.toml'"
            )
        yield name


@contextmanager
def nodes_of(cluster: KindCluster, node_type: str, gpus: int, efa: int) -> Iterator[None]:
    """The accelerated nodes have this instance type and so many devices."""
    nodes = cluster.api.get("/api/v1/nodes", labelSelector="!node-role.kubernetes.io/control-plane")["items"]

    def become(name: str, kind: str, capacity: dict[str, Any]) -> None:
        cluster.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {INSTANCE_TYPE_LABEL: kind}}})
        status = {"capacity": capacity, "allocatable": capacity}
        cluster.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    for node in nodes:
        become(node["metadata"]["name"], node_type, {GPU: str(gpus), EFA: str(efa)})
    try:
        yield
    finally:
        for node in nodes:
            before = {key: node["status"]["capacity"].get(key, "0") for key in (GPU, EFA)}
            become(node["metadata"]["name"], node["metadata"]["labels"][INSTANCE_TYPE_LABEL], before)


def command_of(root: Path, workload: str) -> list[str]:
    """The words of the document's command for a workload, with whole paths."""
    readme = (root / "docs/charts.md").read_text()
    (command,) = re.findall(rf"^\| {re.escape(workload)} \| `helm (install .*)` \|$", readme, re.MULTILINE)
    return [str(root / word) if (root / word).exists() else word for word in shlex.split(command)]


@pytest.fixture
def install(
    registry: str,
    cluster: KindCluster,
    shell: Shell,
    kind_values: Values,
    test_namespace: str,
    bireme_paths: Paths,
    tmp_path: Path,
) -> Iterator[Callable[..., str]]:
    """``install("ResNet-50 on …")``: that command of docs/charts.md; returns the labels of its workers.

    Keywords are further values.
    """
    installed: list[str] = []

    def _install(workload: str, **values: Any) -> str:
        # Only what this machine lacks is reduced. Images and devices stay as the command has them.
        here = {"resources": kind_values["resources"]}
        here["pod"] = {key: kind_values["pod"][key] for key in ("hugePages", "shm")}
        here["etcd"] = {"resources": kind_values["etcd"]["resources"]}
        small = tmp_path / "small.yaml"
        small.write_text(yaml.safe_dump({**here, "global": {"imageRegistry": registry}, **values}))
        command = command_of(bireme_paths.root, workload)
        installed.append(command[1])
        cluster.add_claim("fsx-pvc", test_namespace)
        shell.helm(*command, "--namespace", test_namespace, "--values", str(small))
        return f"app.kubernetes.io/instance={command[1]},app.kubernetes.io/component=worker"

    yield _install
    for release in installed:
        shell.helm("uninstall", release, "--namespace", test_namespace, "--wait", "--timeout", "3m")


def pulled(shell: Shell, namespace: str, image: str) -> bool:
    """Whether a node has pulled this image for a pod of the namespace."""
    events = shell.kubectl(
        "get", "events", "-n", namespace, "--field-selector=reason=Pulled", "-o=jsonpath={.items[*].message}"
    )
    return f'Successfully pulled image "{image}"' in events


def test_without_efa_hardware_the_workers_of_imagenet_efa_say_what_is_missing(
    install: Callable[..., str], registry: str, cluster: KindCluster, shell: Shell, test_namespace: str
) -> None:
    with nodes_of(cluster, "p4d.24xlarge", gpus=8, efa=4):
        workers = install("EfficientNet-B7 on ImageNet with EFA")
        missing = "EFA cannot be used: /dev/infiniband has no uverbs device"
        # The guard is the pods' first container, so that the training starts nowhere.
        guard = ("logs", "-n", test_namespace, "-l", workers, "-c", "devices", "--tail=-1", "--ignore-errors")
        until(
            lambda: missing in (shell.attempt(*guard) or ""),
            420,
            lambda: shell.kubectl("get", "pods,events", "-n", test_namespace),
        )
        assert pulled(shell, test_namespace, f"{registry}/bireme/torch:0.1.0")
        assert pulled(shell, test_namespace, f"{registry}/coreos/etcd:v3.6.5")


def test_the_workers_of_imagenet_fsx_train(
    install: Callable[..., str],
    registry: str,
    cluster: KindCluster,
    shell: Shell,
    test_namespace: str,
    bireme_paths: Paths,
) -> None:
    cluster.add_claim("fsx-pvc", test_namespace)
    folder = cluster.claim_folder("fsx-pvc", test_namespace)
    mounts = ["--volume", f"{folder}:/photos", "--volume", f"{PHOTOS}:/photos.py:ro"]
    command = ["python3", "/photos.py", f"/photos/{DATA}"]
    docker("run", "--rm", "--user", "0", *mounts, "bireme/torch:0.1.0", *command)
    workload = yaml.safe_load((bireme_paths.values / "workloads/imagenet-fsx.yaml").read_text())
    # Four workers on three nodes, each with one process and a small network: there are no GPUs.
    small = {"accelerators": 1, "args": [*workload["args"], *SMALL]}
    with nodes_of(cluster, "p3.8xlarge", gpus=8, efa=0):
        workers = install("ResNet-50 on ImageNet over TCP", **small)
        until(
            lambda: '"event": "done"' in shell.logs(workers, test_namespace),
            420,
            lambda: shell.logs(workers, test_namespace)[-3000:],
        )
    assert '"world_size": 4' in shell.logs(workers, test_namespace)
