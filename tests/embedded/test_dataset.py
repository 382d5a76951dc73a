"""The Job of the dataset chart on a real control plane: its shares, and what an upgrade may change."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.core.errors import BiremeError
from bireme.testing.pytest_plugin import ReleaseFactory

VALUES: dict[str, Any] = {
    "claim": {"name": "fsx-pvc", "path": "imagenet"},
    "sources": [{"url": "s3://imagenet/ILSVRC"}],
    "workers": 2,
}


def test_shares_are_copied_in_parallel_and_a_change_needs_the_next_run(
    release: ReleaseFactory,
) -> None:
    dataset = release("dataset", values=VALUES)
    assert [pod.hostname for pod in dataset.pods()] == [f"{dataset.name}-r1-0", f"{dataset.name}-r1-1"]
    other = VALUES | {"sources": [{"url": "s3://imagenet/other"}]}
    with pytest.raises(BiremeError, match=r"raise run, e\.g\. --set run=2"):
        dataset.upgrade(values=other)
    with pytest.raises(BiremeError, match=f"run: {dataset.name}-r1 has not ended"):
        dataset.upgrade(values=other | {"run": 2})
    dataset.upgrade(values=VALUES | {"shell": {"enabled": True}})
    assert dataset.names("deployments") == [f"{dataset.name}-shell"]
