"""workers.csv: what a worker gets on each instance type, one row a type. `make golden` writes it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bireme.core.manifests import Manifest
from bireme.helm import Render, Renderer
from bireme.testing.charts import RequestFor
from tests.support.instance_types import TYPES, image_for
from tests.support.rendered import container_of, environment_of

FILE = Path(__file__).parent / "workers.csv"
NONE = "none"
ROWS = [NONE, *TYPES, "ml.p5.48xlarge"]
"""Workers without a type, on each type of values/instances, and on a node of HyperPod."""
OF_A_CHART = {
    "torch-elastic": [],
    "mpi-training": ["image.tag=v1"],
    "paddle": ["paddle.useGpu=true", "paddle.mode=collective"],
}

Row = dict[str, str]


def kept() -> dict[str, Row]:
    """The rows of the table by type."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return {row["type"]: row for row in csv.DictReader(file)}


def rendered(renderer: Renderer, request_for: RequestFor, chart: str, types: Sequence[str]) -> dict[str, Row]:
    """What workers of ``chart`` get on ``types``."""
    sets = [[] if name == NONE else [f"instance.type={name}", *image_for(name)] for name in types]
    requests = [request_for(chart, sets=[*OF_A_CHART[chart], *each]) for each in sets]
    found = {}
    for name, render in zip(types, renderer.render_many(requests), strict=True):
        assert isinstance(render, Render), f"{chart} on {name}: {render}"
        (job,) = [each for each in render.manifests if each.kind == "Job" and not each.is_hook]
        found[name] = {"type": name} | _row(job)
    return found


def write(renderer: Renderer, request_for: RequestFor) -> None:
    """Write the table anew."""
    rows = list(rendered(renderer, request_for, "torch-elastic", ROWS).values())
    with FILE.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def _row(job: Manifest) -> Row:
    pod: dict[str, Any] = job.thaw()["spec"]["template"]["spec"]
    trainer = container_of(pod, "trainer")
    env, resources = environment_of(trainer), trainer.get("resources", {})
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    assert limits.items() <= requests.items()
    checks = [each for each in pod.get("initContainers", ()) if each["name"] == "devices"]
    near = (
        pod.get("affinity", {}).get("podAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    )
    return {
        "nodes": _words({key.split("/")[1]: value for key, value in pod.get("nodeSelector", {}).items()}),
        "tolerates": " ".join(
            each["key"] for each in pod["tolerations"] if "node.kubernetes" not in each["key"]
        ),
        "zone": "same" if near else "any",
        "requests": _words(requests),
        "shm": next(each["emptyDir"]["sizeLimit"] for each in pod["volumes"] if each["name"] == "shm"),
        "processes": env.get("PET_NPROC_PER_NODE", env.get("BIREME_MPI_SLOTS", "")),
        "efa": " ".join(environment_of(each)["BIREME_EFA"] for each in checks),
        "env": _words({key: value for key, value in env.items() if key.startswith(("FI_", "NCCL_"))}),
        "preflight": _words(
            {key: value for key, value in env.items() if key.startswith("BIREME_PREFLIGHT_")}
        ),
    }


def _words(content: dict[str, str]) -> str:
    return " ".join(
        f"{key.removeprefix('BIREME_PREFLIGHT_')}={value}" for key, value in sorted(content.items())
    )
