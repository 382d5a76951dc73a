"""Workers of a job as pods run them, with a small replacement for torchrun."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.runtime.etcd_servers import RUNTIME
from tests.support.waiting import until

TINY = Path(__file__).with_name("tiny_torchrun.py")
MAIN = f"import sys; from bireme_runtime.elastic.agent import supervisor; sys.exit(supervisor.main(sys.argv[1:], launcher=[sys.executable, {str(TINY)!r}]))"  # noqa: E501

# For scripts of a worker with BIREME_METRICS_PORT: what is printed before its supervisor knows of the start
# is forgotten.
KNOWN = """
import json, urllib.request
def supervisors_round():
    address = f"http://127.0.0.1:{os.environ['BIREME_METRICS_PORT']}/v1/status"
    with urllib.request.urlopen(address, timeout=60) as answer:
        return json.load(answer)["round"]
while "BIREME_METRICS_PORT" in os.environ and supervisors_round() != int(os.environ["BIREME_ROUND"]):
    time.sleep(0.05)
"""


class Worker:
    """One supervised worker, as a pod runs it."""

    def __init__(self, folder: Path, script: str, env: dict[str, str], command: list[str]) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text("import os, pathlib, signal, sys, time\n" + script)
        self.errors = folder / "stderr"
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(RUNTIME), "PYTHONUNBUFFERED": "1",
                   "TMPDIR": str(folder), **env}  # fmt: skip
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen([*command, str(folder / "train.py"), "one", "two"],
                                            env=environ, cwd=folder, stderr=errors)  # fmt: skip

    def file(self, name: str, seconds: float = 120) -> str:
        """What a training process wrote; waits for it."""
        path = self.folder / name

        def is_written() -> bool:
            assert self.process.poll() is None or path.exists(), f"the agent has ended:\n{self.words}"
            return path.exists() and bool(path.read_text())

        until(is_written, seconds, lambda: f"{name}; the log:\n{self.words}", every=0.01)
        return path.read_text()

    def wait_for(self, words: str, seconds: float = 120) -> None:
        """Wait until the worker has said these words."""
        until(lambda: words in self.words, seconds, lambda: f"{words}; the log:\n{self.words}", every=0.01)

    @property
    def words(self) -> str:
        return self.errors.read_text()

    def end(self, seconds: float = 120) -> int:
        return self.process.wait(seconds)


Start = Callable[..., Worker]
