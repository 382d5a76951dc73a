"""The keeper of a worker's snapshots, in its supervisor, which outlives the training processes.

It computes checksums, sends copies to the keepers of other workers, answers theirs, and writes behind to a
claim. A connection carries one request, a line of JSON, then the bytes of a part in one of the directions.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import math
import os
import secrets
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from bireme_runtime.elastic import fence
from bireme_runtime.elastic.snapshots.files import ANY_SUM, Cut, Folder, Part, Torn, checksum, verify, write
from bireme_runtime.elastic.snapshots.plan import CLAIM, FLUSH, FOLDER, KEEPER, Keeper, Plan
from bireme_runtime.process import environment
from bireme_runtime.process.disk import to_disk, write_whole
from bireme_runtime.process.errors import CONFIG, BiremeError, Stop
from bireme_runtime.process.log import Say
from bireme_runtime.process.server import listen
from bireme_runtime.process.threads import in_thread

BUDGET, EVERY = "BIREME_SNAPSHOT_BUDGET_MIB", "BIREME_SNAPSHOT_EVERY"
FLUSH_EVERY = "BIREME_SNAPSHOT_FLUSH_EVERY"
TOLD = "told"
# A keeper that is silent for so long is not waited for.
_SECONDS = 10.0
_LONGEST_LINE, _CHUNK = 4096, 1 << 20
_KEPT_ON_CLAIM = 2
# Connections at a time. Anybody in the cluster may try the port.
_CONNECTIONS = 256


class _Pace:
    """How quickly the claim takes one part. Only the snapshots that ``stride`` divides are written to it."""

    def __init__(self) -> None:
        self.free = threading.Lock()
        self.stride, self._missed, self._missed_before = 1, 0, 0

    def begins(self, number: int) -> bool:
        """Whether the part of snapshot ``number`` is written now. The writer calls `ends` after it."""
        if number % self.stride or not self.free.acquire(blocking=False):
            self._missed += 1
            return False
        self._missed = 0
        return True

    def ends(self) -> None:
        """Set the stride by the last two writes, so that a single slow one changes nothing.

        Strides are powers of two, so that workers of different speed write the same snapshots.
        """
        self.stride = 1 << min(self._missed, self._missed_before).bit_length()
        self._missed_before = self._missed
        self.free.release()


def folder_of(env: Mapping[str, str]) -> Folder:
    """The folder of the worker, with its budget."""
    return Folder(Path(env[FOLDER]), environment.integer(env, BUDGET, 0) << 20)


class Service:
    """Keeps what the processes of this worker save and what others send, as long as its process runs."""

    def __init__(self, env: Mapping[str, str], say: Say) -> None:
        self._env, self._say = env, say
        self._folder = folder_of(env)
        room = os.statvfs(self._folder.path)
        size, budget = room.f_blocks * room.f_frsize >> 20, self._folder.budget >> 20
        if size < budget:
            has = f"{self._folder.path} has {size} MiB"
            raise Stop(CONFIG, f"{has} and recovery.snapshots.budgetMiB is {budget}: raise pod.shm.size")
        self._flush = Folder(Path(env[FLUSH])) if env.get(FLUSH) else None
        self._every = environment.integer(env, FLUSH_EVERY, 1, least=1)
        # Steps from one snapshot that goes to the claim to the next.
        self._between = math.lcm(self._every, environment.integer(env, EVERY, 1, least=1))
        self._listener = listen("", 0)
        address = env.get("PET_LOCAL_ADDR") or socket.gethostname()
        port, node = int(self._listener.getsockname()[1]), env.get("BIREME_NODE", "")
        self._own = Keeper(address, port, secrets.token_hex(16), node)
        write(self._folder.path / KEEPER, asdict(self._own))
        told = self._folder.path / TOLD
        told.unlink(missing_ok=True)
        os.mkfifo(told, 0o600)
        # Also open for writing, so that it has no end.
        self._told = os.fdopen(os.open(told, os.O_RDWR), "rb", buffering=0)
        self._newest: dict[int, Part] = {}
        # One for each part: the ranks of a pod hand in theirs at the same moment.
        self._paces: dict[int, _Pace] = defaultdict(_Pace)
        self._room = threading.BoundedSemaphore(_CONNECTIONS)
        self._state: dict[str, Any] = {"blockedSeconds": 0.0, "count": 0}
        for run in (self._accept, self._listen):
            threading.Thread(target=run, name="bireme-snapshots", daemon=True).start()

    @property
    def blocked(self) -> float:
        """Seconds that processes of this worker have waited for snapshots."""
        return float(self._state["blockedSeconds"])

    def state(self) -> dict[str, Any]:
        """What is known of the newest snapshot: step, time, MiB, copies, flushed; empty before the first."""
        if "step" not in self._state:
            return {}
        return {**self._state, "blockedSeconds": round(self.blocked, 3)}

    def round(self) -> dict[str, Any]:
        """What the round goes on from, for the timeline: step, parts, parts that only the claim has."""
        plan = Plan.read(self._folder.path)
        if plan.made is None:
            return {}
        only = sum(list(places) == [CLAIM] for places in plan.places.values())
        return {"snapshot": {"step": plan.made[1], "parts": plan.parts, "claim": only}}

    def _listen(self) -> None:
        for line in self._told:
            told = json.loads(line)
            part = Part(*told["part"])
            self._state["blockedSeconds"] += told["blocked"]
            self._state["count"] += 1
            self._paces[part.part]  # only this thread makes them, so no two for one part
            self._newest[part.part] = part
            in_thread(lambda part=part: self._keep(part))  # type: ignore[misc]

    def _keep(self, part: Part) -> None:
        """Compute the checksum of a part, copy it and write it behind, while its process trains on."""
        known = self._folder.known(part)
        try:
            memory = self._folder.read(part)
            sum, copies, plan = checksum(memory), 0, Plan.read(self._folder.path)
            if known.get("sum", sum) != sum:
                # What came from a neighbour may have changed since.
                raise Torn("its checksum is another one")
            self._folder.tell(part, sum=sum)
            for keeper in plan.copy_to:
                try:
                    put(keeper, part, memory, sum, lambda: self._newest.get(part.part, part) == part)
                    copies += 1
                except (OSError, BiremeError) as error:
                    self._say(f"snapshots: no copy of step {part.step} at {keeper.address}: {error}")
            self._folder.tell(part, sum=sum, copies=copies)
            self._state.update(step=part.step, time=time.time(), MiB=len(memory) >> 20, copies=copies)
            if self._flush and part.step % self._every == 0:
                self._write_behind(self._flush, part, memory, sum, plan)
        except Torn as torn:
            self._folder.tell(part, **{**known, "copies": 0})
            self._say(f"snapshots: step {part.step} is not kept: {torn}")

    def _write_behind(self, claim: Folder, part: Part, memory: Any, sum: int, plan: Plan) -> None:
        """Write to the claim, unless that takes longer than from one snapshot to the next."""
        pace = self._paces[part.part]
        if not pace.begins(part.step // self._between):
            return self._say(f"snapshots: step {part.step} is not written to the claim, which is too slow")
        # Of this worker: others may write the same part, which all of them have restored.
        hidden = claim.path / f".{part.name}.{plan.rank}"
        try:
            write_whole(claim.sum_path(part), json.dumps({"sum": sum}))
            write_whole(hidden, memory)
            fence.check({**self._env, **plan.env})
            hidden.replace(claim.path / part.name)
            to_disk(claim.path)
            self._state["flushed"] = part.step
            if part.part == 0:
                self._prune(claim)
        except (OSError, fence.Fenced) as error:
            with contextlib.suppress(OSError):
                hidden.unlink(missing_ok=True)
            self._say(f"snapshots: step {part.step} is not on the claim: {error}")
        finally:
            pace.ends()

    def _prune(self, claim: Folder) -> None:
        """Delete the files of snapshots before the newest whole ones, also what killed writers have left."""
        found = Counter((part.made, part.parts) for part in claim.parts())
        whole = sorted(made for (made, parts), count in found.items() if count == parts)
        for path in list(claim.path.iterdir()) if len(whole) >= _KEPT_ON_CLAIM else ():
            of = Part.of(".".join(path.name.lstrip(".").split(".")[:4]))
            if of and of.made < whole[-_KEPT_ON_CLAIM]:
                path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            self._room.acquire()
            try:
                connection, _ = self._listener.accept()
            except OSError:  # no descriptor is free
                self._room.release()
                time.sleep(1.0)
                continue
            in_thread(lambda connection=connection: self._answer(connection))  # type: ignore[misc]

    def _answer(self, connection: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rb") as stream:
                asked = json.loads(_first_line(connection, stream))
                part = Part.of(str(asked["part"]))
                if part is None or not hmac.compare_digest(str(asked["key"]), self._own.key):
                    return
                try:
                    self._do(asked, part, connection, stream)
                except BiremeError as error:
                    _send(connection, error=str(error))
        finally:
            self._room.release()

    def _do(self, asked: Mapping[str, Any], part: Part, connection: socket.socket, stream: BinaryIO) -> None:
        known = self._folder.known(part)
        if asked["op"] == "drop":
            self._folder.free(part)
        elif asked["op"] == "get":
            memory = self._folder.read(part)
            _send(connection, size=len(memory), sum=known.get("sum", ANY_SUM))
            _send_all(connection, memory)
        elif not Plan.read(self._folder.path).allows(part):
            raise fence.Fenced("it is of an old world")
        elif part not in self._folder.parts() or known.get("sum") != asked["sum"]:
            with self._folder.writing(int(asked["size"])) as buffer:
                _send(connection, wanted=True)
                receive(stream, buffer.descriptor, int(asked["size"]), int(asked["sum"]))
                buffer.commit(part)
            self._folder.tell(part, sum=asked["sum"])
        _send(connection, wanted=False)


def _first_line(connection: socket.socket, stream: BinaryIO) -> bytes:
    """What a stranger may send: one line, in limited time however slowly it comes."""
    line, end = b"", time.monotonic() + _SECONDS
    while not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
        connection.settimeout(max(end - time.monotonic(), 0.001))
        line += stream.read(1) or b"\n"
    connection.settimeout(_SECONDS)
    return line


def receive(stream: BinaryIO, descriptor: int, size: int, sum: int) -> None:
    """Write a part to a file in memory from a stream. Raises Torn when that ends early, and as `verify`.

    To map the file's pages would take half as long again.
    """
    buffer, found = memoryview(bytearray(_CHUNK)), 0
    for at in range(0, size, _CHUNK):
        chunk = buffer[: size - at]
        count = stream.readinto(chunk)  # type: ignore[attr-defined]
        if count < len(chunk):
            raise Cut(f"it ended after {at + count} of {size} bytes")
        os.pwrite(descriptor, chunk, at)
        found = checksum(chunk, found)
    verify(found, sum)


@contextlib.contextmanager
def asking(keeper: Keeper, op: str, part: Part, **more: Any) -> Iterator[tuple[socket.socket, BinaryIO]]:
    """A connection to a keeper, with a request on it, and a stream of its answers."""
    with socket.create_connection((keeper.address, keeper.port), _SECONDS) as connection:
        _send(connection, op=op, part=part.name, key=keeper.key, **more)
        with connection.makefile("rb") as stream:
            yield connection, stream


def put(
    keeper: Keeper, part: Part, memory: Any, sum: int, is_wanted: Callable[[], bool] = lambda: True
) -> None:
    """Let a keeper have a copy of a part, while that is wanted. Raises OSError, or Torn with what it says."""
    with asking(keeper, "put", part, size=len(memory), sum=sum) as (connection, stream):
        if _answer(stream)["wanted"]:
            _send_all(connection, memory, is_wanted)
            _answer(stream)


def drop(keeper: Keeper, part: Part) -> None:
    """Tell a keeper that its copy is torn."""
    with contextlib.suppress(OSError, Torn), asking(keeper, "drop", part) as (_, stream):
        _answer(stream)


@contextlib.contextmanager
def get(keeper: Keeper, part: Part) -> Iterator[tuple[int, int, BinaryIO]]:
    """The size of a keeper's copy, its checksum, and a stream of its bytes. Raises OSError, or Torn."""
    with asking(keeper, "get", part) as (_, stream):
        answer = _answer(stream)
        yield int(answer["size"]), int(answer["sum"]), stream


def _send(connection: socket.socket, **facts: Any) -> None:
    connection.sendall(json.dumps(facts).encode() + b"\n")


def _send_all(connection: socket.socket, memory: Any, is_wanted: Callable[[], bool] = lambda: True) -> None:
    """Send a part. The limit of the connection holds for each MiB, because a part may take minutes."""
    view = memoryview(memory)
    for at in range(0, len(view), _CHUNK):
        if not is_wanted():
            raise Cut("there is a newer one")
        connection.sendall(view[at : at + _CHUNK])


def _answer(stream: BinaryIO) -> Mapping[str, Any]:
    try:
        answer: Mapping[str, Any] = json.loads(stream.readline(_LONGEST_LINE))
    except ValueError:
        raise Cut("the connection has ended") from None
    if "error" in answer:
        raise Torn(str(answer["error"]))
    return answer
