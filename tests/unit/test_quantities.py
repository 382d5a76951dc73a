"""Kubernetes quantities, and what the scheduler counts for a pod."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.core.errors import BiremeError
from bireme.core.quantities import format_quantity, pod_requests, quantity


def test_requests_add_up_as_in_the_scheduler_with_init_containers_and_sidecars() -> None:
    def asks(cpu: str, **more: object) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "initContainers": [asks("3"), asks("500m", restartPolicy="Always"), asks("4")],
        "containers": [asks("1"), {"resources": {"limits": {"nvidia.com/gpu": 8, "cpu": "1500m"}}}],
        "overhead": {"cpu": "100m"},
    }
    # init: max(3, 0.5 + 4) = 4.5; running: 0.5 + 1 + 1.5 = 3
    assert pod_requests(spec) == {"cpu": "4600m", "nvidia.com/gpu": "8"}
    assert pod_requests({"containers": [asks("1")], "resources": {"requests": {"cpu": 2}}}) == {"cpu": "2"}


@pytest.mark.parametrize(
    ("name", "given", "shown"),
    [
        ("cpu", "1500m", "1500m"),
        ("cpu", "94000m", "94"),
        ("cpu", 0.5, "500m"),
        ("memory", "5Gi", "5120Mi"),
        ("memory", "1e3", "1000"),
        ("memory", "128974848", "123Mi"),
        ("hugepages-2Mi", "5120Mi", "5120Mi"),
        ("nvidia.com/gpu", 8, "8"),
        ("memory", 0, "0"),
    ],
)
def test_a_quantity_has_one_spelling(name: str, given: object, shown: str) -> None:
    assert format_quantity(name, quantity(given)) == shown


@pytest.mark.parametrize("wrong", ["lots", "1Xi", "", "1/0", "1_0", "1e999999999", "9" * 5000])
def test_text_that_is_not_a_quantity_is_refused(wrong: str) -> None:
    with pytest.raises(BiremeError, match="is not a Kubernetes quantity"):
        quantity(wrong)
