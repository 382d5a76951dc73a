"""TensorFlow with Horovod across pods: a Keras model, and a small Mask R-CNN with given arguments."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bireme.clusters.kind import KindCluster
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.kind.shell import NODE_TYPE, Shell, until
from tests.kind.training import outcome

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("image")]

ROOT = Path(__file__).parents[2]
TAG = "bireme/tensorflow:0.1.0"
IMAGE = {"registry": "", "repository": "bireme/tensorflow", "tag": "0.1.0"}
ON_KIND = {"image": IMAGE, "monitoring": {"tensorboard": {"image": IMAGE}}}
EACH_ORCHESTRATOR = pytest.mark.parametrize("orchestrator", ["Job", "MPIJob"])
WEIGHTS = "data/coco2017/pretrained-models/ImageNet-R50-AlignPadding.npz"
# The weights that the program has a use for, by Tensorpack's name and in ResNet's shape.
MAKE = f"""
import numpy, pathlib, runpy, sys
sys.argv[1] = "/efs/data/coco2017"
runpy.run_path("/tests/tiny_coco.py", run_name="__main__")
weights = pathlib.Path("/efs/{WEIGHTS}")
weights.parent.mkdir()
random = numpy.random.default_rng(7).normal(0, 0.1, (7, 7, 3, 64)).astype("float32")
numpy.savez(weights, **{{"conv0/W": random}})
"""
# What the programs of the sources get in addition, for few images: six steps in each of four epochs.
FEW = {
    "maskrcnn-tensorpack": ["TRAIN.LR_SCHEDULE=[4,5,6]", "TRAIN.BASE_LR=0.04", "TRAIN.WARMUP=2"],
    "maskrcnn-optimized": [
        "TRAIN.LR_EPOCH_SCHEDULE=[(3,0.1),(4,None)]",
        "TRAIN.BASE_LR=0.012",
        "TRAIN.BATCH_SIZE_PER_GPU=2",
        "TRAIN.WARMUP=2",
        "--images_per_epoch=24",
    ],
}
PROGRAMS = {
    "maskrcnn-tensorpack": "/tensorpack/examples/FasterRCNN/train.py",
    "maskrcnn-optimized": "/mask-rcnn-tensorflow/MaskRCNN/train.py",
}


@pytest.fixture(scope="module")
def image(load: Callable[..., None]) -> None:
    load("tensorflow")


@pytest.fixture
def efs(cluster: KindCluster, test_namespace: str) -> Path:
    """The folder behind the claim `efsvol`, empty: root in a pod cannot write where others do."""
    cluster.add_claim("efsvol", test_namespace)
    folder = cluster.claim_folder("efsvol", test_namespace)
    for each in ("runs", "data"):
        shutil.rmtree(folder / each, ignore_errors=True)
    return folder


def logs(shell: Shell, job: InstalledRelease) -> str:
    return shell.logs(f"app.kubernetes.io/instance={job.name}", job.namespace)


def events(log: str, name: str) -> list[dict[str, Any]]:
    """The events of that name in a log, in which lines of two ranks may be one."""
    start = '{"event"'
    found = [json.JSONDecoder().raw_decode(start + each)[0] for each in log.split(start)[1:]]
    return [event for event in found if event["event"] == name]


def has_ended_well(job: InstalledRelease) -> bool:
    """Whether the first rank's pod or the launcher has succeeded, and no other trains."""
    pods = [pod for pod in job.pods() if "tensorboard" not in pod.name]
    return "Succeeded" in {pod.phase for pod in pods} and not [pod for pod in pods if pod.is_live]


@EACH_ORCHESTRATOR
def test_a_keras_model_goes_on_from_rank_0_s_checkpoint_when_a_worker_is_lost(
    request: pytest.FixtureRequest,
    release: ReleaseFactory,
    cluster: KindCluster,
    shell: Shell,
    efs: Path,
    orchestrator: str,
) -> None:
    if orchestrator == "MPIJob":
        request.getfixturevalue("mpi_operator")
    more = {"launch": {"extraArgs": ["--epochs=12", "--step-seconds=0.1", "--checkpoint-every=10"]}}
    job = release(
        "mpi-training",
        instance=NODE_TYPE,
        workload="keras-digits",
        files=["values/kind-mpi.yaml"],
        sets=[f"mpi.orchestrator={orchestrator}"],
        timeout=240,
        values={**ON_KIND, **more},
    )
    until(lambda: events(logs(shell, job), "checkpoint"), 240, lambda: f"a checkpoint:\n{logs(shell, job)}")
    before = logs(shell, job)
    assert {event["world_size"] for event in events(before, "start")} == {2}
    host = f"{job.name}-r1-{'worker-' if orchestrator == 'MPIJob' else ''}1"
    (lost,) = [pod.name for pod in job.pods() if pod.hostname == host and pod.is_live]
    shell.kill_container(job.namespace, lost, "trainer")
    until(
        lambda: (efs / f"runs/{job.name}/done").exists(), 400, lambda: f"the end:\n{logs(shell, job)[-5000:]}"
    )
    job.until(lambda: has_ended_well(job))
    after = logs(shell, job)
    (resumed,) = {event["step"] for event in events(after, "resume")}
    assert resumed >= 10
    losses = {event["step"]: event["loss"] for event in events(before, "step") + events(after, "step")}
    assert losses[max(losses)] < losses[1] / 2
    assert json.loads((efs / f"runs/{job.name}/done").read_text())["accuracy"] >= 0.9
    board = (job.namespace, f"{job.name}-tensorboard", 6006, "data/plugin/scalars/tags", 60)
    until(
        lambda: f"{job.name}/tensorboard" in cluster.api.proxied(*board), 120, "TensorBoard to show the run"
    )


@pytest.mark.usefixtures("root_may_run")
def test_a_mask_r_cnn_without_its_weights_says_so_and_fails(
    release: ReleaseFactory, shell: Shell, efs: Path
) -> None:
    job = mask_rcnn(release, "maskrcnn-tensorpack", fails=True)
    selector = f"batch.kubernetes.io/job-name={job.name}-r1"

    def said() -> str:
        return shell.kubectl(
            *("logs", "-n", job.namespace, "-l", selector, "-c", "verify", "--tail=-1", "--ignore-errors")
        )

    words = "/efs/data/coco2017/annotations/instances_train2017.json is not there"
    until(lambda: words in said(), 120, lambda: f"the sentence:\n{said()}")
    until(lambda: outcome(job) == "Failed", 120, "the job to fail")


@pytest.mark.usefixtures("root_may_run")
@pytest.mark.parametrize("workload", list(PROGRAMS))
def test_a_small_mask_r_cnn_takes_the_arguments_of_the_workloads_and_its_loss_falls(
    release: ReleaseFactory, shell: Shell, efs: Path, workload: str
) -> None:
    mounts = ["-v", f"{efs}:/efs", "-v", f"{ROOT / 'tests/images'}:/tests:ro"]
    make = ["docker", "run", "--rm", "--user=0", *mounts, TAG, "python3", "-c", MAKE, ""]
    subprocess.run(make, check=True)
    shutil.copy(ROOT / "images/tensorflow/maskrcnn.py", efs / "train.py")
    job = mask_rcnn(release, workload, launch={"extraArgs": FEW[workload]})
    logdir = efs / f"runs/{job.name}"
    log = logdir / "log.log"
    until(
        lambda: log.exists() and "Training has finished!" in log.read_text(),
        480,
        lambda: f"the end:\n{logs(shell, job)[-5000:]}",
    )
    job.until(lambda: has_ended_well(job))
    assert "Rank=1, Size=2" in logs(shell, job)
    stats = json.loads((logdir / "stats.json").read_text())
    assert [each["global_step"] for each in stats] == [6, 12, 18, 24]
    assert stats[-1]["total_cost"] < stats[0]["total_cost"] * 0.9
    assert stats[-1]["val_total_cost"] < stats[0]["val_total_cost"]
    assert stats[-1]["learning_rate"] < stats[0]["learning_rate"]
    assert "Restored conv0/W" in log.read_text()
    made = {file.name for file in logdir.iterdir()}
    assert {"checkpoint", "model-24.index"} < made
    assert [name for name in made if name.startswith("events.out.tfevents.")]


def mask_rcnn(
    release: ReleaseFactory, workload: str, *, fails: bool = False, **values: Any
) -> InstalledRelease:
    """A job of the workload on two workers, with the small program at the place of the source's."""
    program = {"name": "claim-0", "mountPath": PROGRAMS[workload], "subPath": "train.py"}
    more = {"pod": {"extraVolumeMounts": [program]}, "env": {"IMAGES_PER_EPOCH": 12}, **values}
    return release(
        "mpi-training",
        instance=NODE_TYPE,
        workload=workload,
        files=["values/kind-mpi.yaml"],
        timeout=20 if fails else 240,
        expect_differences=fails,
        values={**ON_KIND, **more},
    )
