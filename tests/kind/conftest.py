"""Fixtures of the kind tier: one kind cluster, the project's images on its nodes, restricted namespaces."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from bireme.clusters.kind import KindCluster
from bireme.core.paths import Paths
from bireme.core.progress import step
from bireme.helm.values import merge
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from bireme.tools import Toolbox
from tests.conftest import ShowProgress
from tests.kind.paddle import FOLDER, ON_KIND, Jobs, PaddleJob
from tests.kind.shell import NODE_TYPE, Shell, Values, enforce, until
from tests.kind.training import CHECKPOINT_EVERY, ENDLESS, KIND, Training

# Their workers take the accelerators of the cluster's nodes, so they run one after another.
ACCELERATED = {
    "test_mpi_training", "test_nccl", "test_nfs", "test_script", "test_torch_elastic", "test_torch_etcd",
}  # fmt: skip


class SharedClusterScheduling(LoadScopeScheduling):
    """Gives each module to one worker of pytest-xdist, and all accelerated ones to the same."""

    def _split_scope(self, nodeid: str) -> str:
        module = Path(nodeid.partition("::")[0]).stem
        return "accelerated" if module in ACCELERATED else module

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker its next module as late as can be: xdist would give it two while it has tests to run.

        A worker starts a test when it knows the next one, for what the two share.
        """
        if self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharedClusterScheduling | None:
    return SharedClusterScheduling(config, log) if config.getoption("bireme_share_cluster") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.kind)


@pytest.fixture(scope="session")
def shell(cluster: KindCluster, toolbox: Toolbox) -> Shell:
    return Shell(cluster, toolbox)


@pytest.fixture(scope="module")
def test_namespace(test_namespace: str, cluster: KindCluster) -> str:
    """The module's namespace, which enforces the restricted Pod Security Standard."""
    enforce(cluster, test_namespace, "restricted")
    return test_namespace


@pytest.fixture
def root_may_run(cluster: KindCluster, test_namespace: str) -> Iterator[None]:
    """During the test, the namespace enforces the baseline Pod Security Standard, not the restricted one."""
    enforce(cluster, test_namespace, "baseline")
    yield
    enforce(cluster, test_namespace, "restricted")


@pytest.fixture(scope="session")
def build(bireme_paths: Paths, show_progress: ShowProgress) -> Callable[..., list[str]]:
    """``build("image", "torch")``: what hack/images/build.py makes, here the tag of the image."""

    def _build(what: str, *names: str) -> list[str]:
        command = [sys.executable, str(bireme_paths.hack / "images" / "build.py"), what, *names]
        with show_progress():
            made = subprocess.run(
                command, cwd=bireme_paths.root, stdout=subprocess.PIPE, text=True, check=True
            )
        return made.stdout.split()

    return _build


@pytest.fixture(scope="session")
def load(
    cluster: KindCluster, build: Callable[..., list[str]], show_progress: ShowProgress
) -> Callable[..., None]:
    """``load("torch")``: the image of hack/images/recipes.toml is on every node."""

    def _load(*names: str) -> None:
        # Workers that share the cluster need the same images: the second one finds them loaded.
        with (cluster.kubeconfig.parent / "load.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            images = build("image", *names)
            with show_progress() as console, step(console, f"loading {', '.join(names)} onto the nodes"):
                cluster.load_image(*images)

    return _load


@pytest.fixture(scope="session")
def etcd_images(load: Callable[..., None]) -> None:
    load("etcd", "python")


@pytest.fixture(scope="session")
def torch_images(load: Callable[..., None]) -> None:
    load("etcd", "python", "torch")


@pytest.fixture(scope="session")
def operator_on_kind() -> Values:
    """Values of charts/mpijob: images that the nodes have; its CustomResourceDefinition is deleted too."""
    return {
        "image": {"registry": "", "repository": "bireme/mpi-operator"},
        "testImage": {"registry": "", "repository": "bireme/python", "tag": "3.13"},
        "crds": {"keep": False},
    }


@contextmanager
def restricted(cluster: KindCluster, namespace: str) -> Iterator[None]:
    """A namespace that enforces the restricted Pod Security Standard, and is gone for the next module."""
    path = "/api/v1/namespaces"
    cluster.api.create(path, {"metadata": {"name": namespace}})
    enforce(cluster, namespace, "restricted")
    yield
    cluster.api.delete(f"{path}/{namespace}")
    until(lambda: cluster.api.find(f"{path}/{namespace}") is None, what=f"{namespace} to be gone")


@pytest.fixture(scope="module")
def mpi_operator(
    load: Callable[..., None],
    cluster: KindCluster,
    new_release: Callable[[], InstalledRelease],
    operator_on_kind: Values,
) -> Iterator[InstalledRelease]:
    """charts/mpijob, installed in a restricted namespace."""
    load("mpi-operator", "python")
    with restricted(cluster, "mpi-operator"):
        operator = new_release()
        yield operator.install("mpijob", "mpijob", "mpi-operator", values=operator_on_kind)
        operator.uninstall()


@pytest.fixture(scope="module")
def controller_values() -> Values:
    """Values of charts/autoscaler beside those that all modules need."""
    return {}


@pytest.fixture(scope="module")
def controller(
    load: Callable[..., None],
    cluster: KindCluster,
    new_release: Callable[[], InstalledRelease],
    test_namespace: str,
    controller_values: Values,
) -> Iterator[InstalledRelease]:
    """charts/autoscaler for the jobs of the module, from images/bireme, in a restricted namespace."""
    load("bireme", "python")
    # The name that the nodes have for images of no registry.
    values = {"watchNamespace": test_namespace, "everySeconds": 1, "image": {"registry": "docker.io"}}
    with restricted(cluster, "autoscaler"):
        release = new_release()
        yield release.install(
            "autoscaler", "autoscaler", "autoscaler", values=merge(values, controller_values), timeout=180
        )
        release.uninstall()


@pytest.fixture(scope="module")
def s3_server(
    cluster: KindCluster, shell: Shell, load: Callable[..., None], test_namespace: str
) -> Mapping[str, str]:
    """The values `s3` for charts that use the S3 server of the module: the pod `s3` on the claim `source`."""
    load("moto", "python")
    cluster.add_claim("source", test_namespace)
    keys = [f"--from-literal=AWS_{key}=test" for key in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")]
    shell.kubectl("create", "secret", "generic", "s3-keys", "-n", test_namespace, *keys)
    manifest = Path(__file__).with_name("s3") / "server.yaml"
    shell.kubectl("apply", "-n", test_namespace, "-f", str(manifest))
    shell.kubectl("wait", "-n", test_namespace, "--for=condition=Ready", "pod/s3", "--timeout=120s")
    endpoint = f"http://s3.{test_namespace}.svc:5000"
    return {"endpoint": endpoint, "region": "us-east-1", "existingSecret": "s3-keys"}


@pytest.fixture
def runs(cluster: KindCluster, test_namespace: str) -> Path:
    """The folder on this machine behind the claim `runs`, which jobs mount at /runs."""
    cluster.add_claim("runs", test_namespace)
    return cluster.claim_folder("runs", test_namespace)


@pytest.fixture(scope="session")
def kind_values(bireme_paths: Paths) -> Values:
    """values/kind.yaml."""
    values: Values = yaml.safe_load((bireme_paths.values / "kind.yaml").read_text(encoding="utf-8"))
    return values


@pytest.fixture
def train(
    release: ReleaseFactory, cluster: KindCluster, shell: Shell, test_namespace: str
) -> Iterator[Callable[..., Training]]:
    """``train(workers=3)``: digits.py on elastic workers, whose logs are read, until `complete`.

    ``steps`` is an end that it reaches alone, ``values`` are further values of the chart, ``script`` is
    another one of the image. The claim ``checkpoints`` is mounted at /runs.
    """
    cluster.add_claim("checkpoints", test_namespace)
    with ExitStack() as followed:

        def _train(
            workers: int,
            steps: int | None = None,
            values: Mapping[str, Any] | None = None,
            script: str = "digits.py",
            step_seconds: float = 0.1,
        ) -> Training:
            name = f"{script.removesuffix('.py')}-{uuid.uuid4().hex[:4]}"
            folder = f"/runs/{name}"
            stop_file = f"{folder}/stop"
            arguments = {"checkpoints": folder, "checkpoint-every": CHECKPOINT_EVERY}
            arguments |= {"steps": steps or ENDLESS, "step-seconds": step_seconds}
            if script == "digits.py":
                arguments["stop-file"] = stop_file
            own = {
                "workers": workers,
                "args": [f"/opt/bireme/{script}", *(f"--{key}={value}" for key, value in arguments.items())],
                "claims": [{"claimName": "checkpoints", "mountPath": "/runs"}],
            }
            installed = {
                "instance": NODE_TYPE,
                "files": [KIND],
                "timeout": 300,
                "values": merge(own, values or {}),
            }
            job = release("torch-elastic", name=name, **installed)
            return followed.enter_context(Training(job, shell, installed, script, stop_file).followed())

        yield _train


@pytest.fixture
def install_paddle(release: ReleaseFactory, load: Callable[..., None], shell: Shell) -> Jobs:
    """``install_paddle("w2v", output, workload=…)``: a release whose output is in that folder."""
    load("paddle", "python", "etcd")

    def _install(name: str, output: Path, **more: Any) -> PaddleJob:
        on_kind = {**more, "files": [ON_KIND], "timeout": 240}
        return PaddleJob(release("paddle", name=name, **on_kind), output, shell, on_kind)

    return _install


@pytest.fixture
def paddle(install_paddle: Jobs, cluster: KindCluster, test_namespace: str) -> Jobs:
    """``paddle("--passes=3", workers=2)``: the digits on 2 pservers and 3 trainers, with further values."""
    cluster.add_claim("jobs", test_namespace)

    def _paddle(*arguments: str, shards: int = 3, **values: Any) -> PaddleJob:
        name = f"digits-{uuid.uuid4().hex[:4]}"
        data = f"{FOLDER}/{name}/data"
        prepare = ["/opt/bireme/digits.py", "--prepare", data]
        own = {
            "workers": 3,
            "paddle": {"pservers": {"count": 2}},
            "data": {
                "jobClaim": {"existingClaim": "jobs"},
                "prep": {"enabled": True, "splitCount": shards, "args": prepare},
            },
            "args": ["/opt/bireme/digits.py", f"--data={data}", *arguments],
        }
        output = cluster.claim_folder("jobs", test_namespace) / name / "output"
        return install_paddle(name, output, values=merge(own, values))

    return _paddle
