"""Fixtures of the runtime's tests: real etcd on loopback. Torch is not needed here."""

from __future__ import annotations

import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from bireme.clusters.api import Api
from bireme.core.paths import Paths
from bireme.tools import Toolbox
from bireme_runtime.etcd import client as etcd
from bireme_runtime.process import children
from tests.runtime.etcd_servers import EtcdServer, Proxy, new_cluster
from tests.runtime.told import Told, ToPods
from tests.runtime.web_hook import WebHook
from tests.runtime.workers import MAIN, Start, Worker
from tests.support.api_server import serving


@pytest.fixture(scope="session")
def etcd_binary() -> Path:
    """The pinned etcd."""
    return Toolbox(Paths.discover(start=Path(__file__))).path("etcd")


@pytest.fixture(scope="session")
def shared_etcd(etcd_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One etcd for all tests that do it no harm; they keep apart by their prefixes."""
    server = EtcdServer(etcd_binary, tmp_path_factory.mktemp("etcd")).start()
    yield server
    server.stop()


@pytest.fixture
def client(shared_etcd: EtcdServer) -> etcd.Client:
    """A client of that etcd, which stands for other members, or sees what they have written."""
    return etcd.Client(etcd.parse_endpoints(shared_etcd.endpoint))


@pytest.fixture
def proxy(shared_etcd: EtcdServer) -> Iterator[Proxy]:
    """A way to that etcd, which a test may disturb."""
    proxy = Proxy(shared_etcd.port)
    yield proxy
    proxy.mode = "refuse"
    proxy.close()


@pytest.fixture
def new_etcd(etcd_binary: Path, tmp_path: Path) -> Iterator[Callable[..., EtcdServer]]:
    """Make etcd servers of the test's own; they end with it."""
    servers: list[EtcdServer] = []

    def make(*options: str, **fields: object) -> EtcdServer:
        folder = tmp_path / f"etcd-{len(servers)}"
        servers.append(EtcdServer(etcd_binary, folder, options=options, **fields))  # type: ignore[arg-type]
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def cluster_of_three(
    etcd_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[EtcdServer]]:
    servers = new_cluster(etcd_binary, tmp_path_factory.mktemp("three"))
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def three_etcds(cluster_of_three: list[EtcdServer]) -> Iterator[list[EtcdServer]]:
    """Three members of one cluster. A test may stop them with SIGSTOP; they go on afterwards."""
    yield cluster_of_three
    for server in cluster_of_three:
        server.signal(signal.SIGCONT)
    for server in cluster_of_three:
        server.wait_until_healthy()


@pytest.fixture
def prefix() -> str:
    """A prefix of keys that no other test uses."""
    return f"/test/{uuid.uuid4().hex[:8]}/"


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    """What a worker with the variables of this tells of its run."""
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), ToPods), tmp_path) as kubeconfig:
        yield Told(Api(kubeconfig))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    workers: list[Worker] = []

    def start(
        script: str, command: tuple[str, ...] = (sys.executable, "-c", MAIN, "--"), **env: str
    ) -> Worker:
        workers.append(Worker(tmp_path / f"worker-{len(workers)}", script, env, list(command)))
        return workers[-1]

    yield start
    for worker in workers:
        # Without it, the supervisor leaves its torchrun and the training processes behind.
        others = children.descendants(worker.process.pid)
        worker.process.kill()
        worker.process.wait()
        children.send(others, signal.SIGKILL)


@pytest.fixture
def hook(tmp_path: Path) -> Iterator[WebHook]:
    """A web hook of the test's own."""
    one = WebHook(tmp_path)
    yield one
    one.stop()


@pytest.fixture
def on_etcd(shared_etcd: EtcdServer, prefix: str) -> dict[str, str]:
    """The environment of a worker of a new run. Its lease lives for a minute: a machine may stand still."""
    times = "last_call_timeout=0.1,settle_timeout=0,keep_alive_max_attempt=60"
    return {
        "PET_RDZV_BACKEND": "bireme-etcd", "PET_RDZV_ENDPOINT": shared_etcd.endpoint, "PET_RDZV_ID": "run",
        "PET_RDZV_CONF": f"etcd_prefix={prefix},{times}", "PET_NNODES": "1:4", "BIREME_WAIT_SECONDS": "60",
    }  # fmt: skip
