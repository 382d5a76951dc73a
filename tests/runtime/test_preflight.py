"""A worker that cannot train or save says so before it joins. nvidia-smi is a stand-in, for lack of a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bireme_runtime.elastic.agent import preflight
from bireme_runtime.process.errors import CONFIG, TEMPORARY, Stop
from tests.runtime.etcd_servers import RUNTIME


def gpus(folder: Path, prints: str) -> dict[str, str]:
    """The environment of a worker with eight GPUs, whose nvidia-smi does this."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{prints}\n")
    program.chmod(0o755)
    path = f"{folder}:/usr/bin:/bin"
    return {"PATH": path, "BIREME_PREFLIGHT_ACCELERATORS": "8", "BIREME_NODE": "ip-10-0-0-1"}


def refusal(env: dict[str, str]) -> Stop:
    with pytest.raises(Stop) as stop:
        preflight.check(env, lambda sentence: None)
    return stop.value


@pytest.mark.parametrize("errors", ["0", "[N/A]"])
def test_eight_sound_gpus_pass(tmp_path: Path, errors: str) -> None:
    env = gpus(tmp_path, f'for i in 0 1 2 3 4 5 6 7; do echo "$i, {errors}"; done')
    preflight.check(env, lambda sentence: None)


@pytest.mark.parametrize(
    ("prints", "why"),
    [
        ("for i in 0 1 2 3 4 5 6; do echo $i, 0; done", "shows 7 of the 8 GPUs that the worker asked for"),
        ("for i in 0 1 2 3 4 5 6 7; do echo $i, $((i / 7)); done", "GPU 7 has uncorrected memory errors"),
        (
            "echo Unable to determine the device handle; exit 15",
            "fails: Unable to determine the device handle",
        ),
    ],
)
def test_a_broken_gpu_is_named_with_its_node(tmp_path: Path, prints: str, why: str) -> None:
    stop = refusal(gpus(tmp_path, prints))
    assert stop.code == TEMPORARY
    assert "ip-10-0-0-1 cannot train" in str(stop)
    assert why in str(stop)


def test_an_image_without_nvidia_smi_is_not_held_against_the_node(tmp_path: Path) -> None:
    preflight.check({"PATH": str(tmp_path), "BIREME_PREFLIGHT_ACCELERATORS": "8"}, lambda sentence: None)


def test_the_folder_of_checkpoints_is_made_written_and_left_empty(tmp_path: Path) -> None:
    said: list[str] = []
    folder = tmp_path / "claim/checkpoints"
    env = {"BIREME_PREFLIGHT_FOLDER": str(folder), "BIREME_PREFLIGHT_WRITE_MIB": "1"}
    preflight.check(env, said.append)
    assert list(folder.iterdir()) == []
    assert said[0].startswith(f"preflight: {folder} takes ")


@pytest.mark.parametrize(
    ("variable", "why"),
    [
        ("BIREME_PREFLIGHT_FREE_MIB", "MiB free, 999999999999 are"),
        ("BIREME_PREFLIGHT_WRITE_MIB", "MiB/s, 9999"),
    ],
)
def test_too_little_space_or_speed_is_told_in_figures(tmp_path: Path, variable: str, why: str) -> None:
    stop = refusal({"BIREME_PREFLIGHT_FOLDER": str(tmp_path), variable: "999999999999"})
    assert stop.code == TEMPORARY
    assert why in str(stop)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    stop = refusal({"BIREME_PREFLIGHT_FOLDER": str(tmp_path / "file/checkpoints")})
    assert "file/checkpoints cannot be written: Not a directory" in str(stop)


def test_a_setting_that_is_no_number_is_wrong_for_all_workers() -> None:
    assert refusal({"BIREME_PREFLIGHT_FREE_MIB": "much"}).code == CONFIG


def test_the_worker_ends_with_the_sentence_as_its_last_words(tmp_path: Path) -> None:
    words = tmp_path / "termination-log"
    words.touch()
    env = gpus(tmp_path, "exit 9") | {"PYTHONPATH": str(RUNTIME), "BIREME_TERMINATION_LOG": str(words)}
    command = [sys.executable, "-m", "bireme_runtime.elastic.agent.supervisor", "--", __file__]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == TEMPORARY
    assert "ip-10-0-0-1 cannot train: nvidia-smi fails: exit code 9" in words.read_text()
