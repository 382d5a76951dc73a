"""What the workers of the simulation keep of their steps, and which snapshot their worlds go on from.

Of Bireme's code the part of the ranks, the keepers and the plan run as they are, on real files in memory.
Only connections between keepers are those of the simulation.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bireme_runtime.elastic import snapshots
from bireme_runtime.elastic.rendezvous import membership
from bireme_runtime.elastic.snapshots import keeper, plan
from bireme_runtime.elastic.snapshots.files import Folder, Part, Torn, write
from bireme_runtime.etcd import client as etcd
from tests.runtime.simulation.scheduler import Broken, Machine, Process, SimTime

if TYPE_CHECKING:
    from tests.runtime.simulation.run import Job, Worker

SIZE = 256
# Token and step of a snapshot, None without one; run and token of a world.
Made = tuple[int, int] | None
World = tuple[str, int]


class CoarseTime(SimTime):
    """The module `time`, with longer sleeps for code that polls."""

    def sleep(self, seconds: float) -> None:
        super().sleep(max(seconds, 0.2))


class Pipe:
    """A connection on which all that one side says has come already."""

    def __init__(self, incoming: bytes) -> None:
        self._incoming, self.answer = incoming, bytearray()
        self.sendall = self.answer.extend

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def settimeout(self, seconds: float) -> None:
        pass

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._incoming)


class Kept:
    """What one worker keeps: its folder, which ends with the machine, and the keeper in its supervisor."""

    def __init__(self, keeping: Keeping, worker: Worker) -> None:
        self.keeping, self.worker = keeping, worker
        self.process = Process(f"{worker.name} keeper", worker.machine)
        self.folder = Folder(keeping.memory / worker.name)
        own = plan.Keeper(worker.name, 0, "", worker.name)
        write(self.folder.path / plan.KEEPER, asdict(own))
        claim = keeping.memory / f"claim-{worker.run}"
        self.env = {
            plan.FOLDER: str(self.folder.path), keeper.EVERY: str(keeping.every),
            "PET_RDZV_ENDPOINT": "etcd:2379", etcd.HISTORY: worker.board.path,
            **({plan.FLUSH: str(claim)} if keeping.flush else {}),
        }  # fmt: skip
        self.service = object.__new__(keeper.Service)
        vars(self.service).update(
            _env=self.env, _say=keeping.job.sim.log, _folder=self.folder, _own=own, _every=keeping.flush,
            _flush=Folder(claim) if keeping.flush else None, _paces=defaultdict(keeper._Pace), _state={},
            _room=threading.Semaphore(), _newest={}, _between=math.lcm(keeping.every, keeping.flush or 1),
        )  # fmt: skip

    def ask(self, request: Mapping[str, Any], data: bytes = b"") -> bytes:
        pipe = Pipe(json.dumps({**request, "key": ""}).encode() + b"\n" + data)
        self.service._answer(pipe)  # type: ignore[arg-type]
        return bytes(pipe.answer)


class Rank(snapshots.Rank):
    """The snapshots of one process."""

    def __init__(self, kept: Kept, world: membership.World, env: Mapping[str, str]) -> None:
        super().__init__({**kept.env, **env, "RANK": str(world.rank), "WORLD_SIZE": str(world.size)})
        self._kept, self._name = kept, (kept.worker.run, world.token)

    def _tell(self, part: Part, blocked: float = 0.0) -> None:
        super()._tell(part, blocked)
        self._kept.keeping.job.sim.spawn(self._kept.process, lambda: self._kept.service._keep(part))

    def restore(self) -> int:
        """The step of the snapshot that the round goes on from; 0 without one."""
        if self.plan.made is None:
            return 0
        part = self.rank % self.plan.parts
        memory, (token, step) = self.take(part), self.plan.made
        text = bytes(memory[:SIZE]).rstrip(b"\0").decode()
        if text != f"{self._name[0]} {token} {step} {part}":
            raise Broken(f"part {part} of {self.plan.made} says {text}")
        return step

    def save(self, step: int) -> None:
        """A snapshot, which takes a moment, if one is due. All ranks meet before."""
        if not self.due(step):
            return
        keeping, before = self._kept.keeping, list(self._before.values())
        sim = keeping.job.sim
        self.wait_for_copies()
        if not all(self._folder.known(part).get("copies") for part in before):
            keeping.troubled.add(self._name)
        here = keeping.arrived.setdefault((*self._name, step), set())
        here.add(self.rank)
        while len(here) < self.world or keeping.is_cut(self._kept.worker):
            if keeping.job.is_done(self._name[0]):
                return
            sim.sleep(0.2)
        keeping.reached[self._name] = step
        with self.writing(step, self.world, self.rank, SIZE) as memory:
            text = f"{self._name[0]} {self.plan.token} {step} {self.rank}".encode()
            memory[:SIZE] = text.ljust(SIZE, b"\0")
            sim.sleep(sim.random.uniform(0, 0.3))


class Store:
    """The store of a round, and what its workers know before. Who waits in it goes when the round breaks."""

    def __init__(self, keeping: Keeping, last: int, needed: Made) -> None:
        self._job, self.last, self.needed = keeping.job, last, needed
        self._values: dict[str, str] = {}
        self.broken: dict[Machine, Callable[[], bool]] = {}

    def set(self, key: str, value: str) -> None:
        self._reach(lambda: True)
        self._values[key] = value

    def get(self, key: str) -> str:
        self._reach(lambda: key in self._values)
        return self._values[key]

    def _reach(self, ready: Callable[[], bool]) -> None:
        sim = self._job.sim
        mine = sim.thread().process.machine
        while self._job.network.link(mine).cut or not ready():
            if self.broken[mine]():
                raise ConnectionResetError("its round is broken")
            sim.sleep(0.1)


@dataclass
class Keeping:
    """The snapshots of all workers: `every` so many steps, and each `flush` steps (0: never) on a claim."""

    job: Job
    memory: Path = Path()
    every: int = field(init=False)
    flush: int = field(init=False)
    # By world: the snapshot that it goes on from, the step of its last snapshot, and its workers by rank.
    chosen: dict[World, Made] = field(default_factory=dict)
    reached: dict[World, int] = field(default_factory=dict)
    members: dict[World, dict[int, Worker]] = field(default_factory=dict)
    # Worlds in which a part had no copy when the next step began.
    troubled: set[World] = field(default_factory=set)
    arrived: dict[tuple[str, int, int], set[int]] = field(default_factory=dict)
    stores: dict[World, Store] = field(default_factory=dict)
    restored: int = 0

    def __post_init__(self) -> None:
        random = self.job.sim.random
        self.every, self.flush = random.choice((1, 1, 3)), random.choice((0, 0, 6))

    def is_cut(self, worker: Worker) -> bool:
        return self.job.network.link(worker.machine).cut

    def meet(self, worker: Worker, member: membership.Rendezvous, world: membership.World) -> bool:
        """The members of a world, who are all here, agree; returns whether this one knows on what."""
        name = (worker.run, world.token)
        if name not in self.stores:
            self.stores[name] = Store(self, *self._known(name))
        store, env = self.stores[name], {**worker.kept.env, **member.token(world)}
        store.broken[worker.machine] = lambda: member.broken(world)
        try:
            plan.meet(store, world.rank, world.size, env, self.job.sim.log)
        except ConnectionError as error:
            self.job.sim.log(f"{worker.name}: {error}")
            return False
        made = plan.Plan.read(worker.kept.folder.path).made
        if self.chosen.setdefault(name, made) != made:
            raise Broken(f"{worker.name} goes on from {made} in {name}, and others from {self.chosen[name]}")
        if store.needed and (made is None or made < store.needed):
            raise Broken(f"{name} goes on from {made}, and its workers had {store.needed}")
        # A snapshot on the claim may be of a newer world, of which nobody is here.
        if made and made[0] <= store.last and not self.leads(made, (worker.run, store.last)):
            raise Broken(f"{name} goes on from {made} of an old world: the one before was {store.last}")
        if made and made not in self._whole(name):
            raise Broken(f"{name} goes on from {made}, of which a part is nowhere")
        self.restored += made is not None
        return True

    def _known(self, name: World) -> tuple[int, Made]:
        """The newest world that one of these workers knows, and the newest snapshot that all of them have.

        Of that world it is at least the last but one, if not more than one of its workers is not here.
        """
        here = self.members[name].values()
        last = max(plan.Plan.read(each.kept.folder.path).token for each in here)
        before = (name[0], last)
        found = [made for made in self._whole(name) if not last or self.leads(made, before)]
        left = sum(each not in here for each in self.members.get(before, {}).values())
        sure = self.reached.get(before, 0) - self.every
        if left < 2 and before not in self.troubled and sure > (self.chosen.get(before) or (0, 0))[1]:
            found.append((last, sure))
        return last, max(found, default=None)

    def _whole(self, name: World) -> set[tuple[int, int]]:
        """The snapshots of which each part is at a worker of this world, or on the claim."""
        folders = [each.kept.folder for each in self.members[name].values()]
        folders += [Folder(self.memory / f"claim-{name[0]}")] if self.flush else []
        parts = {part for folder in folders for part in folder.parts()}
        count = Counter((part.made, part.parts) for part in parts)
        return {made for (made, wanted), there in count.items() if there == wanted}

    def leads(self, made: tuple[int, int], world: World) -> bool:
        """Whether this world made that snapshot, or goes on from it, or from what did."""
        run, token = world
        limit = made[1]
        while made[0] != token:
            came = self.chosen.get((run, token))
            if came is None:
                return False
            token, limit = came
        return made[1] <= limit

    # Connections between keepers ----------------------------------------

    def _reach(self, address: str) -> Kept:
        sim, workers = self.job.sim, self.job.workers
        mine = sim.thread().process.machine
        other = next(each for each in workers if each.name == address)
        deadline = sim.now + 10
        while self.job.network.link(mine).cut or self.is_cut(other) or self.job.suspended(other):
            if sim.now > deadline:
                raise TimeoutError("timed out")
            sim.sleep(0.2)
        sim.sleep(sim.random.uniform(0.01, 0.5))
        if not other.alive:
            raise ConnectionRefusedError("connection refused")
        return other.kept

    def put(self, to: plan.Keeper, part: Part, memory: Any, sum: int, *_: Any) -> None:
        other, data = self._reach(to.address), bytes(memory)
        if self.job.sim.random.random() < 0.03:
            data = data[: len(data) // 2]
        answer = other.ask({"op": "put", "part": part.name, "size": len(memory), "sum": sum}, data)
        last = json.loads(answer.splitlines()[-1])
        if "error" in last:
            raise Torn(last["error"])

    @contextlib.contextmanager
    def get(self, at: plan.Keeper, part: Part) -> Iterator[tuple[int, int, io.BytesIO]]:
        stream = io.BytesIO(self._reach(at.address).ask({"op": "get", "part": part.name}))
        answer = json.loads(stream.readline())
        if "error" in answer:
            raise Torn(answer["error"])
        yield answer["size"], answer["sum"], stream

    def drop(self, at: plan.Keeper, part: Part) -> None:
        with contextlib.suppress(OSError):
            self._reach(at.address).ask({"op": "drop", "part": part.name})
