"""A script of both of Paddle's roles, with a stand-in for Paddle, for tests/runtime/test_paddle_saves.py.

The parameters are the list of what was trained, a file for each attempt, as pservers lose theirs at its end.

    paddle_script.py FOLDER SHARDS PASSES SECONDS_PER_STEP
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
import types
from pathlib import Path
from typing import Any

from bireme_runtime.paddle.job import Job
from bireme_runtime.paddle.launch import adapt_paddle

FOLDER, SHARDS, PASSES, SECONDS = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
ATTEMPT = os.environ["BIREME_PADDLE_ATTEMPT"]
LIVE = FOLDER / f"parameters-{ATTEMPT}"
JOBS: list[Job] = []


class TheOnePSRuntime:
    """What bireme_runtime asks of Paddle's class of this name."""

    context = scopes = _send_ctx = None

    def __init__(self) -> None:
        self._worker = self

    def _init_all_params(self) -> None:
        LIVE.write_text("")

    def _pull_all_dense(self, *_: Any) -> None:
        wait_while(f"hold-pull-{os.environ['PADDLE_TRAINER_ID']}")

    def load_model(self, folder: str, _: int) -> None:
        shutil.copy(Path(folder) / "model", LIVE)

    def client_flush(self) -> None:
        """Everything is written at once."""


def serve() -> None:
    listener = socket.create_server((os.environ["POD_IP"], int(os.environ["PADDLE_PORT"])))
    while True:
        listener.accept()


def ask_servers() -> None:
    for address in os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(","):
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=5).close()


def append(file: Path, line: str) -> None:
    with file.open("a") as out:
        out.write(line + "\n")


def wait_while(name: str) -> None:
    """Be held up while there is a file of that name; `name-here` says so, and `name-asked` after SIGTERM.

    A number in the file: only as soon as so many shards are trained.
    """
    while (least := number_in(FOLDER / name)) is not None and LIVE.read_text().count("\n") >= least:
        is_asked = any(job._shards and job._shards.is_asked_to_go for job in JOBS)
        (FOLDER / f"{name}-{'asked' if is_asked else 'here'}").touch()
        time.sleep(0.02)


def number_in(file: Path) -> int | None:
    """The number in a file that a test may delete at any moment; None when it is gone."""
    try:
        return int(file.read_text() or 0)
    except FileNotFoundError:
        return None


def save(folder: str) -> None:
    ask_servers()
    append(FOLDER / "saves", Path(folder).name)
    model = LIVE.read_text()
    with open(f"{folder}/model", "w") as out:
        out.write(model[: len(model) // 2])
        out.flush()
        wait_while("hold-save")
        out.write(model[len(model) // 2 :])
    if (FOLDER / "is-full").exists():
        Path("/dev/full").write_text(model)
    time.sleep(SECONDS)
    ask_servers()


def train() -> None:
    module = types.SimpleNamespace(TheOnePSRuntime=TheOnePSRuntime)
    adapt_paddle(module)
    runtime: Any = TheOnePSRuntime()
    sys.modules["paddle.distributed.fleet"] = types.SimpleNamespace(  # type: ignore[assignment]
        fleet=types.SimpleNamespace(_runtime_handle=runtime)
    )
    sys.modules["paddle.distributed.ps.utils.public"] = types.SimpleNamespace(  # type: ignore[assignment]
        get_the_one_recv_context=lambda *_, **__: None
    )
    job = Job()
    JOBS.append(job)
    ask_servers()
    if job.index == 0:
        runtime._init_all_params()
    runtime._pull_all_dense()
    append(FOLDER / f"starts-{job.index}", ATTEMPT)
    wait_while(f"hold-start-{job.index}")
    for shard in job.shards([f"shard-{number}" for number in range(SHARDS)], PASSES, save):
        wait_while(f"hold-shard-{job.index}")
        for step in range(2):
            time.sleep(SECONDS)
            if step:
                append(LIVE, f"{shard.pass_number} {shard.name}")
            job.step(save)
    append(FOLDER / f"ends-{job.index}", ATTEMPT)


if __name__ == "__main__":
    if os.environ["TRAINING_ROLE"] == "PSERVER":
        serve()
    train()
