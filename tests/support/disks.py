"""A file system of its own for a test, and what a loss of power would leave of it. Needs root."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


class Disk:
    """An ext4 file system in the file ``image``, mounted at ``folder``."""

    def __init__(self, image: Path, folder: Path) -> None:
        self.image, self.folder = image, folder

    @contextlib.contextmanager
    def after_a_loss_of_power(self) -> Iterator[Path]:
        """The folder with what is on the disk now: what a loss of power would leave."""
        copy, folder = self.image.with_name("after"), self.folder.with_name("after-power-loss")
        shutil.copyfile(self.image, copy)
        with mounted(copy, folder):
            yield folder


@contextlib.contextmanager
def mounted(image: Path, folder: Path, *options: str) -> Iterator[None]:
    """Mount the file system in an image at a folder while the block runs."""
    folder.mkdir()
    subprocess.run(["mount", "-o", ",".join(["loop", *options]), image, folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextlib.contextmanager
def disk(parent: Path) -> Iterator[Disk]:
    """A disk of 16 MiB that writes when it is asked to, and otherwise after ten minutes."""
    made = Disk(parent / "image", parent / "disk")
    for command in (["truncate", "--size=16M"], ["mkfs.ext4", "-q"]):
        subprocess.run([*command, str(made.image)], check=True)
    with mounted(made.image, made.folder, "commit=600"):
        made.folder.chmod(0o777)
        yield made
