"""Snapshots of the training state, which survive lost processes, pods and nodes (docs/snapshots.md).

    from bireme_runtime.elastic import snapshots
    found = snapshots.restore()  # (step, state) of the newest snapshot that is whole, or None
    snapshots.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})

Each rank saves its own state: a process waits only while that is copied to memory. Sharded states are for
torch.distributed.checkpoint, with the writer and the reader of sharded.py.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import math
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bireme_runtime.elastic import fence
from bireme_runtime.elastic.snapshots import keeper, plan
from bireme_runtime.elastic.snapshots.files import ANY_SUM, Cut, Folder, NoRoom, Part, Torn, checksum, verify
from bireme_runtime.process import environment
from bireme_runtime.process.log import log_of

ALIGNED, _HEAD, _MARK = 64, struct.Struct("<QQ"), "bireme:tensor"
# Sizes are rounded, because files are written again only where sizes are the same.
_ROUNDED = 1 << 20
# After that the copies of the snapshot before are not waited for.
_SECONDS = 30.0
# For so long a keeper that does not answer is asked again for a copy.
_TAKE_SECONDS = 60.0

say = log_of("snapshots")


class Rank:
    """The snapshots of one process."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._env = env
        self.plan = plan.from_env(env)
        self.on = bool(self.plan.token)
        self.every = environment.integer(env, keeper.EVERY, 1, least=1)
        self.rank = environment.integer(env, "RANK", 0)
        self.world = environment.integer(env, "WORLD_SIZE", 1)
        if self.on:
            self._folder = keeper.folder_of(env)
        self._before: dict[int, Part] = {}
        self._waited = 0.0

    def due(self, step: int) -> bool:
        """Whether a snapshot is made of this step."""
        return self.on and step % self.every == 0

    @contextlib.contextmanager
    def writing(self, step: int, parts: int, part: int, size: int) -> Iterator[mmap.mmap]:
        """Memory for a part of the snapshot of a step, which counts when the block has ended.

        Raises NoRoom, and fence.Fenced when this process no longer belongs to the world that trains.
        """
        since = time.monotonic()
        made = Part(self.plan.token, step, parts, part)
        own = sorted(each.made for each in self._folder.parts() if each.part == part)
        if len(own) > 1:
            # All ranks have waited for the copies of the step before.
            self._folder.keep_from(own[-2])
        with self._folder.writing(-(-size // _ROUNDED) * _ROUNDED) as buffer:
            yield buffer.memory
            fence.check(self._env, ask=False)
            buffer.commit(made)
        self._tell(made, self._waited + time.monotonic() - since)
        self._waited = 0.0

    def take(self, part: int) -> Any:
        """The nearest whole copy of a part of the snapshot that the round goes on from.

        Raises Torn when there is none. The next round then goes on from the snapshot before.
        """
        assert self.plan.made is not None
        wanted = Part(*self.plan.made, self.plan.parts, part)
        places = sorted(self.plan.places[part], key=lambda at: (at != self.plan.rank, at == plan.CLAIM))
        deadline = time.monotonic() + _TAKE_SECONDS
        while places:
            for place in list(places):
                try:
                    memory = self._take_from(place, wanted)
                    if (self._folder.path / wanted.name).exists():
                        # The loss before may have taken its copies.
                        self._tell(wanted)
                    return memory
                except (OSError, Torn) as error:
                    where = "on the claim" if place == plan.CLAIM else f"at worker {place}"
                    say(f"part {part} of step {wanted.step} {where} cannot be used: {error}")
                    may_come = isinstance(error, (OSError, Cut)) and not isinstance(error, FileNotFoundError)
                    if not may_come or time.monotonic() >= deadline:
                        self._drop(place, wanted)
                        places.remove(place)
            time.sleep(1.0 if places else 0.0)
        raise Torn(f"no copy of part {part} of the snapshot of step {wanted.step} is whole: start again")

    def _take_from(self, place: int, wanted: Part) -> Any:
        if place == self.plan.rank:
            memory = self._folder.read(wanted)
            # A process that was killed right after its snapshot has left no checksum.
            sum = self._folder.known(wanted).get("sum", ANY_SUM)
            verify(ANY_SUM if sum == ANY_SUM else checksum(memory), sum)
            return memory
        if place == plan.CLAIM:
            claim = Folder(Path(self._env[plan.FLUSH]))
            data, known = bytearray((claim.path / wanted.name).read_bytes()), claim.known(wanted)
            if "sum" not in known:
                raise Torn("it has no checksum")
            verify(checksum(data), known["sum"])
            return data
        with keeper.get(self.plan.keepers[place], wanted) as (size, sum, stream):
            try:
                # Here it outlives the next loss, too.
                with self._folder.writing(size) as buffer:
                    keeper.receive(stream, buffer.descriptor, size, sum)
                    buffer.commit(wanted)
                self._folder.tell(wanted, sum=sum)
                return self._folder.read(wanted)
            except NoRoom:
                with os.fdopen(os.memfd_create("bireme-part"), "r+b") as file:
                    keeper.receive(stream, file.fileno(), size, sum)
                    return mmap.mmap(file.fileno(), size)

    def _drop(self, place: int, part: Part) -> None:
        if place == self.plan.rank:
            self._folder.free(part)
        elif place == plan.CLAIM:
            (Path(self._env[plan.FLUSH]) / part.name).unlink(missing_ok=True)
        else:
            keeper.drop(self.plan.keepers[place], part)

    def _tell(self, part: Part, blocked: float = 0.0) -> None:
        """Let the keeper of this worker make copies of a part."""
        self._before[part.part] = part
        told = {"part": [part.token, part.step, part.parts, part.part], "blocked": blocked}
        with contextlib.suppress(OSError):
            known = self._folder.known(part)
            if known:
                self._folder.tell(part, sum=known["sum"])
            descriptor = os.open(self._folder.path / keeper.TOLD, os.O_WRONLY | os.O_NONBLOCK)
            with os.fdopen(descriptor, "wb", buffering=0) as pipe:
                pipe.write(json.dumps(told).encode() + b"\n")

    def wait_for_copies(self) -> None:
        """Until the snapshot before has its copies: whoever is lost now, the others have it.

        All ranks have to meet between this and the next snapshot, so that nobody is a step ahead.
        """
        since = time.monotonic()
        for before in self._before.values():
            while "copies" not in self._folder.known(before):
                if time.monotonic() > since + _SECONDS:
                    say(f"nobody has made copies of step {before.step}: the keeper of this worker is silent")
                    break
                time.sleep(0.002)
        # In a world of another size it was another rank's, which this one saves no more.
        self._before.clear()
        self._waited += time.monotonic() - since


@functools.cache
def here() -> Rank:
    """The snapshots of this process."""
    return Rank()


def save(step: int, state: Any) -> bool:
    """Make a snapshot of a step, if one is due; returns whether it did. Outside a worker it does nothing.

    ``state``: what `torch.save` takes. All ranks call it after each step, and go on together.
    """
    rank = here()
    if not rank.due(step):
        return False
    torch, packed = importlib.import_module("torch"), Packed()
    rank.wait_for_copies()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    text = io.BytesIO()
    torch.save(packed.without_tensors(torch, state), text)
    try:
        with rank.writing(step, rank.world, rank.rank, packed.size + text.tell()) as memory:
            memory[: _HEAD.size] = _HEAD.pack(packed.size, text.tell())
            memory[packed.size : packed.size + text.tell()] = text.getbuffer()
            packed.copy_to(torch, memory)
    except NoRoom as error:
        say(f"no snapshot of step {step}: {error}")
        return False
    return True


def restore() -> tuple[int, Any] | None:
    """Step and state of the newest snapshot of all ranks; None without one, or outside a worker.

    In a world of another size a rank gets what one of the ranks before has saved. The tensors are memory of
    the snapshot itself: drop them after `load_state_dict`.
    """
    rank = here()
    if rank.plan.made is None:
        return None
    torch, memory = importlib.import_module("torch"), rank.take(rank.rank % rank.plan.parts)
    at, length = _HEAD.unpack_from(memory)
    state = torch.load(io.BytesIO(memory[at : at + length]), weights_only=True)

    def tensor_of(value: Any) -> Any:
        if not (isinstance(value, tuple) and value[:1] == (_MARK,)):
            return value
        _, at, dtype, shape = value
        return tensor_at(torch, memory, at, getattr(torch, dtype), shape)

    return rank.plan.made[1], _replaced(state, tensor_of)


class Packed:
    """The tensors of a state, and their places in a part."""

    def __init__(self) -> None:
        self.tensors: list[tuple[int, Any]] = []
        self.size = ALIGNED

    def without_tensors(self, torch: Any, state: Any) -> Any:
        """The state with the place, type and shape of each tensor instead of it; torch saves other kinds."""
        kinds = (torch.Tensor, torch.nn.Parameter)

        def place_of(value: Any) -> Any:
            if type(value) not in kinds or value.layout != torch.strided or value.is_quantized:
                return value
            return (_MARK, self.add(value.detach()), str(value.dtype).partition(".")[2], tuple(value.shape))

        return _replaced(state, place_of)

    def add(self, tensor: Any) -> int:
        """Where the tensor stands."""
        at = self.size
        self.tensors.append((at, tensor))
        self.size = -(-(at + tensor.numel() * tensor.element_size()) // ALIGNED) * ALIGNED
        return at

    def copy_to(self, torch: Any, memory: Any) -> None:
        """Copy all to a part."""
        for at, tensor in self.tensors:
            tensor_at(torch, memory, at, tensor.dtype, tensor.shape).copy_(tensor)


def _replaced(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """The same nest of dicts, lists and tuples, with other leaves."""
    found = leaf(value)
    if found is not value:
        return found
    if isinstance(value, Mapping):
        return {key: _replaced(each, leaf) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replaced(each, leaf) for each in value)
    return value


def tensor_at(torch: Any, memory: Any, at: int, dtype: Any, shape: Any) -> Any:
    """The tensor that is this place of the memory."""
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=at).view(shape)
