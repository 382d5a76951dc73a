"""What the values of two workloads say of the same files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bireme.helm import Render
from tests.support.rendered import container_of, the


def pod(rendered: Render) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = the(rendered, "Job")["spec"]["template"]["spec"]
    return spec


def settings_of(dataset: Render) -> dict[str, Any]:
    variables = {each["name"]: each.get("value") for each in container_of(pod(dataset), "stage")["env"]}
    return dict(json.loads(variables["BIREME_DATASET"]))


@pytest.mark.parametrize(
    ("dataset", "chart", "instance", "job"),
    [
        ("coco-2017", "mpi-training", "p3.16xlarge", "maskrcnn"),
        ("imagenet", "torch-elastic", "p4d.24xlarge", "imagenet-efa"),
    ],
)
def test_a_dataset_appears_where_its_job_looks_for_it(
    render: Callable[..., Render], dataset: str, chart: str, instance: str, job: str
) -> None:
    made = render("dataset", workload=dataset, sets=["sources[0].url=s3://bucket/data"])
    target = settings_of(made)["target"]
    (worker,) = pod(render(chart, instance=instance, workload=job))["containers"]
    args = [*worker.get("command", ()), *worker["args"]]
    (data,) = [each.removeprefix("--data=") for each in args if each.startswith("--data=")]
    claim = {"coco-2017": "/efs", "imagenet": "/fsx"}[dataset]
    assert data == target.replace("/claim", claim)
