"""The job as a Paddle training script sees it (docs/paddle.md).

job = Job()
for shard in job.shards(names, passes=3):
    for batch in read(shard.name):
        train(batch)
        job.step(save)
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bireme_runtime.dispatcher.client import Dispatcher
from bireme_runtime.paddle.run import client_of_script, last_save, write_whole
from bireme_runtime.process import environment

Saver = Callable[[str], object]


@dataclass(frozen=True)
class Shard:
    """A shard to train: its name and the number of its pass, from 0."""

    name: str
    pass_number: int


class Job:
    """The job of this trainer. The trainer with ``index`` 0 saves."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self.index = environment.integer(env, "PADDLE_TRAINER_ID")
        self.is_sync = env.get("BIREME_PADDLE_MODE") == "sync"
        self.output = Path(environment.required(env, "BIREME_PADDLE_OUTPUT"))
        self._is_dynamic = bool(env.get("BIREME_DISPATCHER"))
        self._attempt = environment.integer(env, "BIREME_PADDLE_ATTEMPT")
        self._first_pass = environment.integer(env, "BIREME_PADDLE_FIRST_PASS")
        self._base_pass = environment.integer(env, "BIREME_PADDLE_BASE_PASS")
        self._save_steps = environment.integer(env, "BIREME_SAVE_STEPS", 0)
        self._run = client_of_script(env)
        self._pass, self._step, self._steps = self._first_pass, 0, 0

    def shards(self, names: Sequence[str], passes: int, save: Saver | None = None) -> Iterator[Shard]:
        """The shards that this trainer trains, until all ``passes`` over all ``names`` are done.

        The first trainer calls ``save`` at the end of each pass.
        """
        found = self._dispatched(names, passes) if self._is_dynamic else self._assigned(names, passes)
        for shard in found:
            if shard.pass_number > self._pass:
                self._end_pass(shard.pass_number, save)
            yield shard
        if self._pass < passes:
            self._end_pass(passes, save)

    def step(self, save: Saver | None = None) -> None:
        """End a step: wait for the other trainers (mode sync), pull their updates, save if that is due."""
        self._step += 1
        self._steps += 1
        if self.is_sync:
            self._servers.flush()
            self._wait(self._pass, self._step)
        self._servers.pull()
        if save and self.index == 0 and self._save_steps and self._steps % self._save_steps == 0:
            self._save(save, f"steps-{self._attempt}-{self._steps}", self._pass)

    @cached_property
    def _servers(self) -> _ServerConnection:
        return _ServerConnection()

    def _assigned(self, names: Sequence[str], passes: int) -> Iterator[Shard]:
        first = max(self._first_pass, self._run.progress(self.index)[0])
        for number in range(first, passes):
            size = self._run.size(number)
            for name in names[self.index :: size] if self.index < size else ():
                yield Shard(name, number)
            last = number + 1 == passes
            if self.is_sync or (last and self.index == 0):
                self._wait(number + 1, 0)
            else:
                self._run.reach(self._attempt, self.index, number + 1, 0)

    def _dispatched(self, names: Sequence[str], passes: int) -> Iterator[Shard]:
        with Dispatcher() as dispatcher:
            signal.signal(signal.SIGTERM, lambda *_: dispatcher.stop())
            dispatcher.add(names, passes=max(passes - self._base_pass, 1))
            for shard in dispatcher.shards():
                yield Shard(shard.name, self._base_pass + shard.pass_number)

    def _wait(self, number: int, step: int) -> None:
        while self._run.reach(self._attempt, self.index, number, step, seconds=5):
            # The attempt may have ended; then the supervisor is about to end this process.
            time.sleep(0.01)

    def _end_pass(self, following: int, save: Saver | None) -> None:
        self._servers.pull()
        ended = following - 1
        self._pass, self._step = following, 0
        if save and self.index == 0:
            self._save(save, f"pass-{ended:05d}", following)

    def _save(self, save: Saver, name: str, passes: int) -> None:
        before = last_save(self.output)
        folder = self.output / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        save(str(folder))
        # As Paddle's own trainers do, keep the script and its name beside the parameters.
        script = Path(sys.argv[0])
        with contextlib.suppress(OSError):
            shutil.copy(script, folder)
        write_whole(folder / "path.txt", f"{script.name}\n")
        write_whole(folder / "done", json.dumps({"passes": passes, "steps": self._steps}))
        write_whole(self.output / "last-save", f"{name}\n")
        if before and Path(before.folder).name.startswith("steps-"):
            shutil.rmtree(before.folder, ignore_errors=True)


class _ServerConnection:
    """Paddle's connection to the pservers. Paddle 3.0 itself never pulls dense parameters during training."""

    def __init__(self) -> None:
        self._runtime: Any = importlib.import_module("paddle.distributed.fleet").fleet._runtime_handle
        public = importlib.import_module("paddle.distributed.ps.utils.public")
        self._dense = public.get_the_one_recv_context(self._runtime.context, split_dense_table=False)

    def flush(self) -> None:
        """Wait until the servers have received this trainer's updates."""
        self._runtime._worker.client_flush()

    def pull(self) -> None:
        """Pull the current dense parameters."""
        self._runtime._pull_all_dense(self._runtime.scopes, self._runtime._send_ctx, self._dense)
