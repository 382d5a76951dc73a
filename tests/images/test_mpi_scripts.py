"""The scripts of images/mpi under real mpirun and Horovod: they train, resume, measure, and report errors."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from bireme.live.nccl import parse
from tests.images.chroot_jobs import CHECKPOINTS, MAKE_COCO, Job, Start

pytestmark = pytest.mark.torch

STEPS = 120
DIGITS = ("horovod_digits.py", CHECKPOINTS, f"--steps={STEPS}", "--checkpoint-every=50")
TOLERANCE = 1e-4
"""Relative, of a step's loss: sums over processes are rounded in another order."""
MASK = (
    "maskrcnn.py",
    "--data=/tmp/job/coco",
    CHECKPOINTS,
    "--backbone=resnet18",
    "--image-size",
    "96",
    "144",
    *("--proposals=20", "--regions=8", "--workers=0", "--log-every=1", "--warm-up-steps=4", "--epochs=2"),
)
MEASURE_THE_TRUTH = """
import json, sys
from pathlib import Path
import maskrcnn
annotations = Path("/tmp/job/coco/annotations/instances_val2017.json")
images = maskrcnn.CocoImages(Path("/tmp/job/coco"), "val2017", training=False)
found = []
for image, target in images:
    masks, boxes = target["masks"], target["boxes"]
    for box, label, mask in zip(boxes.tolist(), target["labels"].tolist(), masks.numpy()):
        found.append({
            "image_id": int(target["image_id"]), "category_id": images.categories[label - 1], "score": 1.0,
            "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
            "segmentation": maskrcnn.rle.encode(maskrcnn.np.asfortranarray(mask)),
        })
measure = maskrcnn.mean_average_precision
print(json.dumps([measure(annotations, part) for part in (found, found[:1], [])]))
"""


@pytest.fixture(scope="module")
def alone(mpirun: Start, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """One process without interruption, with which all others are compared."""
    job = mpirun(tmp_path_factory.mktemp("alone"), *DIGITS, processes=1)
    assert job.status() == 0, job.output
    return job


@pytest.fixture
def coco(mpirun: Start, tmp_path: Path) -> Path:
    """A folder with coco/, a small set in COCO's format."""
    job = mpirun(tmp_path, MAKE_COCO, "/tmp/job/coco")
    assert job.status() == 0, job.output
    return tmp_path


def test_three_processes_compute_what_one_does_and_a_rerun_ends_at_once(
    alone: Job, mpirun: Start, tmp_path: Path
) -> None:
    job = mpirun(tmp_path, *DIGITS, processes=3)
    assert job.status() == 0, job.output
    assert {event["world_size"] for event in job.events()} == {3}
    assert job.losses() == pytest.approx(alone.losses(), rel=TOLERANCE, abs=1e-5)
    assert len(job.losses()) == STEPS
    (accuracy,) = {event["accuracy"] for event in job.events("done")}
    assert accuracy >= 0.9
    again = mpirun(tmp_path, *DIGITS, processes=2)
    assert again.status() == 0, again.output
    assert [event["event"] for event in again.events()] == ["done", "done"]


def test_after_sigterm_to_one_process_all_save_and_another_number_resumes(
    alone: Job, mpirun: Start, tmp_path: Path
) -> None:
    first = mpirun(tmp_path, *DIGITS, "--step-seconds=0.1", processes=2)
    first.wait_for_step(10)
    first.signal(1, signal.SIGTERM)
    assert first.status() != 0
    (stopped,) = {event["step"] for event in first.events("stop")}
    second = mpirun(tmp_path, *DIGITS, processes=3)
    assert second.status() == 0, second.output
    assert {event["step"] for event in second.events("resume")} == {stopped}
    assert first.losses() | second.losses() == pytest.approx(alone.losses(), rel=TOLERANCE, abs=1e-5)
    assert not first.losses().keys() & second.losses().keys()


def test_mask_r_cnn_resumes_within_an_epoch_with_fewer_processes_and_their_rate(
    mpirun: Start, coco: Path
) -> None:
    first = mpirun(coco, *MASK, "--batch-size=1", "--step-seconds=1", processes=2)
    first.wait_for_step(2)
    first.signal(0, signal.SIGTERM)
    assert first.status() != 0
    (stopped,) = {event["step"] for event in first.events("stop")}
    assert first.events("step")[0]["learning_rate"] == pytest.approx(0.01 * 2 / 8 * 0.001)

    second = mpirun(coco, *MASK, "--batch-size=1", processes=1)
    assert second.status() == 0, second.output
    steps = second.events("step")
    assert (steps[0]["step"], steps[0]["seen"]) == (stopped + 1, stopped * 2 + 1)
    assert [event["seen"] for event in steps if event["epoch"] == 0][-1] == 12
    assert [event["seen"] for event in steps if event["epoch"] == 1] == list(range(1, 13))
    assert steps[-1]["learning_rate"] == pytest.approx(0.01 / 8)
    assert [event["epoch"] for event in second.events("validate")] == [1, 2]
    (done,) = second.events("done")
    assert done["segm_map"] == second.events("validate")[-1]["segm_map"]
    assert list((coco / "checkpoints/tensorboard").iterdir())


def test_the_precision_is_one_for_all_annotations_less_for_some_and_zero_for_none(
    mpirun: Start, coco: Path
) -> None:
    job = mpirun(coco, MEASURE_THE_TRUTH)
    assert job.status() == 0, job.output
    whole, part, nothing = json.loads(job.output.splitlines()[-1])
    assert set(whole) == {"bbox_map", "bbox_map50", "segm_map", "segm_map50"}
    assert set(whole.values()) == {1.0}
    assert all(0 < part[name] < 1 for name in part)
    assert set(nothing.values()) == {0.0}


def test_bireme_reads_the_bandwidth_of_a_sweep_on_cpus(mpirun: Start, tmp_path: Path) -> None:
    job = mpirun(tmp_path, "all_reduce_bandwidth.py", "--maxbytes=64K", processes=2)
    assert job.status() == 0, job.output
    report = parse(job.output)
    assert (report.ranks, report.hosts, report.wrong) == (2, 1, 0)
    assert [size.bytes for size in report.sizes] == [8 << step for step in range(14)]
    assert 0 < report.average <= report.maximum
    assert not report.is_efa


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--train=train2014"], "needs annotations/instances_train2014.json in COCO's format"),
        (["--backbone=resnet17"], "torchvision has no such ResNet; it has resnet"),
        (["--batch-size=64"], "has 12 images with objects, a global batch takes 64: lower --batch-size"),
        (["--backbone-weights=/tmp/job/none.pth"], "error: --backbone-weights /tmp/job/none.pth: "),
    ],
    ids=["no annotations", "misspelled backbone", "batch beyond the data", "no weights"],
)
def test_bad_input_is_answered_with_a_sentence(
    options: list[str], sentence: str, mpirun: Start, coco: Path
) -> None:
    job = mpirun(coco, *MASK, *options, processes=1)
    assert job.status() != 0
    assert sentence in job.output
    assert "Traceback" not in job.output


@pytest.mark.parametrize("options", [["--minbytes=7"], ["-b", "1M", "-e", "1K"], ["-f", "1"]])
def test_a_sweep_over_no_sizes_is_refused(options: list[str], mpirun: Start, tmp_path: Path) -> None:
    job = mpirun(tmp_path, "all_reduce_bandwidth.py", *options)
    assert job.status() == 2
    assert "error:" in job.output
