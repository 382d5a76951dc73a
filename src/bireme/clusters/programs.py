"""Programs that work for a cluster as plain processes of this machine."""

from __future__ import annotations

import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bireme.clusters.base import Cluster
from bireme.clusters.waiting import no_interrupts, until
from bireme.core.errors import BiremeError

_STOP_SECONDS = 20
_LINES_KEPT = 20


@dataclass
class Program:
    """A program that runs; ``log`` has its output. Who starts it again replaces ``process``."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait_ready(self, url: str, seconds: float) -> None:
        """Return when ``url`` answers. Raises BiremeError, also when the program has ended before."""
        what = f"{self.log.parent.name} to be ready"
        until(lambda: self.has_ended() or _answers(url), seconds, what)
        self.check_alive()

    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self.process.poll() is not None

    def check_alive(self) -> None:
        """Raises BiremeError with its last lines of output when the program has ended."""
        if not self.has_ended():
            return
        lines = last_lines(self.log, _LINES_KEPT)
        what = (
            f"the program of {self.log.parent.name} ended with exit code {self.process.returncode}; "
            "its last lines are:"
        )
        raise BiremeError("\n  ".join([what, *lines]))

    def stop(self) -> None:
        """End it by SIGTERM, or by SIGKILL when that does not help."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def last_lines(log: Path, most: int) -> list[str]:
    """The last lines of a log before any stack trace of Go, at most so many. None without a log."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    text, _, _ = text.partition("\ngoroutine ")
    return [line for line in text.splitlines() if line.strip()][-most:]


def new_folder(cluster: Cluster, name: str) -> Path:
    """An empty folder for the files of the program ``name``, removed with the cluster."""
    folder = cluster.kubeconfig.parent / "controllers" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def start(folder: Path, binary: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> Program:
    """Run ``binary`` with nothing but this environment; its output goes to ``folder``/log."""
    # Started through a link in this folder, so that its command line names the cluster and `down` ends it.
    link = folder / binary.name
    link.symlink_to(binary)
    log = folder / "log"
    return Program(spawn([str(link), *arguments], {**environment, "HOME": str(folder)}, log), log)


def spawn(
    command: Sequence[str], environment: Mapping[str, str], log: Path, folder: str | None = None
) -> subprocess.Popen[bytes]:
    """A process in a session of its own, without input, whose output is added to ``log``."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def run_alone(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    seconds: float,
    stop: Callable[[subprocess.Popen[bytes]], None] = subprocess.Popen.kill,
) -> int | None:
    """Run a command whose output goes to ``log``; its exit code, or None after so many seconds.

    It is in a session of its own: only this process gets Ctrl-C, and then calls ``stop``.
    """
    log.write_bytes(b"")
    with spawn(command, environment, log) as process:
        try:
            return process.wait(seconds)
        except BaseException as error:
            with no_interrupts():
                stop(process)
            if isinstance(error, subprocess.TimeoutExpired):
                return None
            raise


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
