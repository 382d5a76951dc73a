"""Jobs in a namespace that denies all traffic, where kube-router enforces NetworkPolicies.

Without its own policy a job cannot work there; with it the job finishes, and pods of others do not reach it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bireme.clusters.kind import KindCluster
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from bireme.tools import Toolbox
from tests.kind.shell import NODE_TYPE, Shell, enforce, until

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("denied", "mpi_operator")]

HERE = Path(__file__).parent
DENY_ALL = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny-all}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
"""
OTHERS = "network-others"
OUTSIDER = """
apiVersion: v1
kind: Pod
metadata: {name: outsider}
spec:
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: outsider
      image: bireme/python:3.13
      command: [python3, -c, "import time; time.sleep(3600)"]
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
"""
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
# What kube-router adds to the nodes' filters.
ADDED = ("KUBE-ROUTER", "KUBE-POD-FW", "KUBE-NWPLCY")
# Long enough for a job of these to finish where nothing is denied.
IN_VAIN_SECONDS = 60

TORCH = {"files": ["values/kind.yaml"], "sets": ["workers=2", "elastic.minWorkers=2"]}
MPI = {"files": ["values/kind-mpi.yaml"], "sets": ["workers=2", "image.tag=0.1.0-openmpi5"]}
MPIJOB = {**MPI, "sets": [*MPI["sets"], "mpi.orchestrator=MPIJob"]}
PREPARE = ["/opt/bireme/digits.py", "--prepare", "/home/jobpath/digits/data"]
PADDLE: dict[str, Any] = {
    "files": ["values/kind-paddle.yaml"],
    "values": {
        "data": {
            "jobName": "digits",
            "jobClaim": {"existingClaim": "jobs"},
            "prep": {"enabled": True, "splitCount": 4, "args": PREPARE},
        },
        "workers": 2,
        "paddle": {"pservers": {"count": 2}, "dispatch": "dynamic"},
        "etcd": {"enabled": True, "persistence": {"whenDeleted": "Delete"}},
        "args": ["/opt/bireme/digits.py", "--data=/home/jobpath/digits/data", "--passes=2"],
    },
}


@pytest.fixture(scope="module")
def kube_router(
    cluster: KindCluster, shell: Shell, toolbox: Toolbox, load: Callable[..., None]
) -> Iterator[None]:
    """kube-router on every node. Its rules are taken out again, because other modules share the cluster."""
    load("kube-router", "python")
    manifest = (HERE / "network/kube-router.yaml").read_text()
    manifest = manifest.replace("VERSION", toolbox.pin("kube-router").version)
    shell.kubectl("apply", "-f", "-", given=manifest)
    shell.kubectl("rollout", "status", "-n", "kube-system", "daemonset/kube-router", "--timeout=180s")
    yield
    shell.kubectl("delete", "--wait", "-f", "-", given=manifest)
    unwanted = " ".join(f"-e {each}" for each in ADDED)
    for node in cluster.containers():
        script = f"iptables-save -t filter | grep -v {unwanted} | iptables-restore -T filter"
        cluster.on_node(node, "bash", "-euo", "pipefail", "-c", script)


@pytest.fixture(scope="module")
def denied(kube_router: None, shell: Shell, test_namespace: str) -> str:
    """The module's namespace, in which no pod reaches another unless a policy lets it."""
    shell.kubectl("apply", "-n", test_namespace, "-f", "-", given=DENY_ALL)
    return test_namespace


@pytest.fixture(scope="module")
def outsider(cluster: KindCluster, shell: Shell, kube_router: None) -> Iterator[Callable[..., bool]]:
    """``outsider("10.244.1.7", 2379)``: whether a pod of a namespace that denies nothing connects."""
    cluster.api.create("/api/v1/namespaces", {"metadata": {"name": OTHERS}})
    enforce(cluster, OTHERS, "restricted")
    shell.kubectl("apply", "-n", OTHERS, "-f", "-", given=OUTSIDER)
    shell.kubectl("wait", "-n", OTHERS, "--for=condition=Ready", "pod/outsider", "--timeout=120s")

    def connects(address: str, port: int) -> bool:
        command = ("exec", "-n", OTHERS, "outsider", "--", "python3", "-c", CONNECT, address, str(port))
        return shell.attempt(*command) is not None

    yield connects
    cluster.api.delete(f"/api/v1/namespaces/{OTHERS}")


def ends(job: InstalledRelease) -> set[str]:
    """How the Jobs of the release have ended; "running" stands for those that have not."""
    found = set()
    for each in [*job.objects("jobs"), *mpijobs(job)]:
        conditions = each.get("status", {}).get("conditions", [])
        ended = [one["type"] for one in conditions if one["type"] in ("Complete", "Succeeded", "Failed")]
        found.add(ended[0].replace("Succeeded", "Complete") if ended else "running")
    return found


def mpijobs(job: InstalledRelease) -> list[dict[str, Any]]:
    """The release's MPIJobs; none where the operator was never installed."""
    path = f"/apis/kubeflow.org/v2beta1/namespaces/{job.namespace}/mpijobs/{job.name}-r1"
    found = job.cluster.api.find(path)
    return [found] if found else []


@pytest.mark.parametrize(
    ("chart", "images", "options"),
    [
        pytest.param("torch-elastic", ("etcd", "torch"), TORCH, id="torch-elastic"),
        pytest.param("mpi-training", ("mpi-5",), MPI, id="mpi-training"),
        pytest.param("mpi-training", ("mpi-5",), MPIJOB, id="mpijob"),
        pytest.param("paddle", ("etcd", "paddle"), PADDLE, id="paddle"),
    ],
)
def test_a_job_finishes_only_with_its_policy_where_all_traffic_is_denied(
    cluster: KindCluster,
    load: Callable[..., None],
    release: ReleaseFactory,
    denied: str,
    chart: str,
    images: tuple[str, ...],
    options: Mapping[str, Any],
) -> None:
    load(*images)
    cluster.add_claim("jobs", denied)
    options = {"instance": NODE_TYPE if chart != "paddle" else None, **options}
    job = release(chart, **options, expect_differences=True, timeout=IN_VAIN_SECONDS)
    assert "running" in ends(job)
    sets = [*options.get("sets", ()), "networkPolicy.enabled=true"]
    job.upgrade(**{**options, "sets": sets}, expect_differences=True, timeout=60)
    until(lambda: "running" not in ends(job), 300, lambda: str(job.differences()))
    assert ends(job) == {"Complete"}


def test_no_pod_of_others_reaches_workers_and_etcd(
    load: Callable[..., None],
    release: ReleaseFactory,
    shell: Shell,
    denied: str,
    outsider: Callable[..., bool],
) -> None:
    load("etcd", "torch")
    listens = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=7000)"
    values = {"script": listens, "networkPolicy": {"enabled": True}}
    job = release("torch-elastic", **{**TORCH, "instance": NODE_TYPE}, values=values, timeout=180)
    shell_of = ["-n", denied, "-o", "jsonpath={.items[*].status.podIP}", "-l"]
    label = f"app.kubernetes.io/instance={job.name},app.kubernetes.io/component="
    (etcd,) = shell.kubectl("get", "pods", *shell_of, f"{label}member").split()
    worker, _ = shell.kubectl("get", "pods", *shell_of, f"{label}worker").split()
    assert not outsider(etcd, 2379)
    assert not outsider(worker, 7000)
    # The control: without policies, the same connections are made.
    shell.kubectl("delete", "networkpolicies", "--all", "-n", denied)
    try:
        until(lambda: outsider(etcd, 2379) and outsider(worker, 7000), what="connections without policies")
    finally:
        shell.kubectl("apply", "-n", denied, "-f", "-", given=DENY_ALL)
