"""What the members of a rendezvous cost etcd: a round of all of them, the loss of one, and nothing at all.

Members are threads of a few processes; they speak the real protocol to one real etcd, set up as charts/etcd
does. The first round is timed from the start of the processes, the second from the call of one member. Beside
the idle cost stands what a renewal each second would cost.

    python benchmarks/rendezvous_scale.py [--members 300] [--processes 4] [--idle 20] [-o json]
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
from figures import machine

from bireme.paths import Paths
from bireme.tools import Toolbox
from bireme_runtime.elastic import rendezvous, rules
from bireme_runtime.etcd import client as etcd
from tests.runtime.etcd_servers import EtcdServer

# After a round, before doing nothing is measured: members still hear of it.
SETTLE_SECONDS = 10
PATIENCE_SECONDS = 600
ETCD = (
    "--quota-backend-bytes=2147483648",
    "--auto-compaction-mode=periodic",
    "--auto-compaction-retention=5m",
)


@dataclass(frozen=True)
class Result:
    """Seconds; CPU in cores, or core seconds, of etcd."""

    members: int
    first_round_seconds: float
    first_round_cpu: float
    second_round_seconds: float
    second_round_cpu: float
    loss_seconds: float
    idle_cores: float
    one_renewal_ms: float
    memory_mib: float
    load_average: float

    @property
    def baseline_cores(self) -> float:
        """What one renewal of each member each second would cost."""
        return self.members * self.one_renewal_ms / 1000


def cpu_seconds(server: EtcdServer) -> float:
    assert server.process is not None
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def memory_mib(server: EtcdServer) -> float:
    assert server.process is not None
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def run_members(endpoint: str, slots: range, total: int, orders: Connection) -> None:
    """Carry out orders with a thread for each slot; answer each with the time at which all had done it."""
    settings = rules.Settings(
        "run", total - 1, total, first_nodes=total, join_timeout=PATIENCE_SECONDS, settle_timeout=0
    )

    def make(slot: int) -> rendezvous.Rendezvous:
        client = etcd.Client(etcd.parse_endpoints(endpoint), timeout=settings.heartbeat_timeout)
        identity = rendezvous.Identity(rendezvous.new_base(f"bench-r1-{slot}"), slot, "10.123.45.67")
        return rendezvous.Rendezvous(client, settings, identity)

    def notice(member: rendezvous.Rendezvous) -> None:
        while not member.waiting():
            time.sleep(0.05)

    threading.stack_size(256 * 1024)
    members = [make(slot) for slot in slots]
    with ThreadPoolExecutor(len(members)) as pool:
        while True:
            order, slot = orders.recv()
            here = [each for each in members if each.identity.slot == slot]
            if order == "join":
                list(pool.map(rendezvous.Rendezvous.join, members))
            elif order == "fail":
                failed = [pool.submit(each.join) for each in here]
                rest = [each for each in members if each not in here]
                list(pool.map(notice, rest))
                list(pool.map(rendezvous.Rendezvous.join, rest))
                for world in failed:
                    world.result()
            elif order == "leave":
                for each in here:
                    each.leave()
                members = [each for each in members if each not in here]
                list(pool.map(notice, members))
            orders.send(time.monotonic())


class Members:
    """The processes of the members."""

    def __init__(self, server: EtcdServer, members: int, processes: int) -> None:
        context = multiprocessing.get_context("fork")
        self._server = server
        self._pipes: list[Connection] = []
        self._children = []
        for number in range(processes):
            mine, theirs = context.Pipe()
            arguments = (server.endpoint, range(number, members, processes), members, theirs)
            self._children.append(context.Process(target=run_members, args=arguments, daemon=True))
            self._children[-1].start()
            self._pipes.append(mine)

    def order(self, what: str, slot: int = 0) -> tuple[float, float]:
        """Let all do this; returns seconds until the last had, and etcd's core seconds."""
        click.echo(f"  {what} …", err=True)
        before, start = cpu_seconds(self._server), time.monotonic()
        for pipe in self._pipes:
            pipe.send((what, slot))
        done = [self._answer(pipe) for pipe in self._pipes]
        return max(done) - start, cpu_seconds(self._server) - before

    def _answer(self, pipe: Connection) -> float:
        if not pipe.poll(PATIENCE_SECONDS):
            raise click.ClickException(f"not all members had done it within {PATIENCE_SECONDS} s")
        return float(pipe.recv())

    def end(self) -> None:
        for child in self._children:
            child.kill()
            child.join()


def measure(server: EtcdServer, members: int, processes: int, idle: float) -> Result:
    click.echo(f"{members} members in {processes} processes", err=True)
    load = os.getloadavg()[0]
    workers = Members(server, members, processes)
    try:
        first = workers.order("join")
        time.sleep(SETTLE_SECONDS)
        second = workers.order("fail", members // 2)
        time.sleep(SETTLE_SECONDS)
        click.echo(f"  idle for {idle:.0f} s …", err=True)
        before, start = cpu_seconds(server), time.monotonic()
        time.sleep(idle)
        idle_cores = (cpu_seconds(server) - before) / (time.monotonic() - start)
        loss = workers.order("leave", members // 2)
    finally:
        workers.end()
    client = etcd.Client(etcd.parse_endpoints(server.endpoint))
    lease, before = client.lease_grant(600), cpu_seconds(server)
    for _ in range(2000):
        client.lease_keepalive(lease)
    renewal = (cpu_seconds(server) - before) / 2000 * 1000
    return Result(
        members, *first, *second, loss[0], idle_cores, renewal, memory_mib(server), load
    )  # fmt: skip


@click.command()
@click.option("--members", type=int, multiple=True, default=[300])
@click.option("--processes", type=int, default=4)
@click.option("--idle", type=float, default=20, help="Seconds of doing nothing that are measured.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def main(members: tuple[int, ...], processes: int, idle: float, output: str) -> None:
    """Measure each number of members on an etcd of its own."""
    binary = Toolbox(Paths.discover(start=Path(__file__))).path("etcd")
    results = []
    for number in members:
        with tempfile.TemporaryDirectory() as folder:
            server = EtcdServer(binary, Path(folder) / "etcd", options=ETCD).start(wait=False)
            try:
                server.wait_until_healthy(120)
                results.append(measure(server, number, processes, idle))
            finally:
                server.stop()
    rows: list[dict[str, Any]] = [{**asdict(each), "baseline_cores": each.baseline_cores} for each in results]
    if output == "json":
        print(json.dumps({"machine": machine(), "results": rows}, indent=2))
        return
    for each in results:
        print(
            f"{each.members} members, load average {each.load_average:.1f}: the first round after "
            f"{each.first_round_seconds:.1f} s and {each.first_round_cpu:.1f} s of etcd's CPU, another one "
            f"after {each.second_round_seconds:.1f} s and {each.second_round_cpu:.1f} s; all know of a loss "
            f"after {each.loss_seconds:.2f} s; idle {each.idle_cores:.3f} cores, and "
            f"{each.baseline_cores:.2f} with a renewal each second; {each.memory_mib:.0f} MiB at most"
        )


if __name__ == "__main__":
    main()
