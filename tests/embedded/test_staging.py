"""Workers that stage data on their nodes' NVMe, on a real control plane."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.core.errors import BiremeError
from bireme.testing.pytest_plugin import ReleaseFactory
from tests.support.tiers import core

STAGING = {"claimName": "fsx-pvc", "subPath": "datasets/imagenet", "size": "3000Gi"}


OWN: dict[str, tuple[str, dict[str, Any]]] = {
    "torch-elastic": ("worker", {}),
    "mpi-training": ("worker", {"image": {"tag": "1"}}),
    "paddle": ("trainer", {"paddle": {"useGpu": True}}),
}


@pytest.mark.parametrize("chart", core("torch-elastic", of=OWN))
def test_staged_data_counts_as_storage_and_cannot_be_dropped_in_place(
    release: ReleaseFactory, chart: str
) -> None:
    role, own = OWN[chart]
    half = {"workers": 2, "accelerators": 4, **own}
    job = release(chart, instance="p4d.24xlarge", values={**half, "data": {"staging": STAGING}})
    assert job.differences() == ()
    workers = [pod for pod in job.pods() if pod.role == role]
    assert [pod.resources["ephemeral-storage"] for pod in workers] == ["3072000Mi", "3072000Mi"]
    with pytest.raises(BiremeError, match=r"this upgrade changes .*initContainers.* of the Job"):
        job.upgrade(instance="p4d.24xlarge", values=half)
