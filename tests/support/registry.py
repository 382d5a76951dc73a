"""A container registry of the tests' own: distribution's, built from its Go module."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bireme.tools import Toolbox
from tests.runtime.etcd_servers import free_port
from tests.support import waiting

CONFIG = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "{host}:{port}"}}
log: {{level: warn}}
"""


@contextmanager
def serving(toolbox: Toolbox, folder: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """An empty registry that keeps its images in ``folder``; its name on this machine, ``localhost:PORT``.

    Docker, containerd and crane take a registry of that name without TLS. ``host``: where it listens.
    """
    folder.mkdir(parents=True)
    port = free_port()
    config = folder / "config.yml"
    config.write_text(CONFIG.format(folder=folder / "images", host=host, port=port))
    with (folder / "log").open("wb") as log:
        command = [str(toolbox.path("registry")), "serve", str(config)]
        without_traces = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=without_traces)
    try:
        said = (folder / "log").read_text
        waiting.until(lambda: _answers(port), what=lambda: f"the registry to answer; it says: {said()}")
        yield f"localhost:{port}"
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
