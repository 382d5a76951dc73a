"""The container engine, through its command line."""

from __future__ import annotations

import shutil
import subprocess
from functools import cached_property

from bireme.core.errors import BiremeError


class Engine:
    """The Docker that ``docker`` on PATH reaches. This starts no engine; hack/engine/start does."""

    def __call__(self, *arguments: str) -> str:
        """The output of ``docker ARGUMENTS``. Raises BiremeError with its message when it fails."""
        done = self._run(arguments)
        if done.returncode:
            _, _, said = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")
            raise BiremeError(f"docker {arguments[0]} failed: {said}")
        return done.stdout.strip()

    def succeeds(self, *arguments: str) -> bool:
        """Whether ``docker ARGUMENTS`` exits with 0."""
        return self._run(arguments).returncode == 0

    @property
    def answers(self) -> bool:
        """Whether there is an engine, and it runs."""
        return shutil.which("docker") is not None and bool(self.cgroups)

    def check(self) -> None:
        """Raise BiremeError when no engine answers."""
        if not self.cgroups:
            raise BiremeError(
                "no container engine answers: start Docker, or on Debian let root run hack/engine/start"
            )

    @cached_property
    def cgroups(self) -> str:
        """The version of cgroups of its host, empty when no engine answers."""
        done = self._run(("info", "--format", "{{.CgroupVersion}}"))
        return "" if done.returncode else done.stdout.strip()

    def image_id(self, image: str) -> str | None:
        """The identity of a local image, or None when there is none of this name."""
        done = self._run(("image", "inspect", "--format", "{{.Id}}", image))
        return None if done.returncode else done.stdout.strip()

    @staticmethod
    def _run(arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                ["docker", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            raise BiremeError(
                "there is no docker on PATH: install Docker, or on Debian let root run hack/engine/start"
            ) from None
