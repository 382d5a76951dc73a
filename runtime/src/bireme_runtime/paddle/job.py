"""The job as a Paddle training script sees it (docs/paddle.md).

job = Job()
for shard in job.shards(names, passes=3):
    for batch in read(shard.name):
        train(batch)
        job.step(save)
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import math
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bireme_runtime.dispatcher import client as dispatching
from bireme_runtime.dispatcher.messages import numbers_of, spans
from bireme_runtime.paddle.run import Save, client_of_script, last_save
from bireme_runtime.process import environment
from bireme_runtime.process.disk import to_disk, write_whole
from bireme_runtime.process.errors import BiremeError, as_shell

Saver = Callable[[str], object]


class SaveError(BiremeError):
    """A save failed; the one before is still the last."""


@dataclass(frozen=True)
class Shard:
    """A shard to train: its name and the number of its pass, from 0."""

    name: str
    pass_number: int


@dataclass(frozen=True)
class _Standing:
    """What is trained: so many passes, and these shards, by index, of the next one."""

    passes: int
    trained: frozenset[int] = frozenset()


class Job:
    """The job of this trainer. The trainer with ``index`` 0 saves."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self.index = environment.integer(env, "PADDLE_TRAINER_ID")
        self.is_sync = env.get("BIREME_PADDLE_MODE") == "sync"
        self.output = Path(environment.required(env, "BIREME_PADDLE_OUTPUT"))
        self._is_dynamic = bool(env.get("BIREME_DISPATCHER"))
        self._dataset = env.get("BIREME_DISPATCHER_DATASET") or "default"
        self._attempt = environment.integer(env, "BIREME_PADDLE_ATTEMPT")
        self._first_pass = environment.integer(env, "BIREME_PADDLE_FIRST_PASS")
        self._save_steps = environment.integer(env, "BIREME_SAVE_STEPS", 0)
        self._grace_seconds = environment.seconds(env, "BIREME_GRACE_SECONDS", 20)
        self._run = client_of_script(env)
        # Trainer 0 may have saved in this attempt, and have been started again.
        last = last_save(self.output) if self.index == 0 else None
        self._pass = max(self._first_pass, last.passes if last else 0)
        self._step, self._steps = 0, last.steps if last else 0
        self._saved_steps = self._steps
        self._saver: Saver | None = None
        self._shards: _DispatchedShards | None = None

    def shards(self, names: Sequence[str], passes: int, save: Saver | None = None) -> Iterator[Shard]:
        """The shards that this trainer trains, until all ``passes`` over all ``names`` are done.

        The first trainer calls ``save`` at the end of each pass. With dispatched shards, SIGTERM ends the
        script: after the shard in hand, or, if that takes half of the grace period, at its next ``step``.
        """
        self._saver = save
        if not self._is_dynamic:
            yield from self._assigned(names, passes, save)
        elif passes > self._first_pass:
            dataset = f"{self._dataset}-{self._attempt}"
            save_of_attempt = self._run.begun_from(self._attempt)
            with _DispatchedShards(dataset, names, self._first_pass, save_of_attempt) as self._shards:
                signal.signal(signal.SIGTERM, self._asked_to_go)
                yield from self._dispatched(self._shards, passes, save)

    def part(self, names: Sequence[str], pass_number: int) -> Sequence[str]:
        """What this trainer has of ``names``, which are divided among the trainers of a pass."""
        size = self._run.size(pass_number)
        return names[self.index :: size] if self.index < size else ()

    def step(self, save: Saver | None = None) -> None:
        """End a step: wait for the other trainers (mode sync), pull their updates, save if that is due."""
        self._step += 1
        self._steps += 1
        self._saver = save or self._saver
        if self.is_sync:
            self._servers.flush()
            self._wait(self._pass, self._step)
        self._servers.pull()
        if save and self.index == 0 and self._save_steps and self._steps % self._save_steps == 0:
            self._save(save, self._name_of_steps(), self._standing(self._pass))
        if self._shards and time.monotonic() > self._shards.leave_by:
            self._shards.release()
            self._leave(self._shards)

    @cached_property
    def _servers(self) -> _ServerConnection:
        return _ServerConnection()

    def _assigned(self, names: Sequence[str], passes: int, save: Saver | None) -> Iterator[Shard]:
        first = max(self._first_pass, self._run.progress(self.index)[0])
        for number in range(first, passes):
            if number > self._pass:
                self._end_pass(number, save)
            for name in self.part(names, number):
                yield Shard(name, number)
            if self.is_sync:
                self._wait(number + 1, 0)
            else:
                self._run.reach(self._attempt, self.index, number + 1, 0)
        if self._pass < passes:
            if self.index == 0:
                self._wait(passes, 0)
            self._end_pass(passes, save)

    def _dispatched(self, shards: _DispatchedShards, passes: int, save: Saver | None) -> Iterator[Shard]:
        for shard in shards.take(passes):
            if shard.pass_number > self._pass:
                self._end_pass(shard.pass_number, save)
            if shards.is_asked_to_go:
                shards.release()
                break
            yield shard
        if shards.is_asked_to_go:
            self._leave(shards)
        if self._pass < passes:
            self._end_pass(passes, save)

    def _asked_to_go(self, *_: object) -> None:
        if self._shards:
            self._shards.stop(self._grace_seconds / 2)

    def _leave(self, shards: _DispatchedShards) -> None:
        """End the script, with everything saved that is trained."""
        self._servers.flush()
        if self.index == 0 and self._saver:
            standing = shards.standing()
            if not self._is_saved(standing):
                self._servers.pull()
                ends_pass = standing.passes > self._pass
                name = f"pass-{standing.passes - 1:05d}" if ends_pass else self._name_of_steps()
                self._save(self._saver, name, standing)
        raise SystemExit(as_shell(-signal.SIGTERM))

    def _is_saved(self, standing: _Standing) -> bool:
        last = last_save(self.output)
        saved = _Standing(last.passes, frozenset(numbers_of(last.trained))) if last else _Standing(0)
        return saved == standing and self._steps == self._saved_steps

    def _wait(self, number: int, step: int) -> None:
        while self._run.reach(self._attempt, self.index, number, step, seconds=5):
            # The attempt may have ended; then the supervisor is about to end this process.
            time.sleep(0.01)

    def _end_pass(self, following: int, save: Saver | None) -> None:
        self._servers.pull()
        if save and self.index == 0:
            self._save(save, f"pass-{following - 1:05d}", self._standing(following))
        self._pass, self._step = following, 0

    def _standing(self, passes: int) -> _Standing:
        return self._shards.standing() if self._shards else _Standing(passes)

    def _name_of_steps(self) -> str:
        name = f"steps-{self._attempt}-{self._steps}"
        last = last_save(self.output)
        if last and Path(last.folder).name == name:
            # Others have trained since. The last save stays until this one is complete.
            self._steps += 1
            name = f"steps-{self._attempt}-{self._steps}"
        return name

    def _save(self, save: Saver, name: str, standing: _Standing) -> None:
        """Save completely, on the disk, and then point to it."""
        folder = self.output / name
        for left in self.output.glob(".saving-*"):
            shutil.rmtree(left, ignore_errors=True)
        partial = self.output / f".saving-{name}-{uuid.uuid4().hex[:8]}"
        older = list(self.output.glob("steps-*"))
        about = {
            "passes": standing.passes,
            "steps": self._steps,
            "trained": spans(standing.trained),
            "shards": self._shards.digest if self._shards else "",
        }
        try:
            partial.mkdir(parents=True)
            save(str(partial))
            self._complete(partial, about)
            # A folder of this name was never pointed to.
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
            to_disk(self.output)
            problem = self._run.point_to(self._attempt, name)
        except Exception as error:
            problem = str(error) or type(error).__name__
            shutil.rmtree(partial, ignore_errors=True)
            if self._shards:
                self._shards.release()
            raise SaveError(f"the save in {folder} failed: {problem}") from error
        if problem:
            raise SaveError(f"the save in {folder} does not count: {problem}")
        self._saved_steps = self._steps
        for each in older:
            if each != folder:
                shutil.rmtree(each, ignore_errors=True)

    def _complete(self, folder: Path, about: Mapping[str, object]) -> None:
        # As Paddle's own trainers do, keep the script and its name beside the parameters.
        script = Path(sys.argv[0])
        with contextlib.suppress(OSError):
            shutil.copy(script, folder)
        write_whole(folder / "path.txt", f"{script.name}\n")
        for each in [*folder.rglob("*"), folder]:
            to_disk(each)
        write_whole(folder / "done", json.dumps(about))


class _DispatchedShards:
    """The shards that the dispatcher gives this trainer in an attempt.

    An attempt has a dataset of its own, which begins where the attempt's save ends: parameters and shards go
    back together.
    """

    def __init__(self, dataset: str, names: Sequence[str], first_pass: int, save: Save | None) -> None:
        self.digest = hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()[:32]
        self._dispatcher = dispatching.Dispatcher(dataset=dataset)
        self._names, self._first_pass = names, first_pass
        self._trained_before = numbers_of(save.trained) if save and save.shards == self.digest else set()
        self._hand: dispatching.Shard | None = None
        self.leave_by = math.inf

    def __enter__(self) -> _DispatchedShards:
        return self

    def __exit__(self, *_: object) -> None:
        self._dispatcher.close()

    @property
    def is_asked_to_go(self) -> bool:
        return self.leave_by < math.inf

    def stop(self, seconds: float) -> None:
        """End after the shard in hand, which has so many seconds. May be called by a signal's handler."""
        self.leave_by = time.monotonic() + seconds
        self._dispatcher.stop()

    def take(self, passes: int) -> Iterator[Shard]:
        """The shards of this trainer, up to so many passes from the job's first one."""
        self._dispatcher.add(self._names, passes=passes - self._first_pass)
        for shard in self._dispatcher.shards():
            if shard.pass_number == 0 and shard.index in self._trained_before:
                continue
            self._hand = shard
            yield Shard(shard.name, self._first_pass + shard.pass_number)

    def release(self) -> None:
        """Give the shard in hand back, if there is one: it is not to blame."""
        if self._hand is not None:
            with contextlib.suppress(dispatching.DispatcherError):
                self._hand.release()

    def standing(self) -> _Standing:
        """What all trainers have trained."""
        progress = self._dispatcher.progress()
        passes = self._first_pass + progress.pass_number
        if progress.is_over:
            return _Standing(passes + 1)
        before = self._trained_before if progress.pass_number == 0 else ()
        return _Standing(passes, progress.settled.union(before))


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
