"""What a training script needs in order to lose no step when workers join, leave and are killed.

A run is one process of an elastic torchrun job (or a single process without torchrun). Torchrun starts all
processes again whenever a worker joins or leaves. Each start resumes from the newest checkpoint in a folder
that all workers share, or from a newer snapshot in memory (recovery.snapshots). SIGTERM (torchrun before such
a restart, Kubernetes before it takes a pod away) makes all processes agree, at the end of the step they are
in, on a checkpoint of that step.

    run = elastic.Run(folder)
    state = run.restore()
    for step in ...:
        ...
        run.step_done(step, lambda: {"model": ..., "step": step}, due=step % 100 == 0)   # may not return
    run.finish(step, lambda: {...})

with all of it in a function that ``elastic.execute`` calls.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch
import torch._dynamo  # torch.optim would import it later: so it counts as import_seconds
import torch.distributed as dist

try:
    from bireme_runtime.elastic import fence, progress
except ImportError:  # outside the chart's pods there is no fence, and nobody who resizes the job
    fence = progress = None
try:
    from bireme_runtime.elastic import snapshots
except ImportError:  # older charts mount a runtime without them
    snapshots = None

State = dict[str, Any]

_COLLECTIVE_TIMEOUT = timedelta(minutes=5)
_SHARED_FOLDER_LAG = 30.0
"""Seconds until all workers see a file that one wrote, because network file systems cache folders."""
_SECONDS_TO_BE_STOPPED = 5.0
_SHORTEST_LIMIT = 3.0
_DEFAULT_GRACE = "30"
"""Default of BIREME_GRACE_SECONDS, the seconds from SIGTERM to SIGKILL: that of torchrun and Kubernetes."""
_STATUS_OF_TERM = 128 + signal.SIGTERM
_KEPT = 2
_CHECKPOINT = re.compile(r"checkpoint-(\d+)\.pt")


class Run:
    """One process of the job: its rank, its device, its checkpoints and its log.

    ``folder`` is shared by all workers. Ends the process with status 0 if the run in it is done.
    ``rank``, ``world_size`` and ``device`` are facts of this start; steps are optimizer steps of the run.
    """

    def __init__(self, folder: Path) -> None:
        import_seconds = _age()
        self.folder = folder
        self.rank, self.world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.device = _device()
        self._done = folder / "done"
        if self._done.exists():
            self.log(
                "done", message=f"{self._done} says that this run is done; remove {folder} to train again"
            )
            raise SystemExit(0)
        folder.mkdir(parents=True, exist_ok=True)
        self._join()
        self._term = _Term()
        self.log(
            "start",
            host=socket.gethostname(),
            pid=os.getpid(),
            device=str(self.device),
            import_seconds=import_seconds,
            join_seconds=round(_age() - import_seconds, 3),
        )

    @property
    def leads(self) -> bool:
        """Whether this is the one process that writes checkpoints and event files."""
        return self.rank == 0

    def log(self, event: str, **facts: Any) -> None:
        """Print one JSON line: the event, its time, the rank, the world size, and ``facts``."""
        process = {"time": round(time.time(), 3), "rank": self.rank, "world_size": self.world_size}
        sys.stdout.write(json.dumps({"event": event} | process | facts) + "\n")
        sys.stdout.flush()

    def restore(self) -> State | None:
        """The newest checkpoint or snapshot, the same in all processes; None if there is none yet."""
        kept = snapshots.restore() if snapshots else None
        # Rank 0 decides, because the others may see an older state of the folder.
        step, state = self._newest() if self.leads else (0, None)
        step = int(self.sum(step)[0])
        if kept and kept[0] > step:
            self.log("resume", step=kept[0], snapshot=True)
            return kept[1]
        if step == 0:
            return None
        if state is None:
            state = _load(self._wait_for(step))
        self.log("resume", step=step)
        return state

    def step_done(self, step: int, state: Callable[[], State], due: bool = False) -> None:
        """Call after every optimizer step, in all processes; saves if ``due`` or if newcomers wait for it.

        When a process has to end it does not return: the step is saved, and torchrun starts all again.
        """
        self._term.step_done()
        # Older charts mount a runtime that does not ask.
        leaving, wanted = self.sum(
            float(self._term.received), float(getattr(progress, "save_wanted", bool)())
        )
        if leaving:
            with self._term.held():
                self.save(step, state)
                self._leave(step)
        if due or wanted:
            self.save(step, state)
        if snapshots and snapshots.here().due(step):
            with self._term.held():
                self.snapshot(step, state)
        self._term.step_begins()

    def snapshot(self, step: int, state: Callable[[], State]) -> None:
        """Keep the state of ``step`` in memory; all processes call it together."""
        snapshots.save(step, state())

    def save(self, step: int, state: Callable[[], State]) -> None:
        """Write the checkpoint of ``step`` (rank 0 does, atomically); all processes call it together.

        From here to the next ``step_done`` there is nothing to lose, and SIGTERM ends a process at once.
        """
        # Older charts mount a runtime that cannot be told.
        saving = getattr(progress, "saving", contextlib.nullcontext)
        with self._term.held(), saving():
            if self.leads:
                started = time.monotonic()
                for abandoned in self.folder.glob(".*.pt.*"):
                    # Of a killed process; it may be the space that the next checkpoint needs.
                    abandoned.unlink(missing_ok=True)
                publish(_path(self.folder, step), lambda file: torch.save(state(), file))
                self._prune()
                self.log("checkpoint", step=step, seconds=round(time.monotonic() - started, 3))
            self.sum(0)  # nobody goes on, or away, before it is written
        getattr(progress, "checkpoint", bool)()

    def finish(self, step: int, state: Callable[[], State], **results: Any) -> None:
        """Save the final checkpoint and mark the run as done, so that a rerun ends at once with status 0."""
        self.save(step, state)
        with self._term.held():
            if self.leads:
                line = json.dumps({"step": step, **results}) + "\n"
                publish(self._done, lambda file: file.write(line.encode()))
            self.sum(0)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.log("done", step=step, **results)

    def sum(self, *values: float) -> list[float]:
        """The sums of ``values`` over all processes, computed on CPUs so that nothing waits for the GPUs."""
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return list(total.tolist())

    def _join(self) -> None:
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        if "RANK" in os.environ:
            dist.init_process_group(backend, timeout=_COLLECTIVE_TIMEOUT)
        else:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)

    def _newest(self) -> tuple[int, State | None]:
        found = sorted(_checkpoints(self.folder), reverse=True)
        for step in found:
            try:
                return step, _load(_path(self.folder, step))
            except Exception as error:  # torch raises many kinds for a damaged file
                self.log("unreadable", step=step, message=f"{type(error).__name__}: {error}")
        if found:
            raise SystemExit(f"error: none of the checkpoints in {self.folder} can be read, see above")
        return 0, None

    def _wait_for(self, step: int) -> Path:
        path = _path(self.folder, step)
        deadline = time.monotonic() + _SHARED_FOLDER_LAG
        while not path.exists():
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"error: rank 0 has {path}, rank {self.rank} does not see it: "
                    "--checkpoints must be a folder that all workers share"
                )
            time.sleep(0.2)
        return path

    def _prune(self) -> None:
        for old in sorted(_checkpoints(self.folder))[:-_KEPT]:
            _path(self.folder, old).unlink(missing_ok=True)

    def _leave(self, step: int) -> None:
        self.log("stop", step=step, reason="SIGTERM" if self._term.received else "SIGTERM of another process")
        # The agent stops the other processes as soon as it notices that a worker left. Some agents notice
        # only when a process fails.
        ended_by_agent = self._term.wait(_SECONDS_TO_BE_STOPPED)
        os._exit(_STATUS_OF_TERM if ended_by_agent else 1)


class _Term:
    """Handles SIGTERM: the current step ends and is saved, unless it waits for a process that has ended."""

    def __init__(self) -> None:
        self._received = threading.Event()
        self._in_step = False
        self._holds = 0
        self._step_began = time.monotonic()
        self._step_seconds = 0.0
        # The wakeup descriptor is written when the signal arrives. Python's handlers do not run while the
        # main thread waits in a collective for a process that has ended.
        inbox, self._outbox = socket.socketpair()
        self._outbox.setblocking(False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(self._outbox.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=[inbox], daemon=True).start()

    @property
    def received(self) -> bool:
        return self._received.is_set()

    def wait(self, seconds: float) -> bool:
        return self._received.wait(seconds)

    def step_begins(self) -> None:
        self._in_step, self._step_began = True, time.monotonic()

    def step_done(self) -> None:
        self._step_seconds = time.monotonic() - self._step_began

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self._in_step = False
        self._holds += 1
        try:
            yield
        finally:
            # Elastic Horovod goes on after an error.
            self._holds -= 1

    def _watch(self, inbox: socket.socket) -> None:
        while signal.SIGTERM not in inbox.recv(1):
            pass
        self._received.set()
        received = time.monotonic()
        grace = float(os.environ.get("BIREME_GRACE_SECONDS", _DEFAULT_GRACE))
        # A step that takes far longer than the last one waits for a process that has ended.
        limit = min(grace, max(_SHORTEST_LIMIT, 10 * self._step_seconds))
        while (waited := time.monotonic() - received) < grace:
            if not self._holds and (not self._in_step or waited > limit):
                break
            time.sleep(0.02)
        os._exit(_STATUS_OF_TERM)


def execute(main: Callable[[], None]) -> NoReturn:
    """Call ``main``, and end the process with the status that Python would give it, but at once.

    A normal exit destroys the process group. gloo sometimes waits for ever in that when a peer exits too or
    has ended, and torchrun would wait with it.
    """
    status = 1
    try:
        main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """The options that all scripts have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder that all workers share")
    parser.add_argument("--checkpoint-every", type=int, metavar="STEPS", help="(default: %(default)s)")
    parser.add_argument("--tensorboard", type=Path, help="folder of event files (default: in --checkpoints)")
    parser.add_argument("--epochs", type=int, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--step-seconds", type=float, default=0, help="sleep so long in every step")
    return parser


def publish(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let ``write`` write the file ``path``; readers find the complete file or none.

    Raises when this process no longer belongs to the world that trains: another one writes this folder then.
    """
    partial = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if fence:
            fence.check()
        partial.replace(path)
    except BaseException:
        # On a full disk it would take the space of the next attempt.
        partial.unlink(missing_ok=True)
        raise
    # Without that, a loss of power takes the new name back.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class EventFiles:
    """Event files for TensorBoard, written by rank 0 if the image has the tensorboard package.

    ``step`` is the one that training starts from: later events in ``folder`` are of steps that were lost.
    """

    def __init__(self, run: Run, folder: Path, step: int) -> None:
        self._writer: Any = None
        if not run.leads:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            run.log(
                "notice", message=f"no event files in {folder}, the image has no tensorboard package: {error}"
            )
            return
        self._writer = SummaryWriter(str(folder), purge_step=step + 1)

    def record(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the values of one step."""
        if self._writer:
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _path(folder: Path, step: int) -> Path:
    return folder / f"checkpoint-{step:09d}.pt"


def _checkpoints(folder: Path) -> list[int]:
    # Path.glob finds nothing in a folder that cannot be read, and training would begin anew.
    return [int(found[1]) for name in os.listdir(folder) if (found := _CHECKPOINT.fullmatch(name))]


def _load(path: Path) -> State:
    state: State = torch.load(path, map_location="cpu", weights_only=True)
    return state


def _age() -> float:
    """Seconds since this process was started."""
    start_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return round(time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK"), 3)
