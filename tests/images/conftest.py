"""Fixtures of the training scripts' tests: the image's root file system, and jobs that run in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rootfs import Rootfs, ensure_rootfs, load_rootfs

from tests.conftest import ShowProgress
from tests.images.chroot_jobs import (
    MPI_IMAGE,
    PATHS,
    SCRIPTS,
    TENSORFLOW_IMAGE,
    Job,
    Start,
    command_in,
    mpirun_in,
    torchrun,
)


@pytest.fixture(scope="session")
def image(request: pytest.FixtureRequest) -> Rootfs:
    """The local torch image, or the one with the torch that a test names."""
    return load_rootfs(getattr(request, "param", "torch-2.6"))


@pytest.fixture(scope="session")
def start_in(image: Rootfs, show_progress: ShowProgress) -> Iterator[Start]:
    """Start a script on a folder: ``start_in(folder, "digits.py", "--steps=9", processes=2)``.

    ``processes=0`` runs it without torchrun; a script that is not a file of images/torch is Python source.
    """
    with show_progress() as console:
        root = ensure_rootfs(image, PATHS.cache, console)
    jobs: list[Job] = []

    def start(folder: Path, script: str, *arguments: str, processes: int = 0) -> Job:
        program = [f"{SCRIPTS}/{script}"] if script.endswith(".py") else ["-c", script]
        launcher = torchrun(processes) if processes else ["python3"]
        command = command_in(image, root, folder, [*launcher, *program, *arguments])
        jobs.append(Job(command, folder / f"log-{len(jobs)}"))
        return jobs[-1]

    yield start
    for job in jobs:
        job.clean_up()


@pytest.fixture(scope="session")
def mpirun(show_progress: ShowProgress) -> Iterator[Start]:
    """Start a script of images/mpi, or Python source: ``mpirun(folder, "maskrcnn.py", …, processes=2)``.

    ``processes=0`` runs it without mpirun.
    """
    yield from _mpirun(MPI_IMAGE, "mpi", show_progress)


@pytest.fixture(scope="session")
def tensorflow(show_progress: ShowProgress) -> Iterator[Start]:
    """As ``mpirun``, in the image with TensorFlow."""
    yield from _mpirun(TENSORFLOW_IMAGE, "tensorflow", show_progress)


def _mpirun(image: Rootfs, scripts: str, show_progress: ShowProgress) -> Iterator[Start]:
    with show_progress() as console:
        root = ensure_rootfs(image, PATHS.cache, console)
    jobs: list[Job] = []

    def start(folder: Path, script: str, *arguments: str, processes: int = 0) -> Job:
        program = [f"{SCRIPTS}/{scripts}/{script}"] if script.endswith(".py") else ["-c", script]
        log = folder / f"mpi-log-{len(jobs)}"
        jobs.append(Job(mpirun_in(image, root, folder, processes, [*program, *arguments]), log))
        return jobs[-1]

    yield start
    for job in jobs:
        job.clean_up()
