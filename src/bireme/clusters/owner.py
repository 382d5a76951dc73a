"""Clusters that end with the process that made them, however it ends.

`python -m bireme.clusters.owner` removes those whose owner is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator

from rich.console import Console

from bireme.clusters.registry import provider
from bireme.core.paths import Paths
from bireme.tools import Toolbox


@contextlib.contextmanager
def owned(paths: Paths, kind: str, name: str) -> Iterator[None]:
    """In this block the cluster ``name`` of the provider ``kind`` belongs to this process.

    When it is killed, another process removes the cluster. If that one is killed too, the next run does.
    """
    folder = paths.state / "owners"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}").open("w") as mark:
        mark.write(kind)
        mark.flush()
        # The lock ends with the process. Nobody sees the file before it is locked.
        fcntl.flock(mark, fcntl.LOCK_EX)
        os.replace(mark.name, folder / name)
        # The shell reads until this process has closed its end, and only then costs the memory of Python.
        guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read _; exec "$@"', "sh", sys.executable, "-m", __name__],
            cwd=paths.root, env={**os.environ, "BIREME_STATE": str(paths.state)}, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert guard.stdin is not None
        with guard.stdin:
            yield
            (folder / name).unlink()
            guard.kill()
            guard.wait()


def remove_orphans(paths: Paths, toolbox: Toolbox) -> None:
    """Remove the clusters whose owner has ended without that."""
    for file in sorted((paths.state / "owners").glob("[!.]*")):
        with contextlib.suppress(FileNotFoundError, BlockingIOError), file.open() as mark:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            provider(mark.read(), paths, toolbox).down(file.name)
            file.unlink()


if __name__ == "__main__":
    found = Paths.discover()
    remove_orphans(found, Toolbox(found, Console(stderr=True)))
