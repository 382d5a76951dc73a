"""A job in a cluster whose pods and Services have IPv6 addresses only, as on EKS with IPv6."""

from __future__ import annotations

import ipaddress
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from bireme.clusters.kind import KindCluster, KindProvider
from bireme.core.paths import Paths
from bireme.helm import Renderer
from bireme.plan.instances import Instance
from bireme.testing.charts import RequestFor
from bireme.testing.pytest_plugin import InstalledRelease
from bireme.tools import Toolbox
from tests.kind.shell import NODE_TYPE, Shell, until
from tests.kind.training import KIND, outcome

pytestmark = pytest.mark.whole

SCRIPT = """
import time
import torch, torch.distributed as dist
from bireme_runtime.dispatcher import Dispatcher

dist.init_process_group("gloo")
with Dispatcher() as dispatcher:
    dispatcher.add([f"part-{number}" for number in range(20)])
    mine = dispatcher.shards(for_all=True) if dist.get_rank() == 0 else iter(())
    for step in range(21):
        goes_on = torch.tensor([float(next(mine, None) is not None)])
        dist.all_reduce(goes_on)
        print(f"step {step} loss {1 / (step + 1)}", flush=True)
        time.sleep(1)
    assert goes_on.item() == 0, "20 shards"
"""


@pytest.fixture(scope="module")
def cluster(
    bireme_paths: Paths, toolbox: Toolbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KindCluster]:
    """One with IPv6, beside that of the session."""
    provider = KindProvider(replace(bireme_paths, state=tmp_path_factory.mktemp("ipv6")), toolbox)
    name = f"six-{uuid.uuid4().hex[:6]}"
    try:
        found = provider.up(name, {NODE_TYPE: 2}, ip_family="ipv6")
        answer_for_the_engine(found)
        yield found
    finally:
        provider.down(name)


def answer_for_the_engine(cluster: KindCluster) -> None:
    """CoreDNS says itself that it does not know a name: the engine's DNS has an IPv4 address only."""
    system = "/api/v1/namespaces/kube-system"
    file = cluster.api.get(f"{system}/configmaps/coredns")["data"]["Corefile"]
    own = re.sub(r"forward \. /etc/resolv\.conf \{.*?\n    \}", "", file, flags=re.DOTALL)
    own = own.replace(".:53 {", "cluster.local:53 in-addr.arpa:53 ip6.arpa:53 {")
    changed = f"{own}\n.:53 {{\n template ANY ANY {{\n rcode NXDOMAIN\n }}\n}}\n"
    cluster.api.patch(f"{system}/configmaps/coredns", {"data": {"Corefile": changed}})
    for pod in cluster.api.get(f"{system}/pods", labelSelector="k8s-app=kube-dns")["items"]:
        cluster.api.delete(f"{system}/pods/{pod['metadata']['name']}")


@pytest.fixture
def job(
    cluster: KindCluster,
    bireme_paths: Paths,
    toolbox: Toolbox,
    request_for: RequestFor,
    renderer: Renderer,
    instances: Mapping[str, Instance],
) -> InstalledRelease:
    """Two workers with an etcd, metrics, a dispatcher and TensorBoard, as planned."""
    build = [sys.executable, str(bireme_paths.hack / "images/build.py"), "image", "etcd", "python", "torch"]
    made = subprocess.run(build, cwd=bireme_paths.root, stdout=subprocess.PIPE, text=True, check=True)
    cluster.load_image(*made.stdout.split())
    cluster.add_claim("runs")
    python = {"registry": "", "repository": "bireme/python", "tag": "3.13"}
    small = {"requests": {"cpu": "50m", "memory": "64Mi"}}
    values = {
        "workers": 2,
        "elastic": {"minWorkers": 2},
        "script": SCRIPT,
        "claims": [{"claimName": "runs", "mountPath": "/runs"}],
        "data": {"dispatcher": {"enabled": True, "image": python, "resources": small}},
        "etcd": {"persistence": {"enabled": True, "whenDeleted": "Delete"}},
        "monitoring": {
            "tensorboard": {"enabled": True, "logDir": "/runs"},
        },
    }
    release = InstalledRelease(request_for, toolbox, renderer, instances, cluster)
    return release.install(
        "torch-elastic", "six", "default", files=[KIND], instance=NODE_TYPE, values=values, timeout=240
    )


def test_a_job_trains_and_all_that_listens_answers_over_ipv6(
    job: InstalledRelease, cluster: KindCluster, toolbox: Toolbox
) -> None:
    shell = Shell(cluster, toolbox)
    workers = "app.kubernetes.io/instance=six,app.kubernetes.io/component=worker"
    until(lambda: "step 3 loss" in shell.logs(workers, "default"), 120, "the workers to train")
    pods = job.objects("pods")
    families = {ipaddress.ip_address(each["ip"]).version for pod in pods for each in pod["status"]["podIPs"]}
    assert families == {6}
    (worker, *_) = [pod.name for pod in job.pods() if pod.role == "worker"]
    told = cluster.api.proxied("default", worker, 9464, "v1/status", 5, kind="pods")
    assert told["step"] >= 3
    (dataset,) = cluster.api.proxied("default", "six-dispatcher", 7190, "v1/status", 5)["datasets"]
    assert dataset["shards"] == 20
    board = cluster.api.proxied("default", "six-tensorboard", 6006, "data/environment", 5)
    assert board["data_location"] == "/runs"
    until(lambda: outcome(job) is not None, 240, "the job to finish")
    assert outcome(job) == "Complete", shell.logs(workers, "default")
