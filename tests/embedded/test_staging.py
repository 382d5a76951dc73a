"""Workers that stage data on their nodes' NVMe, on a real control plane."""

from __future__ import annotations

import pytest

from bireme.errors import BiremeError
from bireme.pytest_plugin import ReleaseFactory

STAGING = {"claimName": "fsx-pvc", "subPath": "datasets/imagenet", "size": "3000Gi"}


def test_copies_are_counted_against_the_nodes_storage_and_a_job_keeps_them(release: ReleaseFactory) -> None:
    half = {"workers": 2, "accelerators": 4}
    job = release("torch-elastic", instance="p4d.24xlarge", values={**half, "staging": STAGING})
    assert job.differences() == ()
    workers = [pod for pod in job.pods() if pod.role == "worker"]
    assert [pod.resources["ephemeral-storage"] for pod in workers] == ["3072000Mi", "3072000Mi"]
    with pytest.raises(BiremeError, match=r"this upgrade changes .*initContainers.* of the Job"):
        job.upgrade(instance="p4d.24xlarge", values=half)
