"""The example training scripts train with real torch and torchrun, and survive signals and kills."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.images.chroot_jobs import CHECKPOINTS, Job, Start

pytestmark = pytest.mark.torch

Alone = tuple[Job, Path]

STEPS = 220
DIGITS = ("digits.py", CHECKPOINTS, f"--steps={STEPS}", "--checkpoint-every=20")
TOLERANCE = 1e-4
"""Relative, of a step's loss: sums over processes are rounded in another order."""
ACCURACY_TOLERANCE = 0.01

READ_EVENTS = """
import subprocess
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("/tmp/job/checkpoints/tensorboard", size_guidance={"scalars": 0}).Reload()
print(*([event.step for event in events.Scalars(name)] for name in ("loss", "accuracy")))
subprocess.run(["tensorboard", "--version"], check=True, stdout=subprocess.DEVNULL)
"""
ON_FOLDER = """
import os, sys, time
sys.path.insert(0, "/tmp/bireme")
from pathlib import Path
import elastic
folder = Path("/tmp/job/checkpoints")
"""
RESTORE_WITHOUT_THE_RIGHT_TO_LIST = """
os.chmod(folder.parent, 0o755)
os.chmod(folder, 0o333)
os.chdir("/")
os.seteuid(65534)
print("restored", elastic.Run(folder).restore())
"""
GO_ON_AFTER_A_SAVE_THAT_FAILED = """
os.environ["BIREME_GRACE_SECONDS"] = "100000"
run = elastic.Run(folder)
try:
    run.save(1, lambda: 1 / 0)
except ZeroDivisionError:
    run.log("failed")
time.sleep(100000)
"""
MAKE_PHOTOS = Path(__file__).with_name("photos.py").read_text()
IMAGENET = (
    *("imagenet.py", "--data=/tmp/job/photos", CHECKPOINTS, "--arch=resnet18", "--image-size=64"),
    *("--batch-size=2", "--workers=1", "--epochs=2", "--log-every=1", "--warm-up=1"),
)


@pytest.fixture(scope="module")
def alone(start_in: Start, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """One process without interruption, with which all others are compared."""
    folder = tmp_path_factory.mktemp("alone")
    job = start_in(folder, *DIGITS)
    assert job.status() == 0, job.output
    return job, folder


@pytest.fixture
def photos(start_in: Start, tmp_path: Path) -> Path:
    """A folder with photos/train and photos/val."""
    job = start_in(tmp_path, MAKE_PHOTOS, "/tmp/job/photos")
    assert job.status() == 0, job.output
    return tmp_path


def assert_same_training(job: Job, alone: Job) -> None:
    """Every step of ``job``, repeated ones too, has the loss that it has in the process that ran alone."""
    expected = alone.losses()
    for event in job.events("step"):
        assert event["loss"] == pytest.approx(expected[event["step"]], rel=TOLERANCE, abs=1e-5), event
    assert max(job.losses()) == STEPS
    accuracy = job.events("done")[0]["accuracy"]
    assert accuracy == pytest.approx(alone.events("done")[0]["accuracy"], abs=ACCURACY_TOLERANCE)


def test_one_process_learns_to_read_digits(alone: Alone) -> None:
    job, folder = alone
    assert sorted(job.losses()) == list(range(1, STEPS + 1))
    assert job.events("done")[0]["accuracy"] >= 0.95
    assert json.loads((folder / "checkpoints/done").read_text())["step"] == STEPS


def test_a_run_that_is_done_exits_at_once_when_started_again(alone: Alone, start_in: Start) -> None:
    _, folder = alone
    again = start_in(folder, *DIGITS, processes=2)
    assert again.status() == 0
    assert [event["event"] for event in again.events()] == ["done", "done"]


def test_tensorboard_reads_every_step_from_the_event_files(alone: Alone, start_in: Start) -> None:
    _, folder = alone
    job = start_in(folder, READ_EVENTS)
    assert job.status() == 0, job.output
    assert job.output.splitlines()[-1] == f"{list(range(1, STEPS + 1))} [{STEPS}]"


def test_a_job_whose_training_process_is_killed_resumes_from_its_last_checkpoint(
    alone: Alone, start_in: Start, tmp_path: Path
) -> None:
    job = start_in(tmp_path, *DIGITS, "--step-seconds=0.05", processes=2)
    job.wait_for_step(50)
    job.signal(1, signal.SIGKILL)
    assert job.status() == 0, job.output
    lost = [event["step"] for event in job.events("step") if event["time"] < job.events("resume")[0]["time"]][
        -1
    ]
    resumed = {event["step"] for event in job.events("resume")}
    assert resumed == {lost // 20 * 20}
    assert_same_training(job, alone[0])


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    alone: Alone, start_in: Start, tmp_path: Path
) -> None:
    first = start_in(tmp_path, *DIGITS, "--step-seconds=0.05", processes=2)
    first.wait_for_step(50)
    first.terminate()
    *_, before, last = sorted((tmp_path / "checkpoints").glob("checkpoint-*.pt"))
    last.write_bytes(last.read_bytes()[:1000])
    (tmp_path / "checkpoints" / "checkpoint-best.pt").write_bytes(b"of the user")
    second = start_in(tmp_path, *DIGITS, processes=2)
    assert second.status() == 0, second.output
    assert f"checkpoint-{second.events('unreadable')[0]['step']:09d}" == last.stem
    assert {event["step"] for event in second.events("resume")} == {int(before.stem.partition("-")[2])}
    assert_same_training(second, alone[0])


def test_without_a_checkpoint_that_can_be_read_nothing_begins_anew(start_in: Start, tmp_path: Path) -> None:
    first = start_in(tmp_path, *DIGITS, "--step-seconds=0.05")
    first.wait_for_step(50)
    first.signal(0, signal.SIGKILL)
    first.status()
    for each in (tmp_path / "checkpoints").glob("checkpoint-*.pt"):
        each.write_bytes(b"")
    second = start_in(tmp_path, *DIGITS)
    assert second.status() == 1
    assert "error: none of the checkpoints in /tmp/job/checkpoints can be read" in second.output
    assert not second.events("step")


def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    start_in: Start, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "checkpoint-000000040.pt").write_bytes(b"")
    job = start_in(tmp_path, ON_FOLDER + RESTORE_WITHOUT_THE_RIGHT_TO_LIST)
    assert job.status() == 1
    assert "Permission denied: " in job.output
    assert [event["event"] for event in job.events()] == ["start"]


def test_sigterm_ends_a_process_that_went_on_after_a_save_that_failed(
    start_in: Start, tmp_path: Path
) -> None:
    job = start_in(tmp_path, ON_FOLDER + GO_ON_AFTER_A_SAVE_THAT_FAILED)
    job.wait_until(lambda: bool(job.events("failed")), "the save to fail")
    job.signal(0, signal.SIGTERM)
    assert job.status() == 143


def test_when_one_process_gets_sigterm_then_no_step_is_lost(
    alone: Alone, start_in: Start, tmp_path: Path
) -> None:
    job = start_in(tmp_path, *DIGITS, "--step-seconds=0.05", "--checkpoint-every=1000", processes=2)
    job.wait_for_step(30)
    job.signal(1, signal.SIGTERM)
    assert job.status() == 0, job.output
    (stopped,) = {event["step"] for event in job.events("stop")}
    assert {event["step"] for event in job.events("resume")} == {stopped}
    assert [event["step"] for event in job.events("step")] == list(range(1, STEPS + 1))
    assert_same_training(job, alone[0])


def test_after_sigterm_to_torchrun_another_number_of_processes_resumes(
    alone: Alone, start_in: Start, tmp_path: Path
) -> None:
    first = start_in(tmp_path, *DIGITS, "--step-seconds=0.05", "--checkpoint-every=1000", processes=3)
    first.wait_for_step(30)
    first.terminate()
    second = start_in(tmp_path, *DIGITS)
    assert second.status() == 0, second.output
    assert min(second.losses()) == max(first.losses()) + 1
    assert_same_training(second, alone[0])


def test_a_process_whose_peer_hangs_ends_soon_after_sigterm(start_in: Start, tmp_path: Path) -> None:
    job = start_in(tmp_path, *DIGITS, "--step-seconds=0.05", processes=2)
    job.wait_for_step(30)
    job.signal(1, signal.SIGSTOP)
    time.sleep(1)  # until rank 0 waits for it
    job.signal(0, signal.SIGTERM)
    began = time.monotonic()
    job.wait_until(lambda: not job.is_alive(0), "end of rank 0")
    assert time.monotonic() - began < 60
    job.signal(1, signal.SIGCONT)
    assert job.status() == 0, job.output


def test_an_image_classifier_resumes_within_an_epoch_with_fewer_processes(
    start_in: Start, photos: Path
) -> None:
    first = start_in(photos, *IMAGENET, "--accumulate=2", "--step-seconds=0.3", processes=2)
    first.wait_for_step(2)
    first.terminate()
    (stopped,) = {event["step"] for event in first.events("stop")}
    last = first.events("step")[-1]
    assert (last["step"], last["seen"], last["global_batch"]) == (stopped, stopped * 8, 8)

    # A picture that is added in the meantime is not used before the next run.
    shutil.copy(photos / "photos/train/china/0.jpg", photos / "photos/train/china/00.jpg")
    second = start_in(photos, *IMAGENET)
    assert second.status() == 0, second.output
    (rescaled,) = second.events("rescale")
    assert (rescaled["was"], rescaled["global_batch"]) == (8, 2)
    of_first_epoch = [event for event in second.events("step") if event["epoch"] == 0]
    assert of_first_epoch[0]["seen"] == last["seen"] + 2
    assert of_first_epoch[-1]["seen"] == 48
    assert [event["epoch"] for event in second.events("validate")] == [1, 2]
    (done,) = second.events("done")
    assert 0 <= done["accuracy"] <= done["best"] <= 1


def test_an_image_classifier_in_two_processes_measures_what_one_does(start_in: Start, photos: Path) -> None:
    """The 18 pictures of val/ are divided unevenly among decoding processes, and each counts once."""
    job = start_in(photos, *IMAGENET, "--epochs=1", "--batch-size=4", processes=2)
    assert job.status() == 0, job.output
    assert (job.events("validate")[0]["accuracy"] * 18) % 1 == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    ("spoil", "option", "sentence"),
    [
        (
            lambda folder: (folder / "photos/val").rename(folder / "val"),
            "--epochs=1",
            "needs train/<class>/ and val/<class>/",
        ),
        (lambda _: None, "--arch=resnet19", "torchvision has no such classifier; it has alexnet"),
        (lambda _: None, "--batch-size=64", "lower --batch-size or --accumulate"),
    ],
    ids=["no val", "misspelled arch", "batch beyond the data"],
)
def test_bad_input_is_answered_with_a_sentence(
    spoil: Callable[[Path], object], option: str, sentence: str, start_in: Start, photos: Path
) -> None:
    spoil(photos)
    job = start_in(photos, *IMAGENET, option)
    assert job.status() != 0
    assert sentence in job.output
    assert "Traceback" not in job.output
