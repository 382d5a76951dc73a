"""One simulated run of a job: workers that train, what happens to them, and what must hold.

Of Bireme's code the rendezvous, the lock, the fence, the snapshots and the etcd client run as they are. The
agents here do what torchrun and the supervisor do with them: join, start processes, ask every half second,
stop them, save.
"""

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from bireme_runtime.elastic import fence, snapshots
from bireme_runtime.elastic.rendezvous import membership, rules
from bireme_runtime.elastic.snapshots import keeper
from bireme_runtime.elastic.snapshots.files import Torn
from bireme_runtime.etcd import client as etcd
from bireme_runtime.etcd import connections
from bireme_runtime.etcd import history as etcd_history
from bireme_runtime.process import http
from bireme_runtime.process.errors import BiremeError, Unreachable
from tests.runtime.simulation import keeping
from tests.runtime.simulation.network import Etcd, Link, Network
from tests.runtime.simulation.scheduler import (
    Broken,
    Machine,
    Process,
    Scheduler,
    SimSecrets,
    SimThreading,
    SimTime,
    Stuck,
)

FAULTS_END, SECONDS_TO_SUCCEED = 90.0, 400.0
_STEPS = 120
_PREFIX = "/sim/"


class SimBoard(fence.Board):
    """A board in the memory of the simulation."""

    def __init__(self, path: str) -> None:
        self.memory = bytearray(16)  # type: ignore[assignment]
        self.path = path


@dataclass(eq=False)
class Ranks:
    """The training processes of one worker in one world."""

    world: tuple[str, int]
    process: Process
    alive: bool = True
    finished: bool = False


@dataclass(eq=False)
class Worker:
    """A pod: its machine, its agent and its training processes. The supervisor is a callback."""

    job: Job
    run: str
    slot: int
    machine: Machine
    board: SimBoard
    history: etcd.History = field(default_factory=etcd.History)
    kept: keeping.Kept = field(init=False)
    alive: bool = True
    ranks: Ranks | None = None
    agent: Process | None = None
    member: membership.Rendezvous | None = None
    outcome: str = ""
    agents: int = 0

    def __post_init__(self) -> None:
        self.kept = keeping.Kept(self.job.keeping, self)

    @property
    def name(self) -> str:
        return self.machine.name

    # The agent ----------------------------------------

    def start_agent(self) -> None:
        self.agents += 1
        self.agent = Process(f"{self.name} agent {self.agents}", self.machine)
        self.job.sim.spawn(self.agent, self._agent)

    def _agent(self) -> None:
        """What the supervisor does around one torchrun after another."""
        sim = self.job.sim
        while not self.outcome:
            self.board.clear()
            client = self.job.client(self)
            place = (f"switch {self.slot % 2}",)
            identity = membership.Identity(membership.new_base(self.name), self.slot, self.name, place)
            member = self.member = membership.Rendezvous(
                client, self.job.settings(self.run), identity, self.board,
                wanted=lambda: self.job.size if self.job.spares else 0,
            )  # fmt: skip
            try:
                self._train(member)
            except membership.RunOver as over:
                self._end(over.outcome)
            except BiremeError as error:
                if isinstance(error, membership.ThreadEnded):
                    raise Broken(str(error)) from error
                sim.log(f"{self.name}: the agent ends: {error}")
                if isinstance(error, Unreachable):
                    # The pod ends with 75, and the Job makes it again.
                    self.job.sim.after(0, self.die)
                    self.job.replace(self, sim.random.uniform(2, 9))
                    return
            self._stop_ranks(0)
            member.leave()
            sim.sleep(1.0)

    def _train(self, member: membership.Rendezvous) -> None:
        sim, job = self.job.sim, self.job
        while True:
            world = member.join()
            sim.log(f"{self.name}: round {world.number} as {world.rank} of {world.size}")
            if not self._meet(member, world):
                continue
            ranks = self._start_ranks(member, world)
            while True:
                sim.sleep(0.5)
                if ranks.finished:
                    if member.all_finished():
                        self._end(rules.SUCCESS)
                        return
                elif not ranks.alive:
                    sim.log(f"{self.name}: a process failed")
                    break
                if member.waiting():
                    seconds = 3.0 if member.only_arrivals else 0.5
                    sim.log(f"{self.name}: stops, others are waiting")
                    self._stop_ranks(sim.random.uniform(0, seconds))
                    break
            self._stop_ranks(0)
            job.check_threads(self)

    def _meet(self, member: membership.Rendezvous, world: membership.World) -> bool:
        """What torch's store does: all find rank 0, and wait for one another."""
        if world.rank == 0:
            if not member.publish_store(world, self.name):
                return False
        elif member.store_of(world) is None:
            return False
        here = self.job.keeping.members.setdefault((self.run, world.token), {})
        here[world.rank] = self
        deadline = self.job.sim.now + 60
        while len(here) < world.size:
            if member.broken(world) or self.job.sim.now > deadline:
                return False
            self.job.sim.sleep(0.2)
        return not self.job.keeps or self.job.keeping.meet(self, member, world)

    def _end(self, outcome: str) -> None:
        self.outcome = outcome
        self.job.sim.log(f"{self.name}: the end: {outcome}")
        if outcome == rules.SUCCESS:
            self.job.sim.after(1.0, lambda: self.job.succeeded(self.run))

    # Its training processes ----------------------------------------

    def _start_ranks(self, member: membership.Rendezvous, world: membership.World) -> Ranks:
        shared = {"PET_RDZV_ENDPOINT": "etcd:2379", etcd.HISTORY: self.board.path}
        env = {**shared, **member.token(world)}
        ranks = Ranks((self.run, world.token), Process(f"{self.name} ranks {world.number}", self.machine))
        self.ranks = ranks
        self.job.started(self, ranks)
        self.job.sim.spawn(ranks.process, lambda: self._script(ranks, world, env))
        return ranks

    def _script(self, ranks: Ranks, world: membership.World, env: dict[str, str]) -> None:
        """Train steps together with the others, and commit checkpoints."""
        job, sim = self.job, self.job.sim
        sim.sleep(sim.random.uniform(0.5, 3))
        everybody = job.ranks_of(ranks.world)
        try:
            rank = keeping.Rank(self.kept, world, env)
            step = rank.restore()
            while not job.is_done(self.run):
                sim.sleep(sim.random.uniform(1, 2.5))
                step += 1
                rank.save(step)
                fence.check(env)
                job.committed(self, ranks)
                whole = len(job.ranks_of(ranks.world)) >= max(world.size, len(everybody))
                if world.rank == 0 and whole:
                    job.steps[self.run] += 5
            fence.check(env)
            job.committed(self, ranks)
            ranks.finished = True
            job.finished.add((self.run, world.token, self.name))
        except (fence.Fenced, Torn) as error:
            sim.log(f"{self.name}: {error}")
            ranks.alive = False

    def _stop_ranks(self, seconds: float) -> None:
        if self.ranks and self.ranks.alive:
            self.job.sim.sleep(seconds)
            self.kill_ranks()

    def kill_ranks(self) -> None:
        if self.ranks:
            self.ranks.alive = False
            self.job.sim.kill(self.ranks.process)

    def supervise(self) -> None:
        """Four times a second: kill processes whose time is over, as the supervisor does."""
        if not self.alive:
            return
        deadline = self.board.deadline
        if 0 < deadline <= self.machine.boottime(self.job.sim.now) and not self.job.suspended(self):
            if self.ranks and self.ranks.alive:
                self.job.sim.log(f"{self.name}: the supervisor kills what its lease does not cover")
            self.kill_ranks()
            self.board.clear()
            if self.agent:
                self.job.sim.kill(self.agent)
            self.job.sim.after(1.0, self.start_agent_again)
        self.job.sim.after(0.25, self.supervise)

    def start_agent_again(self) -> None:
        if self.alive and not self.outcome:
            self.start_agent()

    def die(self) -> None:
        """The machine is gone."""
        self.alive = False
        self.kill_ranks()
        for process in (self.agent, self.kept.process):
            if process:
                self.job.sim.kill(process)


@dataclass(eq=False)
class Job:
    """All workers, their etcd and their network, for one seed."""

    seed: int
    sim: Scheduler = field(init=False)
    workers: list[Worker] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)
    finished: set[tuple[str, int, str]] = field(default_factory=set)
    keeping: keeping.Keeping = field(init=False)
    worlds: list[tuple[str, int]] = field(default_factory=list)
    commits: int = 0
    faults: list[str] = field(default_factory=list)
    # Each fifth seed: two runs, and a worker that is cut off from etcd while that loses its data.
    loses_data: bool = field(init=False)
    asleep: set[Machine] = field(default_factory=set)
    over: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sim = Scheduler(self.seed)
        self.loses_data = self.seed % 5 == 4
        random = self.sim.random
        self.etcd = Etcd(self.sim)
        self.other = Etcd(self.sim, cluster=2)
        self.copies = [self.etcd.copied()]
        self.network = Network(self.sim, self.etcd)
        self.unit = random.choice((1, 1, 2))
        self.size = random.choice((2, 3, 3, 4, 5) if self.unit == 1 else (2, 4, 4))
        self.spares = random.choice((0, 0, 1))
        self.least = random.randint(1, self.size // self.unit) * self.unit
        self.keeping, self.keeps = keeping.Keeping(self), self.seed % 3 > 0
        self.runs = ["first", "second"] if self.loses_data or random.random() < 0.3 else ["first"]
        self.etcd.on_write = self.other.on_write = self._written

    # What the workers ask ----------------------------------------

    def settings(self, run: str) -> rules.RunSettings:
        return rules.RunSettings(
            run, self.least, self.size + self.spares, _PREFIX, lock="release", first_nodes=self.size,
            first_call_timeout=15, join_timeout=60, settle_timeout=4, keep_alive_interval=2,
            keep_alive_max_attempt=5, close_timeout=0.1, unit=self.unit,
        )  # fmt: skip

    def client(self, worker: Worker) -> etcd.Client:
        return etcd.Client(etcd.parse_endpoints("etcd:2379"), timeout=5, history=worker.history)

    def is_done(self, run: str) -> bool:
        """Whether all its steps are made."""
        return self.steps[run] >= _STEPS

    def suspended(self, worker: Worker) -> bool:
        return worker.machine in self.asleep

    def ranks_of(self, world: tuple[str, int]) -> list[Ranks]:
        every = [worker.ranks for worker in self.workers if worker.ranks]
        return [ranks for ranks in every if ranks.alive and ranks.world == world]

    # What must hold ----------------------------------------

    def started(self, worker: Worker, ranks: Ranks) -> None:
        if ranks.world not in self.worlds:
            if self.worlds and ranks.world[1] <= self.worlds[-1][1]:
                raise Broken(f"the token of {ranks.world} is not higher than that of {self.worlds[-1]}")
            self.worlds.append(ranks.world)
            self.sim.log(f"world {ranks.world} starts")

    def committed(self, worker: Worker, ranks: Ranks) -> None:
        """`fence.check` has just let this process commit."""
        self.commits += 1
        if ranks.world != self.worlds[-1]:
            raise Broken(
                f"{worker.name} may commit in {ranks.world}, but the world {self.worlds[-1]} has started"
            )

    def _written(self, etcd: Etcd, key: str, value: str) -> None:
        """Worlds have whole units. A run succeeds only when all of the last round have finished."""
        if key.endswith("/round"):
            size = len(rules.round_of(value, 0).members)
            if size % self.unit or not self.least <= size <= self.size:
                raise Broken(f"a world of {size} in units of {self.unit}, {self.least} to {self.size}")
        if not key.endswith("/done") or json.loads(value)["outcome"] != rules.SUCCESS:
            return
        root = key[: -len("done")]
        run = root[len(_PREFIX) :].strip("/")
        latest = rules.round_of(etcd.keys[root + "round"].value, 0)
        for id in latest.members:
            pod = id.rsplit(".", 1)[0].rsplit("-", 1)[0]
            if (run, latest.token, pod) not in self.finished:
                raise Broken(f"run {run} is a success, but {pod} has not finished round {latest.number}")

    def succeeded(self, run: str) -> None:
        """One worker has succeeded: the Job's success policy ends the others."""
        for worker in self.workers:
            if worker.run == run and worker.alive and not worker.outcome:
                worker.die()
        self.over.add(run)

    def check_threads(self, worker: Worker) -> None:
        if worker.member and worker.member._thread_ended:
            raise Broken(worker.member._thread_ended)

    # What happens ----------------------------------------

    def add_worker(self, run: str, slot: int, age: int = 0) -> None:
        if run in self.over:
            return
        random = self.sim.random
        name = f"{run[0]}{slot}{'abcdefghijklmnop'[age]}"
        machine = Machine(name, random.uniform(0.98, 1.02), random.uniform(-0.1, 0.1))
        worker = Worker(self, run, slot, machine, SimBoard(f"board-{machine.name}"))
        self.workers.append(worker)
        worker.start_agent()
        worker.supervise()

    def replace(self, worker: Worker, seconds: float) -> None:
        age = sum(each.slot == worker.slot and each.run == worker.run for each in self.workers)
        if age < 15:
            self.sim.after(seconds, lambda: self.add_worker(worker.run, worker.slot, age))

    def plan_faults(self) -> None:
        random = self.sim.random
        kinds: list[Callable[[Worker, float], str]] = [
            self.cut_off, self.lose_answers, self.stop_machine, self.stop_agent, self.stop_ranks,
            self.suspend, self.kill_machine, self.delete_pod, self.kill_process, self.restart_etcd,
            self.slow_answers, self.another_etcd,
        ]  # fmt: skip
        if random.random() < 0.3:
            kinds += [self.empty_etcd, self.older_etcd, self.lose_data_of_one_cut_off]
        if self.loses_data:
            self.sim.at(random.uniform(25, 60), lambda: self._cause(self.lose_data_of_one_cut_off))
        for _ in range(0 if self.loses_data else random.choice((1, 2, 4, 6, 8))):
            self.sim.at(random.uniform(2, FAULTS_END), lambda: self._cause(random.choice(kinds)))
        self.sim.at(random.uniform(2, FAULTS_END), self.etcd.compact)
        for _ in range(10):
            self.sim.at(random.uniform(2, FAULTS_END), lambda: self.copies.append(self.etcd.copied()))

    def _cause(self, kind: Callable[[Worker, float], str]) -> None:
        alive = [worker for worker in self.workers if worker.alive and not worker.outcome]
        if alive:
            random = self.sim.random
            worker = random.choice(alive)
            seconds = min(random.choice((1, 5, 9, 15, 40)) * random.uniform(0.7, 1.3), 60)
            what = kind(worker, seconds)
            self.faults.append(what)
            self.sim.log(f"FAULT {what}")

    def cut_off(self, worker: Worker, seconds: float) -> str:
        link = self.network.link(worker.machine)
        link.cut = True
        self.sim.after(seconds, lambda: self.network.heal(link))
        return f"{worker.name} is cut off from etcd for {seconds:.1f} s"

    def lose_answers(self, worker: Worker, seconds: float) -> str:
        link = self.network.link(worker.machine)
        link.answers_lost = True
        self.sim.after(seconds, lambda: self.network.heal(link))
        return f"{worker.name} gets no answers for {seconds:.1f} s"

    def slow_answers(self, worker: Worker, seconds: float) -> str:
        for link in self._some_links(worker):
            link.slow = 2.0
            self.sim.after(seconds, lambda link=link: setattr(link, "slow", 0.0))  # type: ignore[misc]
        return f"etcd's answers to {worker.name} take a second or two for {seconds:.1f} s"

    def another_etcd(self, worker: Worker, seconds: float) -> str:
        # A pod that knows no etcd yet is kept from another one by the password only (docs/failures.md).
        knowing = [self.network.link(each.machine) for each in self.workers if each.history.revision]
        seconds = self.sim.random.choice((seconds, 60.0))
        for link in self._some_links(worker):
            if link in knowing:
                self.network.lead(link, self.other)
            self.sim.after(seconds, lambda link=link: self.network.lead(link, self.etcd))  # type: ignore[misc]
        return f"etcd's name leads {worker.name} to another etcd for {seconds:.1f} s"

    def _some_links(self, worker: Worker) -> list[Link]:
        """That of this worker, or those of half the workers, or of all."""
        links, mine = list(self.network.links.values()), self.network.link(worker.machine)
        half = [link for link in links if self.sim.random.random() < 0.5]
        return self.sim.random.choice(([mine], half, links))

    def _pause(self, processes: list[Process], seconds: float) -> None:
        for process in processes:
            self.sim.stop(process)
            self.sim.after(seconds, lambda process=process: self.sim.go_on(process))  # type: ignore[misc]

    def _processes(self, worker: Worker) -> list[Process]:
        mine = (worker.agent, worker.ranks and worker.ranks.process, worker.kept.process)
        return [each for each in mine if each]

    def stop_machine(self, worker: Worker, seconds: float) -> str:
        self._freeze(worker, seconds)
        return f"{worker.name} stands still for {seconds:.1f} s"

    def _freeze(self, worker: Worker, seconds: float) -> None:
        """The supervisor is stopped, too."""
        self.asleep.add(worker.machine)
        self._pause(self._processes(worker), seconds)
        # The order in which processes wake is not known.
        late = seconds + self.sim.random.uniform(-0.3, 0.3)
        self.sim.after(late, lambda: self.asleep.discard(worker.machine))

    def suspend(self, worker: Worker, seconds: float) -> str:
        self._freeze(worker, seconds)
        self.sim.after(seconds - 0.001, lambda: self._jump(worker.machine, seconds))
        return f"{worker.name} is suspended for {seconds:.1f} s, and its monotonic clock with it"

    def _jump(self, machine: Machine, seconds: float) -> None:
        machine.asleep += seconds

    def stop_agent(self, worker: Worker, seconds: float) -> str:
        self._pause([worker.agent] if worker.agent else [], seconds)
        return f"the agent of {worker.name} is stopped for {seconds:.1f} s"

    def stop_ranks(self, worker: Worker, seconds: float) -> str:
        self._pause([worker.ranks.process] if worker.ranks else [], seconds)
        return f"the processes of {worker.name} are stopped for {seconds:.1f} s"

    def kill_machine(self, worker: Worker, seconds: float) -> str:
        worker.die()
        self.replace(worker, seconds)
        return f"{worker.name} dies, and is replaced after {seconds:.1f} s"

    def delete_pod(self, worker: Worker, seconds: float) -> str:
        agent, member = worker.agent, worker.member
        worker.die()
        if agent and member:
            worker.alive = False
            self.sim.spawn(Process(f"{worker.name} leaves", worker.machine), member.leave)
        self.replace(worker, seconds)
        return f"{worker.name} is deleted, and replaced after {seconds:.1f} s"

    def kill_process(self, worker: Worker, seconds: float) -> str:
        worker.kill_ranks()
        return f"a process of {worker.name} dies"

    def restart_etcd(self, worker: Worker, seconds: float, change: Callable[[], None] | None = None) -> str:
        if self.etcd.up:
            self.network.stop_etcd()
            if change:
                change()
            self.sim.after(seconds, self.etcd.start)
        return f"etcd restarts, {seconds:.1f} s"

    def empty_etcd(self, worker: Worker, seconds: float) -> str:
        return self.restart_etcd(worker, self._moment(seconds), self.etcd.lose_data) + ", empty"

    def older_etcd(self, worker: Worker, seconds: float) -> str:
        copy, more = self.sim.random.choice(self.copies), self.sim.random.choice((0, 1_000_000_000))
        change = lambda: self.etcd.restore(copy, more)  # noqa: E731
        return self.restart_etcd(worker, self._moment(seconds), change) + f", with data of revision {copy[0]}"

    def lose_data_of_one_cut_off(self, worker: Worker, seconds: float) -> str:
        """It cannot learn what the others learn, and trains on until its lease may have ended."""
        change = self.sim.random.choice((self.empty_etcd, self.older_etcd))
        return f"{self.cut_off(worker, max(seconds, 9.0))}, and {change(worker, 0.3)}"

    def _moment(self, seconds: float) -> float:
        """What is hardest is an etcd that is back before anybody has noticed."""
        return self.sim.random.choice((seconds, 0.3))

    # The run ----------------------------------------

    def simulate(self) -> None:
        """Simulate this seed. Raises Broken, or Stuck, when something did not hold."""
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            self.keeping.memory = Path(folder)
            self._simulate()

    def _simulate(self) -> None:
        for run in self.runs:
            self.steps[run] = 0
            for slot in range(self.size + self.spares):
                start = self.sim.random.uniform(0, 8) + (10 if run == "second" else 0)
                self.sim.at(start, lambda run=run, slot=slot: self.add_worker(run, slot))  # type: ignore[misc]
        self.plan_faults()
        with _installed(self), _quiet(self.sim):
            try:
                self.sim.run(FAULTS_END + SECONDS_TO_SUCCEED, self._over)
                if not self._over():
                    raise Stuck(f"after {self.sim.now:.0f} s the job has not succeeded")
            finally:
                self.sim.close()

    def _over(self) -> bool:
        if self.sim.failure:
            raise self.sim.failure
        return self.over.issuperset(self.runs)


@contextlib.contextmanager
def _installed(job: Job) -> Iterator[None]:
    """Put the clock, the threads, the chances and the network of the simulation under the modules."""
    sim = job.sim

    def board_at(path: str) -> fence.Board:
        for worker in job.workers:
            if worker.board.path == path and worker.alive:
                return worker.board
        raise FileNotFoundError(path)

    def history_at(path: str) -> etcd.History:
        return next(worker.history for worker in job.workers if worker.board.path == path)

    time, threading, secrets = SimTime(sim), SimThreading(sim), SimSecrets(sim)
    with contextlib.ExitStack() as stack:

        def put(module: Any, **fields: Any) -> None:
            stack.enter_context(mock.patch.multiple(module, **fields))

        put(membership, time=time, threading=threading, secrets=secrets, random=sim.random)
        # Worlds are small, and in most of them somebody must not know all.
        put(membership, _KNOWING=1 + job.seed % 3)
        # The network of the simulation answers in time, and only its own threads.
        put(fence, time=time, in_thread=lambda act: SimpleNamespace(result=lambda seconds: act()))
        put(snapshots, time=keeping.CoarseTime(sim), say=sim.log, _ROUNDED=keeping.SIZE)
        put(keeper, time=time, put=job.keeping.put, get=job.keeping.get, drop=job.keeping.drop)
        put(fence.Board, at=staticmethod(board_at))
        put(etcd, time=time, secrets=secrets, connect=job.network.connect)
        put(etcd_history, time=time)
        put(etcd.History, at=staticmethod(history_at))
        put(connections, time=time, threading=threading, secrets=secrets, random=sim.random)
        put(http, threading=threading, readable=lambda sock: sock.readable)
        yield


@contextlib.contextmanager
def _quiet(sim: Scheduler) -> Iterator[None]:
    """The log of the members goes into the trace."""
    log = logging.getLogger("bireme_runtime")

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            name = sim.current.process.name if sim.current else ""
            sim.log(f"{name}: {record.getMessage()}")

    handler, propagate, level = Handler(), log.propagate, log.level
    log.addHandler(handler)
    log.propagate = False
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate, log.level = propagate, level
