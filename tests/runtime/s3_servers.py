"""A real S3 API: moto's server, in a virtual environment of its own."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from bireme.core.paths import Paths
from tests.runtime.etcd_servers import free_port

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "hack/moto/requirements.lock"
STARTS_SECONDS = 120
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


def environment_of(name: str, requirements: Path) -> Path:
    """The folder of a virtual environment with the packages of a lock file; made if it is missing."""
    cache = Paths.discover(start=ROOT).cache / name
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            install = [str(folder / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*install, "--require-hashes", "-r", requirements], check=True)
            (folder / "ready").touch()
    return folder


class S3Server:
    """moto on a port of loopback. It needs no authentication, so plain HTTP makes buckets and objects."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def env(self) -> Mapping[str, str]:
        """The variables of a pod that uses this server."""
        return {**KEYS, "AWS_ENDPOINT_URL_S3": self.url, "AWS_ENDPOINT_URL_STS": self.url}

    def put(self, path: str, content: bytes = b"") -> None:
        """Make a bucket (``bucket``) or an object (``bucket/key``)."""
        headers = {
            "Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request",
            # Without a Content-Type, urllib sends that of a form.
            "Content-Type": "application/octet-stream",
        }
        request = urllib.request.Request(f"{self.url}/{path}", content, headers, method="PUT")
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()


@contextlib.contextmanager
def s3_server(log: Path, **variables: str) -> Iterator[S3Server]:
    """An empty server, stopped at the end; ``variables`` are further settings of moto in its environment."""
    program = environment_of("moto", LOCK) / "bin/moto_server"
    port = free_port()
    # Few keys on each page, so that lists have several pages.
    env = {**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": "100", **variables}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, "-H", "127.0.0.1", "-p", str(port)], env=env, stdout=output, stderr=output
        )
    try:
        _wait_for(port, process, log)
        yield S3Server(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTS_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError(f"moto does not answer: {log.read_text()}")
