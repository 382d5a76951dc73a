"""Horovod trains Mask R-CNN across pods on data in COCO's format."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bireme.clusters.kind import KindCluster
from bireme.live.logs import main_log
from bireme.testing.pytest_plugin import ReleaseFactory
from tests.kind.shell import NODE_TYPE, until
from tests.kind.training import Event, outcome

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("image")]

IMAGE = "bireme/mpi:0.1.0"
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def image(load: Callable[..., None]) -> None:
    load("mpi")


@pytest.fixture
def train(release: ReleaseFactory, cluster: KindCluster) -> Callable[..., list[Event]]:
    """``train(3, "horovod_digits.py", "--steps=220")``: the events of a job, once it has succeeded."""

    def _train(workers: int, script: str, *arguments: str) -> list[Event]:
        values = {
            "workers": workers,
            "image": {"tag": IMAGE.partition(":")[2]},
            "args": ["python3", f"/opt/bireme/{script}", *arguments],
            "claims": [{"claimName": "runs", "mountPath": "/runs"}],
        }
        options = {"instance": NODE_TYPE, "files": ["values/kind-mpi.yaml"], "timeout": 180, "values": values}
        job = release("mpi-training", **options)
        until(lambda: outcome(job) is not None, 600, f"the end of {script}")
        log = main_log(cluster, job.plan)
        assert outcome(job) == "Complete", log
        return [json.loads(line) for line in log.splitlines() if line.startswith('{"event"')]

    return _train


def of(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if event["event"] == kind]


def test_two_workers_train_mask_r_cnn_on_a_small_set_in_coco_s_format(
    train: Callable[..., list[Event]], runs: Path
) -> None:
    mounts = ["-v", f"{runs}:/runs", "-v", f"{TESTS / 'images'}:/tests:ro"]
    make = ["python3", "/tests/tiny_coco.py", "/runs/coco"]
    subprocess.run(["docker", "run", "--rm", "--user=0", *mounts, IMAGE, *make], check=True)
    options = ["--backbone=resnet18", "--proposals=20", "--regions=8", "--batch-size=2", "--workers=0"]
    options += ["--image-size", "96", "144", "--epochs=1", "--log-every=1", "--warm-up-steps=2"]
    events = train(2, "maskrcnn.py", "--data=/runs/coco", "--checkpoints=/runs/maskrcnn", *options)
    steps = of(events, "step")
    # 2 images on each of 2 processes: half of the learning rate for 8, after two steps of warm-up.
    assert [(event["step"], event["global_batch"]) for event in steps] == [(1, 4), (2, 4), (3, 4)]
    assert [event["learning_rate"] for event in steps] == pytest.approx([5e-6, 2.5025e-3, 5e-3], abs=1e-6)
    (measured,) = of(events, "validate")
    assert 0 <= measured["segm_map"] <= 1
    (done,) = {event["segm_map"] for event in of(events, "done")}
    assert done == measured["segm_map"]
    assert list((runs / "maskrcnn").glob("checkpoint-*3.pt"))
    assert list((runs / "maskrcnn/tensorboard").iterdir())
