"""The embedded cluster: up, down, interrupted; and how its fake nodes run pods."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bireme.clusters.embedded import EmbeddedCluster, EmbeddedProvider
from bireme.clusters.state import list_clusters
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.tools import Toolbox
from tests.support import faults
from tests.support.waiting import until

pytestmark = pytest.mark.embedded

Objects = list[dict[str, Any]]
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def provider(bireme_paths: Paths, state: Path, toolbox: Toolbox) -> EmbeddedProvider:
    return EmbeddedProvider(replace(bireme_paths, state=state), toolbox)


@pytest.fixture(scope="module")
def fleet(provider: EmbeddedProvider) -> Iterator[EmbeddedCluster]:
    """A cluster with four p4d nodes, kept for the tests of this module."""
    yield provider.up("fleet", {"p4d.24xlarge": 4})
    provider.down("fleet")


def kubectl(cluster: EmbeddedCluster, *arguments: str) -> str:
    command = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True"


def processes_in(folder: Path) -> list[str]:
    """Command lines of living processes that mention ``folder``."""
    listing = subprocess.run(["ps", "-axww", "-o", "stat=,args="], capture_output=True, text=True, check=True)
    return [line for line in listing.stdout.splitlines() if str(folder) in line and not line.startswith("Z")]


# --- up ---


def test_the_users_own_kubeconfig_is_not_touched(fleet: EmbeddedCluster, state: Path) -> None:
    assert fleet.kubeconfig.is_relative_to(state)
    assert kubectl(fleet, "config", "get-contexts", "-o", "name").split() == ["kwok-fleet"]
    default = Path.home() / ".kube" / "config"
    assert not default.exists() or "kwok-fleet" not in default.read_text()


def test_a_second_up_of_the_same_name_is_refused(provider: EmbeddedProvider, fleet: EmbeddedCluster) -> None:
    with pytest.raises(BiremeError, match="fleet is there already, or was left half made: take"):
        provider.up("fleet", {})
    assert fleet.api.get("/api/v1/nodes")["items"]


def test_the_error_about_a_missing_cluster_names_the_command_that_starts_one(
    provider: EmbeddedProvider,
) -> None:
    with pytest.raises(
        BiremeError,
        match="no embedded cluster nowhere: start it with: bireme up --provider embedded --cluster nowhere",
    ):
        provider.get("nowhere")


@pytest.fixture
def worn(provider: EmbeddedProvider) -> Iterator[EmbeddedCluster]:
    """A cluster of which parts may end."""
    yield provider.up("worn", {})
    assert provider.down("worn") is True


def lose(cluster: EmbeddedCluster, component: str) -> None:
    (file,) = cluster.kubeconfig.parent.glob(f"kwok/clusters/*/pids/{component}.pid")
    os.kill(int(file.read_text()), signal.SIGKILL)
    folder = cluster.kubeconfig.parent
    until(lambda: not any(f"{component} " in line for line in processes_in(folder)))


@pytest.mark.whole
def test_what_gave_up_on_a_slow_api_server_is_started_again(
    provider: EmbeddedProvider, worn: EmbeddedCluster
) -> None:
    for component in ("kube-controller-manager", "kube-scheduler", "kwok-controller"):
        lose(worn, component)
    assert worn.add_nodes("cpu", 1) == ("cpu-1",)
    assert provider.get("worn").nodes == {"cpu": 2}


@pytest.mark.whole
def test_a_cluster_with_a_dead_process_names_it_and_the_remedy(
    provider: EmbeddedProvider, worn: EmbeddedCluster
) -> None:
    lose(worn, "kube-scheduler")
    with pytest.raises(BiremeError, match=r"lost kube-scheduler .* run bireme down --cluster worn"):
        provider.get("worn")
    (program,) = worn.kubeconfig.parent.glob("kwok/clusters/*/bin/kube-scheduler")
    program.unlink()
    program.write_text("#!/bin/sh\necho the port is in use\n")
    program.chmod(0o755)
    with pytest.raises(BiremeError, match=r"kube-scheduler has ended; its log ends with: the port is in use"):
        worn.add_nodes("cpu", 1)


@pytest.mark.parametrize("name", ["Fleet", "a/b", "-a", "x" * 41])
def test_an_invalid_cluster_name_is_refused(provider: EmbeddedProvider, name: str) -> None:
    with pytest.raises(BiremeError, match="cannot be a name"):
        provider.up(name, {})


@pytest.fixture
def doomed(bireme_paths: Paths, toolbox: Toolbox, tmp_path: Path) -> Iterator[EmbeddedProvider]:
    """A provider whose cluster ``doomed`` is removed when the test ends or fails."""
    provider = EmbeddedProvider(replace(bireme_paths, state=tmp_path), toolbox)
    yield provider
    provider.down("doomed")


def start_up(state: Path) -> subprocess.Popen[str]:
    """``up`` in another process; returns once its directory exists."""
    script = textwrap.dedent(
        """\
        import sys
        from dataclasses import replace
        from pathlib import Path
        from bireme.clusters.embedded import EmbeddedProvider
        from bireme.clusters.fakes import FakeNodes
        from bireme.core.paths import Paths
        from bireme.tools import Toolbox

        # It never ends by itself.
        FakeNodes._ready_nodes = lambda self: set()
        paths = Paths.discover(start=Path(sys.argv[1]))
        EmbeddedProvider(replace(paths, state=Path(sys.argv[2])), Toolbox(paths)).up("doomed", {"cpu": 300})
        """
    )
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(state)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until((state / "clusters" / "doomed").exists)
    return process


def runs(argument: str) -> Callable[[Path], bool]:
    """Whether a component runs with this argument (each also runs once to print its version)."""
    return lambda state: any(argument in line for line in processes_in(state))


def makes_nodes(state: Path) -> bool:
    log = state / "clusters" / "doomed" / "kwokctl.log"
    return log.exists() and "Cluster is started" in log.read_text()


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(lambda state: True, id="at-once", marks=pytest.mark.whole),
        pytest.param(runs("--data-dir"), id="etcd-runs", marks=pytest.mark.whole),
        pytest.param(runs("--manage-all-nodes"), id="kwok-runs", marks=pytest.mark.whole),
        pytest.param(makes_nodes, id="nodes-are-made"),
    ],
)
@pytest.mark.usefixtures("doomed")
def test_ctrl_c_during_up_leaves_nothing(tmp_path: Path, moment: Callable[[Path], bool]) -> None:
    process = start_up(tmp_path)
    until(lambda: moment(tmp_path))
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in output
    assert processes_in(tmp_path) == []
    assert list((tmp_path / "clusters").iterdir()) == []


def test_down_removes_what_a_killed_up_left(doomed: EmbeddedProvider, tmp_path: Path) -> None:
    process = start_up(tmp_path)
    until(lambda: runs("--etcd-servers")(tmp_path))
    process.kill()
    process.communicate()
    assert runs("--etcd-servers")(tmp_path)
    with pytest.raises(BiremeError, match="remove it with: bireme down --cluster doomed"):
        doomed.up("doomed", {})
    assert doomed.down("doomed") is True
    assert processes_in(tmp_path) == []
    assert list((tmp_path / "clusters").iterdir()) == []


# --- storage ---


def test_a_claim_binds_to_a_fake_volume_that_is_deleted_with_it(fleet: EmbeddedCluster) -> None:
    fleet.add_claim("fsx-pvc")
    fleet.add_claim("fsx-pvc")
    until(lambda: fleet.api.get(f"{CLAIMS}/fsx-pvc")["status"].get("phase") == "Bound")
    volume = fleet.api.get(f"{CLAIMS}/fsx-pvc")["spec"]["volumeName"]
    fleet.api.delete(f"{CLAIMS}/fsx-pvc")
    until(lambda: fleet.api.find(f"/api/v1/persistentvolumes/{volume}") is None)


# --- nodes ---


def test_nodes_are_added_under_the_next_free_names(
    provider: EmbeddedProvider, fleet: EmbeddedCluster
) -> None:
    assert fleet.add_nodes("p3.8xlarge", 2) == ("p3-8xlarge-0", "p3-8xlarge-1")
    faults.remove_node(fleet, "p3-8xlarge-0")
    assert fleet.api.find("/api/v1/nodes/p3-8xlarge-0") is None
    assert fleet.add_nodes("p3.8xlarge", 2) == ("p3-8xlarge-0", "p3-8xlarge-2")
    assert provider.get("fleet").nodes["p3.8xlarge"] == 3


def test_a_deleted_pod_on_a_node_that_is_cut_off_does_not_end(fleet: EmbeddedCluster) -> None:
    """test_node_loss.py waits for Kubernetes' own timeouts."""
    (node,) = fleet.add_nodes("p4d.24xlarge", 1)
    selector = {"nodeSelector": {"kubernetes.io/hostname": node}}
    spec = {"containers": [{"name": "a", "image": "none"}], "tolerations": [{"operator": "Exists"}]}
    pod = {"metadata": {"name": "stuck"}, "spec": spec | selector}
    fleet.api.create(PODS, pod)
    until(lambda: is_ready(fleet.api.get(f"{PODS}/stuck")))
    faults.cut_node(fleet, node)
    # kwok hears of nodes in order: when it renews a lease of a later one, it knows that this one is cut off.
    (later,) = fleet.add_nodes("cpu", 1)
    until(lambda: fleet.api.find(f"{LEASES}/{later}") is not None)
    faults.remove_node(fleet, later)
    fleet.api.delete(f"{PODS}/stuck", gracePeriodSeconds="1")
    time.sleep(3)
    assert fleet.api.get(f"{PODS}/stuck")["status"]["phase"] == "Running"
    faults.taint_out_of_service(fleet, node)
    faults.taint_out_of_service(fleet, node)
    taints = [taint["key"] for taint in fleet.api.get(f"/api/v1/nodes/{node}")["spec"]["taints"]]
    assert taints.count("node.kubernetes.io/out-of-service") == 1
    faults.remove_node(fleet, node)
    fleet.api.delete(f"{PODS}/stuck", gracePeriodSeconds="0")


# --- down ---


def test_up_gives_ready_nodes_and_down_leaves_nothing(
    provider: EmbeddedProvider, fleet: EmbeddedCluster, bireme_paths: Paths, state: Path
) -> None:
    """The last one, because it takes the cluster of the others down."""
    nodes = {node["metadata"]["name"]: node for node in fleet.api.get("/api/v1/nodes")["items"]}
    assert {"cpu-0", *(f"p4d-24xlarge-{number}" for number in range(4))} <= nodes.keys()
    assert all(is_ready(node) for node in nodes.values())
    assert "fleet" in [info.name for info in list_clusters(replace(bireme_paths, state=state))]
    assert provider.down("fleet") is True
    assert not (state / "clusters" / "fleet").exists()
    assert processes_in(state / "clusters" / "fleet") == []
    assert provider.down("fleet") is False
