"""The workload imagenet-efa, but with a small network, few pictures, and no devices."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from bireme.clusters.kind import KindCluster
from bireme.core.paths import Paths
from bireme.testing.pytest_plugin import ReleaseFactory
from tests.kind.shell import NODE_TYPE, Shell, until
from tests.kind.training import ANYWHERE, KIND, Training, outcome

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("torch_images")]

DATA = "ILSVRC/Data/CLS-LOC"
SMALL = ["--arch=resnet18", "--image-size=64", "--batch-size=2", "--accumulate=2", "--workers=1"]
SMALL += ["--epochs=6", "--warm-up=1", "--checkpoint-every=4", "--log-every=1", "--step-seconds=1"]
PHOTOS = Path(__file__).parents[1] / "images" / "photos.py"


def make_photos(folder: Path) -> None:
    mounts = ["--volume", f"{folder}:/photos", "--volume", f"{PHOTOS}:/photos.py:ro"]
    command = ["docker", "run", "--rm", "--user", "0", *mounts, "bireme/torch:0.1.0", "python3", "/photos.py"]
    subprocess.run([*command, f"/photos/{DATA}"], check=True)


def test_an_image_classifier_trains_on_three_workers_and_outlives_a_killed_process(
    release: ReleaseFactory, cluster: KindCluster, shell: Shell, test_namespace: str, bireme_paths: Paths
) -> None:
    cluster.add_claim("fsx-pvc", test_namespace)
    make_photos(cluster.claim_folder("fsx-pvc", test_namespace))
    workload = yaml.safe_load((bireme_paths.values / "workloads/imagenet-efa.yaml").read_text())
    # With all three workers or none, the number of steps is known. Of two equal options the last one counts.
    small = {**ANYWHERE, "efa": 0, "elastic": {"minWorkers": 3}, "args": [*workload["args"], *SMALL]}
    options = {"instance": NODE_TYPE, "workload": "imagenet-efa", "files": [KIND], "values": small}
    job = release("torch-elastic", timeout=180, **options)
    with Training(job, shell, options, "imagenet.py").followed() as training:
        training.until_trained(5, world_size=3)
        training.kill(1, agent=False)
        training.until_trained(5, world_size=3)
        until(lambda: outcome(job) is not None, 240, "the job to finish")
        assert outcome(job) == "Complete"
        # 48 pictures, 3 processes, 2 batches of 2 per step: four steps in each of six epochs.
        assert {event["step"] for event in training.of("done")} == {24}
        assert {event["epoch"] for event in training.of("validate")} == set(range(1, 7))
        resumed = {event["step"] for event in training.of("resume")}
        assert resumed
        assert all(step % 4 == 0 for step in resumed), "the last checkpoint, at the end of an epoch"
