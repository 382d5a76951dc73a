"""`--image` gives the chart another image, whatever the values files say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from bireme.cli import cli

DIGEST = f"sha256:{'4d' * 32}"


def render(*words: str) -> Result:
    return CliRunner().invoke(cli, ["render", "torch-elastic", *words], env={"COLUMNS": "500"})


def container(result: Result) -> dict[str, Any]:
    """The container in which the workers train."""
    assert result.exit_code == 0, result.exception
    (job,) = (each for each in yaml.safe_load_all(result.stdout) if each and each["kind"] == "Job")
    return dict(job["spec"]["template"]["spec"]["containers"][0])


@pytest.mark.parametrize(
    ("given", "run"),
    [
        ("registry.example.com/team/train:1.4", "registry.example.com/team/train:1.4"),
        ("localhost:5000/train:1.4", "localhost:5000/train:1.4"),
        ("team/train:1.4", "docker.io/team/train:1.4"),
        ("python:3.13", "docker.io/library/python:3.13"),
        (f"ghcr.io/team/train@{DIGEST}", f"ghcr.io/team/train@{DIGEST}"),
        (f"ghcr.io/team/train:1.4@{DIGEST}", f"ghcr.io/team/train@{DIGEST}"),
    ],
)
def test_the_workers_run_the_image_that_the_option_names(given: str, run: str) -> None:
    assert container(render("--image", given))["image"] == run


def test_it_wins_over_the_digest_of_a_values_file_and_not_over_set(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"image": {"digest": DIGEST, "pullPolicy": "Always"}}))
    given = ("-f", str(file), "--image", "team/train:1.4")
    worker = container(render(*given))
    assert (worker["image"], worker["imagePullPolicy"]) == ("docker.io/team/train:1.4", "Always")
    assert container(render(*given, "--set", "image.tag=v5"))["image"] == "docker.io/team/train:v5"


@pytest.mark.parametrize(
    "image", ["train", "registry.example.com/train", "a/b:", "A/B:1", "a/b@sha256:1", ""]
)
def test_what_is_no_image_with_a_tag_or_a_digest_is_refused(image: str) -> None:
    result = render("--image", image)
    assert result.exit_code == 2
    assert f"{image!r} is no image with a tag or a digest" in result.output
