"""Nodes of kind clusters: shaped as their instance type, connected, and joined by fake ones on demand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from bireme.clusters.kind import KindCluster
from bireme.core.labels import FAKE_LABEL
from tests.kind.shell import NODE_TYPE, Shell, until
from tests.support import faults

RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
SERVE = "import http.server; http.server.test(http.server.SimpleHTTPRequestHandler, port=8000)"
ASK = "import urllib.request; print(urllib.request.urlopen('http://{name}:8000', timeout=2).status)"
RETRY = 'for i in $(seq 30); do python3 -c "$ASK" && exit 0; sleep 1; done; exit 1'


def nodes_of_type(cluster: KindCluster, instance_type: str) -> list[dict[str, Any]]:
    selector = f"node.kubernetes.io/instance-type={instance_type}"
    items: list[dict[str, Any]] = cluster.api.get("/api/v1/nodes", labelSelector=selector)["items"]
    return items


def pod(name: str, node: str, command: list[str], env: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": "bireme/python:3.13",
                    "command": command,
                    "workingDir": "/tmp",
                    "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
                    "securityContext": RESTRICTED,
                }
            ],
        },
    }


def test_nodes_carry_the_labels_taints_and_devices_of_their_instance_type(cluster: KindCluster) -> None:
    nodes = nodes_of_type(cluster, NODE_TYPE)
    assert len(nodes) == 3
    for node in nodes:
        assert node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "us-west-2a"
        assert node["spec"]["taints"] == [
            {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
        ]
        for offer in (node["status"]["capacity"], node["status"]["allocatable"]):
            assert (offer["nvidia.com/gpu"], offer["vpc.amazonaws.com/efa"]) == ("1", "1")


@pytest.mark.whole
def test_the_control_plane_takes_pods_without_accelerators(cluster: KindCluster) -> None:
    (node,) = nodes_of_type(cluster, "m7i.2xlarge")
    assert "node-role.kubernetes.io/control-plane" in node["metadata"]["labels"]
    assert "taints" not in node["spec"]
    assert cluster.nodes == {"cpu": 1, NODE_TYPE: 3}


@pytest.mark.whole
@pytest.mark.usefixtures("etcd_images")
def test_a_pod_reaches_one_on_another_node_by_its_services_name(
    cluster: KindCluster, shell: Shell, test_namespace: str
) -> None:
    one, other, _ = (node["metadata"]["name"] for node in nodes_of_type(cluster, NODE_TYPE))
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "server"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 8000}]},
    }
    objects = [
        service,
        pod("server", one, ["python3", "-c", SERVE]),
        pod("client", other, ["sh", "-c", RETRY], {"ASK": ASK.format(name="server")}),
    ]
    shell.kubectl("apply", "-n", test_namespace, "-f", "-", given=yaml.safe_dump_all(objects))
    phase = ("get", "pod", "client", "-n", test_namespace, "-o", "jsonpath={.status.phase}")
    until(lambda: shell.kubectl(*phase) in ("Succeeded", "Failed"), what="the client to end")
    assert shell.kubectl("logs", "client", "-n", test_namespace).strip().endswith("200")


@pytest.mark.whole
@pytest.mark.usefixtures("etcd_images")
def test_a_claim_is_one_host_directory_on_every_node(
    cluster: KindCluster, shell: Shell, test_namespace: str
) -> None:
    cluster.add_claim("data", test_namespace)
    for node in nodes_of_type(cluster, NODE_TYPE):
        name = node["metadata"]["name"]
        writer = pod(f"on-{name}", name, ["sh", "-c", f"echo {name} > /data/{name}"])
        writer["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        writer["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        shell.kubectl("apply", "-n", test_namespace, "-f", "-", given=yaml.safe_dump(writer))
    folder = cluster.claim_folder("data", test_namespace)
    until(lambda: len(list(folder.iterdir())) == 3, what="all pods to write to the claim")
    assert {file.name for file in folder.iterdir()} == {file.read_text().strip() for file in folder.iterdir()}


@pytest.fixture
def fakes(cluster: KindCluster) -> Iterator[tuple[str, ...]]:
    names = cluster.add_nodes("p5.48xlarge", 3)
    yield names
    for name in names:
        faults.remove_node(cluster, name)


def test_fake_nodes_run_what_no_container_could(
    cluster: KindCluster, fakes: tuple[str, ...], shell: Shell, test_namespace: str
) -> None:
    assert {node["metadata"]["labels"][FAKE_LABEL] for node in nodes_of_type(cluster, "p5.48xlarge")} == {
        "fake"
    }
    job = yaml.safe_dump(whole_node_job("p5.48xlarge", 3))
    shell.kubectl("apply", "-n", test_namespace, "-f", "-", given=job)
    running = (
        "get",
        "pods",
        "-n",
        test_namespace,
        "-l",
        "job-name=big",
        "-o",
        "jsonpath={.items[*].spec.nodeName}",
    )
    ready = ("get", "job", "big", "-n", test_namespace, "-o", "jsonpath={.status.ready}")
    until(lambda: shell.kubectl(*ready) == "3", what="three whole-node pods to run")
    assert set(shell.kubectl(*running).split()) == set(fakes)
    # With its pods, because only kwok can end them, and it needs their nodes.
    shell.kubectl("delete", "job", "big", "-n", test_namespace, "--cascade=foreground")


def whole_node_job(instance_type: str, count: int) -> dict[str, Any]:
    devices = {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32", "memory": "1Ti"}
    container = {
        "name": "main",
        "image": "bireme/never-pulled:1",
        "resources": {"limits": devices},
        "securityContext": RESTRICTED,
    }
    spec = {
        "restartPolicy": "Never",
        "nodeSelector": {"node.kubernetes.io/instance-type": instance_type},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [container],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "big"},
        "spec": {"completions": count, "parallelism": count, "template": {"spec": spec}},
    }
