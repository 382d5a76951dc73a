"""Making and removing a kind cluster, also when it is interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bireme.clusters.kind import KindProvider
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.tools import Toolbox
from tests.kind.shell import until


@pytest.fixture
def name() -> str:
    return f"brief-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def clusters(bireme_paths: Paths, toolbox: Toolbox, tmp_path: Path, name: str) -> Iterator[KindProvider]:
    provider = KindProvider(replace(bireme_paths, state=tmp_path), toolbox)
    yield provider
    provider.down(name)


def traces(name: str) -> list[str]:
    """The containers and networks of a cluster that the engine still has."""
    listings = (["ps", "--all", "--format", "{{.Names}}"], ["network", "ls", "--format", "{{.Name}}"])
    listed = [
        subprocess.run(["docker", *each], capture_output=True, text=True, check=True) for each in listings
    ]
    return [line for each in listed for line in each.stdout.split() if name in line]


@pytest.mark.whole
def test_a_cluster_of_fake_nodes_has_a_tainted_control_plane_and_leaves_nothing(
    clusters: KindProvider, name: str, tmp_path: Path
) -> None:
    cluster = clusters.up(name, fake={"p4d.24xlarge": 3})
    assert cluster.nodes == {"cpu": 1, "p4d.24xlarge": 3}
    (control_plane,) = cluster.containers()
    taints = cluster.api.get(f"/api/v1/nodes/{control_plane}")["spec"]["taints"]
    assert [(taint["key"], taint["effect"]) for taint in taints] == [
        ("node-role.kubernetes.io/control-plane", "NoSchedule")
    ]
    container = {"name": "main", "image": "example.com/there-is-none:1"}
    pod = {"metadata": {"name": "a"}, "spec": {"nodeName": "p4d-24xlarge-0", "containers": [container]}}
    cluster.api.create("/api/v1/namespaces/default/pods", pod)
    until(lambda: cluster.api.get("/api/v1/namespaces/default/pods/a")["status"]["phase"] == "Running")
    with pytest.raises(BiremeError, match="is there already"):
        clusters.up(name)
    assert clusters.down(name)
    assert traces(name) == []
    assert list((tmp_path / "clusters").iterdir()) == []
    assert not clusters.down(name)
    with pytest.raises(BiremeError, match="there is no kind cluster"):
        clusters.get(name)


@pytest.mark.whole
def test_the_only_node_takes_pods(clusters: KindProvider, name: str) -> None:
    cluster = clusters.up(name, {"cpu": 1})
    assert cluster.nodes == {"cpu": 1}
    (node,) = cluster.containers()
    assert "taints" not in cluster.api.get(f"/api/v1/nodes/{node}")["spec"]


@pytest.mark.whole
def test_ctrl_c_while_a_cluster_starts_leaves_nothing(
    clusters: KindProvider, name: str, tmp_path: Path
) -> None:
    script = """
        import sys
        from dataclasses import replace
        from pathlib import Path
        from bireme.clusters.kind import KindProvider
        from bireme.core.paths import Paths
        from bireme.tools import Toolbox
        paths = replace(Paths.discover(), state=Path(sys.argv[2]))
        KindProvider(paths, Toolbox(paths)).up(sys.argv[1], {"p5.4xlarge": 1})
    """
    command = [sys.executable, "-c", textwrap.dedent(script), name, str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as starting:
        until(lambda: any("worker" in trace for trace in traces(name)), what="the containers to start")
        starting.send_signal(signal.SIGINT)
        _, errors = starting.communicate(timeout=120)
    assert errors.strip().endswith("KeyboardInterrupt")
    assert traces(name) == []
    assert list((tmp_path / "clusters").iterdir()) == []
