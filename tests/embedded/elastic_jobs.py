"""Jobs that follow the capacity, and the program of charts/autoscaler, for tests on the embedded cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from bireme.clusters.embedded import EmbeddedCluster
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory

BIREME = Path(sys.executable).with_name("bireme")
TYPE = "p4d.24xlarge"
REGISTRY = "global.imageRegistries.bireme=registry.example.com"


def elastic(release: ReleaseFactory, *sets: str, workers: int = 2, **more: Any) -> InstalledRelease:
    """A job that takes whole nodes and may grow at once."""
    return release("torch-elastic", **options(*sets, workers=workers), **more)


def options(*sets: str, workers: int = 2) -> dict[str, Any]:
    given = [
        f"workers={workers}",
        "rendezvous.backend=c10d",
        "etcd.enabled=false",
        "elastic.autoscale.enabled=true",
        "elastic.autoscale.cooldown=0",
        *sets,
    ]
    return {"instance": TYPE, "sets": given, "expect_differences": True, "timeout": 3}


def workers(job: InstalledRelease) -> int:
    """How many workers the Job shall have."""
    (live,) = job.objects("jobs")
    count: int = live["spec"]["parallelism"]
    assert live["spec"]["completions"] == count
    return count


def running(job: InstalledRelease) -> int:
    return sum(pod.role == "worker" and pod.ready and pod.is_live for pod in job.pods())


def nodes(cluster: EmbeddedCluster) -> int:
    return cluster.nodes[TYPE]


def service(name: str, **spec: Any) -> dict[str, Any]:
    """A pod that takes a whole node."""
    resources = {"limits": {"nvidia.com/gpu": "8"}}
    return {
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "server", "image": "server", "resources": resources}],
            "nodeSelector": {"node.kubernetes.io/instance-type": TYPE},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            **spec,
        },
    }
