"""The scripts of images/tensorflow under real mpirun and Horovod: they train, resume and report errors."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.images.chroot_jobs import MAKE_COCO, Start

pytestmark = pytest.mark.torch

DIGITS = ("digits.py", "--checkpoints=/tmp/job/runs", "--epochs=6", "--checkpoint-every=10")


def test_after_the_loss_of_a_process_another_number_goes_on_from_the_last_checkpoint(
    tensorflow: Start, tmp_path: Path
) -> None:
    first = tensorflow(tmp_path, *DIGITS, "--step-seconds=0.1", processes=2)
    first.wait_for_step(15)
    first.signal(1, signal.SIGKILL)
    assert first.status() != 0
    saved = [event["step"] for event in first.events("checkpoint")]
    second = tensorflow(tmp_path, *DIGITS, processes=1)
    assert second.status() == 0, second.output
    resumed = {event["step"] for event in second.events("resume")}
    assert len(resumed) == 1
    assert resumed <= set(saved)
    assert second.events("step")[0]["step"] == min(resumed) + 1
    assert second.events("step")[-1]["loss"] < first.events("step")[0]["loss"] / 2
    (accuracy,) = {event["accuracy"] for event in second.events("done")}
    assert accuracy >= 0.9
    assert json.loads((tmp_path / "runs/done").read_text())["accuracy"] == accuracy
    assert list((tmp_path / "runs/tensorboard").glob("events.out.tfevents.*"))
    again = tensorflow(tmp_path, *DIGITS, processes=1)
    assert again.status() == 0, again.output
    assert [event["event"] for event in again.events()] == ["done"]


def test_sigterm_to_one_process_ends_all_after_a_step_that_is_saved(
    tensorflow: Start, tmp_path: Path
) -> None:
    job = tensorflow(tmp_path, *DIGITS, "--step-seconds=0.1", "--checkpoint-every=1000", processes=2)
    job.wait_for_step(3)
    job.signal(1, signal.SIGTERM)
    assert job.status() != 0
    (stopped,) = {event["step"] for event in job.events("stop")}
    assert [event["step"] for event in job.events("checkpoint")] == [stopped]
    assert (tmp_path / f"runs/ckpt-{stopped}.index").exists()


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("TRAIN.BASELR=0.1", "error: --config TRAIN.BASELR: unknown; there are TRAINER, "),
        ("BACKBONE.WEIGHTS=/tmp/job/R50.npz", "error: BACKBONE.WEIGHTS=/tmp/job/R50.npz has no conv0/W"),
        ("TRAIN.BASE_LR=1e9", "lower TRAIN.BASE_LR"),
    ],
    ids=["misspelled key", "other weights", "rate too high"],
)
def test_a_small_mask_r_cnn_answers_wrong_settings_with_a_sentence(
    tensorflow: Start, tmp_path: Path, setting: str, sentence: str
) -> None:
    make = f"{MAKE_COCO}\nimport numpy; numpy.savez('/tmp/job/R50.npz', other=0)"
    assert tensorflow(tmp_path, make, "/tmp/job/coco").status() == 0
    settings = ["DATA.BASEDIR=/tmp/job/coco", "TRAIN.STEPS_PER_EPOCH=4", "TRAIN.WARMUP=0", setting]
    job = tensorflow(tmp_path, "maskrcnn.py", "--logdir=/tmp/job/run", "--config", *settings)
    assert job.status() != 0
    assert sentence in job.output
    assert "Traceback" not in job.output
