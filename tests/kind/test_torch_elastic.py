"""Elastic jobs that really train."""

from __future__ import annotations

import re

import pytest
from on_kind import NODE_TYPE, Shell, eventually

from bireme.pytest_plugin import InstalledRelease, ReleaseFactory

pytestmark = pytest.mark.usefixtures("torch_images")

KIND = "values/kind.yaml"


def logs(shell: Shell, job: InstalledRelease) -> str:
    return shell.logs(
        f"app.kubernetes.io/instance={job.name},app.kubernetes.io/component=worker", job.namespace
    )


def is_finished(job: InstalledRelease) -> bool:
    (found,) = job.objects("jobs")
    return any(
        each["type"] in ("Complete", "Failed") and each["status"] == "True"
        for each in found["status"].get("conditions", [])
    )


def outcome(job: InstalledRelease) -> str:
    (found,) = job.objects("jobs")
    return next(
        each["type"]
        for each in found["status"]["conditions"]
        if each["type"] in ("Complete", "Failed") and each["status"] == "True"
    )


def test_two_workers_on_two_nodes_all_reduce(release: ReleaseFactory, shell: Shell) -> None:
    job = release(
        "torch-elastic",
        instance=NODE_TYPE,
        files=[KIND],
        sets=["workers=2", "minWorkers=2"],
        timeout=180,
    )
    assert len({pod.node for pod in job.pods() if pod.role == "worker"}) == 2
    eventually(lambda: is_finished(job), 240, "the job to finish")
    said = logs(shell, job)
    assert outcome(job) == "Complete", said
    ranks = re.findall(r"rank (\d+) of world size (\d+) on cpu: all-reduce agrees", said)
    assert sorted(ranks) == [("0", "2"), ("1", "2")], said
