"""Snapshots of sharded states, by torch.distributed.checkpoint: also for a world of another size.

    from bireme_runtime.elastic.snapshots import sharded
    step = sharded.restore(state)  # fills the state in place; None when nothing is kept
    sharded.save(step, state)

The planner, the resharding and the metadata are those of torch. `Writer` and `Reader` are for scripts that
call `dcp.save` and `dcp.load` themselves.
"""

from __future__ import annotations

import importlib
import io
import pickle
from typing import Any

from bireme_runtime.elastic import snapshots

torch = importlib.import_module("torch")
dcp = importlib.import_module("torch.distributed.checkpoint")
_narrowed = importlib.import_module("torch.distributed._shard._utils").narrow_tensor_by_index


def save(step: int, state: Any) -> bool:
    """Make a snapshot of a step, if one is due; returns whether it did. All ranks call it together."""
    if not snapshots.here().due(step):
        return False
    try:
        dcp.save(state, storage_writer=Writer(step))
    except dcp.api.CheckpointException as error:
        snapshots.say(f"no snapshot of step {step}: {error}")
        return False
    return True


def restore(state: Any) -> int | None:
    """Fill the state with the newest snapshot of all ranks; returns its step, or None without one."""
    made = snapshots.here().plan.made
    if made is None:
        return None
    dcp.load(state, storage_reader=Reader())
    return made[1]


class _Storage:
    """What torch asks of writers and readers alike."""

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept between snapshots."""

    def prepare_global_plan(self, plans: Any) -> Any:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False


class Writer(_Storage, dcp.StorageWriter):  # type: ignore[name-defined,misc]
    """Writes a part for each rank, and one with the metadata."""

    def __init__(self, step: int) -> None:
        self._step, self._rank = step, snapshots.here()

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Each rank knows its place."""

    def prepare_local_plan(self, plan: Any) -> Any:
        # All ranks meet when their plans are gathered.
        self._rank.wait_for_copies()
        return plan

    def write_data(self, plan: Any, planner: Any) -> Any:
        packed, results = snapshots.Packed(), []
        for item in plan.items:
            data = planner.resolve_data(item)
            if isinstance(data, io.BytesIO):
                data = torch.frombuffer(data.getbuffer(), dtype=torch.uint8)
            data = data.detach()
            place = (self._rank.rank, packed.add(data), data.dtype, tuple(data.shape))
            results.append(dcp.storage.WriteResult(item.index, data.numel() * data.element_size(), place))
        self._write(self._rank.rank, packed)
        future = torch.futures.Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Any, results: Any) -> None:
        metadata.storage_data = {each.index: each.storage_data for some in results for each in some}
        packed, data = snapshots.Packed(), bytearray(pickle.dumps(metadata))
        packed.add(torch.frombuffer(data, dtype=torch.uint8))
        self._write(self._rank.world, packed)

    def _write(self, part: int, packed: snapshots.Packed) -> None:
        with self._rank.writing(self._step, self._rank.world + 1, part, packed.size) as memory:
            packed.copy_to(torch, memory)


class Reader(_Storage, dcp.StorageReader):  # type: ignore[name-defined,misc]
    """Reads the snapshot that the round goes on from."""

    def __init__(self) -> None:
        self._rank = snapshots.here()
        self._places: dict[Any, Any] = {}

    def read_metadata(self, *_: Any, **__: Any) -> Any:
        memory = self._rank.take(self._rank.plan.parts - 1)
        return pickle.loads(memory[snapshots.ALIGNED :])

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *_: Any, **__: Any) -> None:
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def read_data(self, plan: Any, planner: Any) -> Any:
        parts: dict[int, Any] = {}
        for item in sorted(plan.items, key=lambda each: self._places[each.storage_index][0]):
            part, at, dtype, shape = self._places[item.storage_index]
            if part not in parts:
                # One after another, because a whole part may not be in this pod yet.
                parts = {part: self._rank.take(part)}
            data = snapshots.tensor_at(torch, parts[part], at, dtype, shape)
            if item.type == dcp.planner.LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(parts[part][at : at + len(data)]))
            else:
                target = planner.resolve_tensor(item).detach()
                target.copy_(_narrowed(data, item.storage_offsets, item.lengths))
                planner.commit_tensor(item, target)
        future = torch.futures.Future()
        future.set_result(None)
        return future
