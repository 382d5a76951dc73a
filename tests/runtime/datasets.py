"""The steps of a dataset as pods run them, and what they copy, for all tests of datasets."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from bireme_runtime.dataset import __main__ as training
from bireme_runtime.dataset import manifest
from bireme_runtime.dataset.claim import __main__ as claim
from tests.runtime.etcd_servers import RUNTIME
from tests.runtime.s3_servers import S3Server
from tests.support.waiting import until

Content = dict[str, bytes]
PATIENCE = 120.0


def content(files: int, size: int = 1000, seed: int = 0) -> Content:
    """Small files in a few folders, some with names that need quoting."""
    chance = random.Random(seed)
    return {
        f"train/n{number % 7}/a b+{number}.bin": chance.randbytes(size + number) for number in range(files)
    }


def upload(s3: S3Server, bucket: str, files: Mapping[str, bytes], prefix: str = "imagenet/") -> None:
    for path, data in files.items():
        s3.put(f"{bucket}/{prefix}{path}".replace(" ", "%20").replace("+", "%2B"), data)


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files into a folder, which is made if it is missing."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def read(folder: Path) -> Content:
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != manifest.MANIFEST)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def settings(target: Path, *sources: Mapping[str, Any], **more: Any) -> dict[str, str]:
    values = {"target": str(target), "sources": list(sources), "parallel": 4, "partMiB": 1, **more}
    return {"BIREME_DATASET": json.dumps(values)}


def run(step: str, env: Mapping[str, str], *args: str, trains: bool = False) -> tuple[int, str]:
    """Run one step, as in a pod, or in one that trains; returns its exit code and its log.

    It runs in this process, which has the variables of the pod meanwhile: a new Python costs more than it.
    """
    main = training.main if trains or step == "verify" else claim.main
    said, log = io.StringIO(), io.StringIO()
    pod = mock.patch.dict(os.environ, env, clear=True)
    with pod, contextlib.redirect_stdout(said), contextlib.redirect_stderr(log):
        code = main([step, *args])
    assert not said.getvalue(), said.getvalue()
    return code, log.getvalue()


def refused(step: str, env: Mapping[str, str], *args: str, code: int = 78) -> str:
    """The log of a step that ends with this exit code: 78, after which no other attempt helps."""
    ended_with, log = run(step, env, *args)
    assert ended_with == code, log
    return log


def stage_and_publish(env: Mapping[str, str]) -> str:
    """Run both steps, which must succeed; returns their log."""
    log = ""
    for step in ("stage", "publish"):
        code, output = run(step, env)
        log += output
        assert code == 0, log
    return log


def begin(step: str, env: Mapping[str, str], *args: str, **how: Any) -> subprocess.Popen[str]:
    """Start one step in a process of its own."""
    module = "bireme_runtime.dataset" + ("" if step == "verify" else ".claim")
    return begin_code(["-m", module], step, env, *args, **how)


def begin_code(
    python: list[str], step: str, env: Mapping[str, str], *args: str, **how: Any
) -> subprocess.Popen[str]:
    """Start one step with these arguments of Python, such as a script that makes calls fail."""
    command = [sys.executable, *python, step, *args]
    variables = {"PYTHONPATH": str(RUNTIME), **env}
    return subprocess.Popen(
        command, env=variables, stderr=subprocess.PIPE, text=True, start_new_session=True, **how
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code and the log of a step that was begun."""
    _, log = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in log, log
    return process.returncode, log


def kill_when(
    copied: Callable[[str], bool], target: Path, process: subprocess.Popen[str], by: int = signal.SIGKILL
) -> int:
    """Kill a step, and what it has started, as soon as its journal is like this; returns the exit code."""
    journal = target.parent / f".{target.name}.staging/.bireme/journal-0.jsonl"

    def is_time() -> bool:
        assert process.poll() is None, "it was done before it could be killed"
        return journal.exists() and copied(journal.read_text())

    until(is_time, PATIENCE, every=0.002)
    os.killpg(process.pid, by)
    code = process.wait(timeout=PATIENCE)
    assert not target.exists()
    return code


@contextlib.contextmanager
def web_server(
    handler: Callable[..., http.server.BaseHTTPRequestHandler],
    adapt: Callable[[http.server.HTTPServer], None] = lambda _: None,
) -> Iterator[int]:
    """A web server on a port of loopback."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    adapt(server)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
