"""What the values of two workloads say of the same files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from bireme.helm import Render
from tests.support.rendered import RenderChart, container_of, the


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
    render: RenderChart, dataset: str, chart: str, instance: str, job: str
) -> None:
    made = render("dataset", workload=dataset, sets=["sources[0].url=s3://bucket/data"])
    target = settings_of(made)["target"]
    (worker,) = pod(render(chart, instance=instance, workload=job))["containers"]
    args = [*worker.get("command", ()), *worker["args"]]
    (data,) = [each.removeprefix("--data=") for each in args if each.startswith("--data=")]
    claim = {"coco-2017": "/efs", "imagenet": "/fsx"}[dataset]
    assert data == target.replace("/claim", claim)


@pytest.mark.parametrize("job", ["maskrcnn-tensorpack", "maskrcnn-optimized"])
def test_the_weights_of_a_tensorflow_job_are_staged_and_looked_for_before_it_trains(
    render: RenderChart, job: str
) -> None:
    staging = settings_of(render("dataset", workload="coco-2017"))
    (source,) = [each for each in staging["sources"] if each.get("path")]
    staged = f"{staging['target']}/{source['path']}/{source['url'].rpartition('/')[2]}"
    sets = ["image.repository=team/model", "image.tag=v1"]
    worker = pod(render("mpi-training", instance="p3.16xlarge", workload=job, sets=sets))
    (weights,) = [each for each in worker["containers"][0]["args"] if each.startswith("BACKBONE.WEIGHTS=")]
    assert weights == f"BACKBONE.WEIGHTS={staged.replace('/claim', '/efs')}"
    assert weights.partition("=")[2] in container_of(worker, "verify")["command"]
